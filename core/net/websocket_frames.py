"""The frames of one open WebSocket, as its server sees them: bytes of messages in and out.

Owns: the kernel (``_websocket_frames.pyx``) and its reference
(``_websocket_frames_py.py``), which defines the behaviour and draws a frame. Must not touch:
anything else.

    Frames()
        .receive(data)  the payload of messages as far as it has come, the answers to control
                        frames and faults, whether more comes (codec.Decoded)
        .send(data)     one binary message; none after a closing frame
        .close()        the closing frame; none if it has been sent
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels

if TYPE_CHECKING:
    from motelog.core.net._websocket_frames_py import Frames
else:
    Frames = kernels.kernel_of(__name__).Frames

__all__ = ["Frames"]
