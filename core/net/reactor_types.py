"""The enums and limits that both reactors share.

Owns: Framing, Fault, CloseReason and the limits. Must not touch: sockets.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Framing(IntEnum):
    """How a connection's byte stream is cut into frames."""

    MQTT = 0  # one byte, then the count of the bytes that follow in one to four 7-bit groups
    REMOTING = 1  # the count of the bytes that follow, four bytes big-endian


class Fault(IntEnum):
    """Why the reactor stopped reading from a connection that is still open."""

    FRAME_TOO_LARGE = 1
    MALFORMED_LENGTH = 2
    IDLE = 3
    TRANSPORT = 4  # a fault below the frames; codec_fault() says which


class CloseReason(IntEnum):
    """Who or what ended a connection."""

    LOCAL = 0
    PEER = 1
    RESET = 2
    OUTPUT_FULL = 3
    CONNECT_FAILED = 4


TURN_BYTES: Final = 1 << 20
"""A turn that has received this much serves no more sockets; they come first in the next one."""
TURN_FRAMES: Final = 16_384
"""The same for frames, so that two-byte frames cannot make a turn arbitrarily long."""
RECEIVE_BYTES_MAX: Final = 65_536
"""The most that one connection may contribute to a turn."""
ACCEPTS_MAX: Final = 256
"""The most connections that a turn accepts from one listener."""
BUSY_EVENTS: Final = 8
"""A turn that served this many sockets sets ``more``: others are probably ready by now, and polling
again is cheaper than waiting."""
DIRECT_BYTES: Final = 4096
"""A partial frame of at least this size is received in place instead of being copied each turn."""
COPIED_BYTES_MAX: Final = 256
"""A message up to this size is copied to the end of the queued output, a larger one is shared."""
CODED_BYTES_MAX: Final = 16_384
"""The most output that a codec gets in one call: what fits into one TLS record."""
LINGER_S: Final = 1
"""How long a closed connection may still take output; its input is discarded meanwhile."""
CONNECT_S_MAX: Final = 10
"""How long an outgoing connection may take to open."""
ACCEPT_PAUSE_S: Final = 1
"""How long accepting pauses if no descriptor or no slot is free."""
