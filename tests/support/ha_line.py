"""The line between a slave and its master's HA port, with the faults that a network has.

Owns: HaLine: which direction is mute or slow, and where a connection is cut. Must not touch: what
goes over it.
"""

from __future__ import annotations

import socket
import time
from typing import Final, Literal

from tests.support.cut_line import CutLine

#: To the master: reports. To the slave: frames of the log.
Direction = Literal["up", "down"]
_BYTES: Final = 65_536


class HaLine(CutLine):
    """A CutLine whose directions have faults of their own."""

    def __init__(self, server: tuple[str, int]) -> None:
        #: Directions whose bytes are swallowed, as a firewall does that forgets a connection.
        self.muted: set[Direction] = set()
        #: How long each piece is held up.
        self.delay_s = 0.0
        # The bytes that still pass in a direction before the connection is cut.
        self._left: dict[Direction, int] = {}
        super().__init__(server)

    def cut_after(self, direction: Direction, byte_count: int) -> None:
        """Cut the connection when so many more bytes have gone in this direction."""
        self._left[direction] = byte_count

    def heal(self) -> None:
        """End all faults; a connection that has lost bytes is cut."""
        is_torn = bool(self.muted)
        self.muted.clear()
        self._left.clear()
        self.delay_s = 0.0
        self.release()
        if is_torn:
            self.cut()

    def _receive(self, source: socket.socket, *, is_sent: bool) -> bytes:
        direction: Direction = "up" if is_sent else "down"
        while data := source.recv(_BYTES):
            time.sleep(self.delay_s)
            if direction not in self.muted:
                return self._before_end(direction, data)
        return b""

    def _before_end(self, direction: Direction, data: bytes) -> bytes:
        left = self._left.get(direction)
        if left is None:
            return data
        if not left:  # what came before has been forwarded
            del self._left[direction]
            return b""
        self._left[direction] = max(left - len(data), 0)
        return data[:left]
