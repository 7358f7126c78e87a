"""RocketMQ's HA protocol, version 4: the bytes that a master and its slaves exchange.

Owns: frames and reports, their limits and times. Must not touch: sockets, the log; pure functions.
Spec: RocketMQ 4.9 HAConnection, HAService.HAClient.

    slave -> master   report: end of the slave's log, 8 bytes; the first one asks for what follows
    master -> slave   frame: physical offset, 8 bytes; size, 4 bytes; that many bytes of the log

A frame without bytes is a heartbeat. Frames cut the log anywhere, also inside a record, but never
cross the end of a file. Neither side has a handshake, a version or an error: a side that does not
agree closes the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

#: The port of the protocol lies this far above the broker's, as in RocketMQ.
PORT_DISTANCE: Final = 1
#: Most bytes of the log in a frame (haTransferBatchSize).
PIECE_BYTES_MAX: Final = 32_768
#: Idle time after which a side sends a heartbeat or a report (haSendHeartbeatInterval).
HEARTBEAT_S: Final = 5.0
#: Silence after which a side closes the connection (haHousekeepingInterval).
SILENCE_S: Final = 20.0
#: A slave that lacks more than this is not waited for (haSlaveFallbehindMax).
BEHIND_BYTES_MAX: Final = 268_435_456

HEADER: Final = struct.Struct(">qi")
REPORT: Final = struct.Struct(">q")


class HaError(ValueError):
    """The peer has sent something that is not this protocol."""


class Reports:
    """The reports in a master's input."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets that are complete now; HaError if one is negative."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        offsets = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
        if any(offset < 0 for offset in offsets):
            raise HaError(f"a slave reports the offset {min(offsets)}")
        return offsets


class Pieces:
    """The pieces of the log in a slave's input; a piece ends where the input or its frame does."""

    def __init__(self) -> None:
        self._header = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (physical offset, bytes); a heartbeat has none.

        HaError if a size is impossible.
        """
        at = 0
        while at < len(data):
            if not self._left:
                wanted = HEADER.size - len(self._header)
                self._header += bytes(data[at : at + wanted])
                at += wanted
                if len(self._header) < HEADER.size:
                    return
                self._offset, self._left = HEADER.unpack(self._header)
                self._header = b""
                if not 0 <= self._left <= PIECE_BYTES_MAX or self._offset < 0:
                    raise HaError(f"a frame has {self._left} bytes at offset {self._offset}")
                if not self._left:
                    yield self._offset, data[:0]
                continue
            piece = data[at : at + self._left]
            begin = self._offset
            at += len(piece)
            self._offset += len(piece)
            self._left -= len(piece)
            yield begin, piece


def first_offset(report: int, *, begin: int, end: int, file_bytes: int) -> int:
    """Return where the frames for a slave begin whose first report this is.

    The log is [begin, end). A report of 0 asks for the last file. HaError says why there is nothing
    to send.
    """
    if report == 0:
        return max(end - end % file_bytes, begin)
    if report > end:
        raise HaError(
            f"its log ends at {report}, this one at {end}: it has messages that this log never had"
            " or has lost. Cut it back (motelog store cut) or let it start empty"
        )
    if report < begin:
        raise HaError(
            f"its log ends at {report}, and this one begins at {begin}: what lies between was"
            " removed here. Let it start empty or from a backup"
        )
    return report
