"""A turn's pulls: parsed from their frames together, and answered without a command object.

Owns: the kernel (_pulls.pyx) and its reference (_pulls_py.py), the definition of a plain pull, the
contract of both. Must not touch: sockets, topics, the store.
A command object and string dictionaries for request and answer cost more than finding the records.
So a plain pull becomes a tuple; anything unusual stays None and is decoded and checked like any
other request (frames, the pull processor).

A plain pull is code 11 or 361 and not one-way, with all required fields, numbers in range (queue
and offset not negative) and texts in ASCII, from a client that does not read the log itself.
Spec: RocketMQ PullMessageRequestHeader, PullMessageResponseHeader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from motelog.core import kernels

if TYPE_CHECKING:
    from motelog.core.remoting import _pulls as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = ["PlainPull", "encode_found", "split_pulls"]

#: (request code, opaque, serialize type, group, topic, queue id, queue offset, sysFlag, commit
#: offset, how long it may be held in ms, count of messages, bytes or None, version of the
#: subscription or None, type of the expression or None, expression)
PlainPull: TypeAlias = (
    "tuple[int, int, int, str, str, int, int, int, int, int, int, int | None, int | None,"
    " str | None, str]"
)

split_pulls: Final[Callable[[Any, Any, list[Any]], None]] = _kernel.split_pulls
"""``split_pulls(data, index, items)``: replaces each None by the plain pull in that frame of a
Turn, if it is one. ValueError if the index points outside the data."""

encode_found: Final[Callable[[int, int, int, int, int, int, int], bytes]] = _kernel.encode_found
"""``encode_found(opaque, form, broker_id, next_offset, min_offset, max_offset, body_bytes)``: the
frame's bytes before the records that a pull found. ValueError if they do not fit into a frame."""
