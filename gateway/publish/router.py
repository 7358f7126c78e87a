"""Turns publishes into messages to append, as fast as the packets come.

The kernel is _router.pyx; _router_py.py is the reference that defines the correct results.
Owns: how the built-in rule turns a topic name into a queue, a property text and a tag hash.
Must not touch: which topics exist, the rules of an operator (``routes``).

    plant7/dev42/temp    first level -> its topic's queues; the tag's hash -> one of them; the text
           tag           mqttRealTopic \\x01 plant7/dev42/temp \\x02 TAGS \\x01 dev42 \\x02 ...

Nothing is kept by name, so a million names cost as much as a thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels

if TYPE_CHECKING:
    from motelog.gateway.publish import _router as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = ["Route", "Router"]

Route = _kernel.Route
Router = _kernel.Router
