"""Sockets in batches: accept, receive, cut into frames, send, fan out; the length is all it knows.

Owns: the choice between the kernel (``_reactor.pyx``) and its reference (``_reactor_py.py``);
COMPILED says which. Must not touch: anything else. The reference documents every call.

    kernel   one poll() per turn ---> Turn: data  [frame][frame][frame]...  of all sockets
    Python   decides on the batch           index (connection, variant, begin, end) per frame
    kernel   <--- send_many / fan_out / send_numbered, then one flush(): one send per connection
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from motelog.core.net.reactor_types import CloseReason, Fault, Framing

COMPILED: Final = os.environ.get("MOTELOG_PURE") != "1"

if TYPE_CHECKING:
    from motelog.core.net._reactor_py import Reactor, Turn
elif COMPILED:
    try:
        from motelog.core.net._reactor import Reactor, Turn
    except ImportError as exc:
        raise ImportError(
            "the kernel motelog.core.net._reactor is not built: run `pip install -e .`, "
            "or set MOTELOG_PURE=1 to use the slow reference"
        ) from exc
else:
    from motelog.core.net._reactor_py import Reactor, Turn

__all__ = ["COMPILED", "CloseReason", "Fault", "Framing", "Reactor", "Turn"]
