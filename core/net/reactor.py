"""Sockets in batches: accept, receive, cut into frames by length, send, fan out.

Owns: nothing; the kernel (``_reactor.pyx``) does the work, and its stub documents every call.
Must not touch: anything else.

    kernel   one poll() per turn ---> Turn: data  [frame][frame][frame]...  of all sockets
    Python   decides on the batch           index (connection, variant, begin, end) per frame
    kernel   <--- send_many / fan_out / send_numbered, then one flush(): one send per connection
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels
from motelog.core.net.reactor_types import CloseReason, Fault, Framing

if TYPE_CHECKING:
    from motelog.core.net import _reactor as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = ["CloseReason", "Fault", "Framing", "Reactor", "Turn"]

Reactor = _kernel.Reactor
Turn = _kernel.Turn
