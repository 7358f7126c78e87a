"""What the gateway asks of whoever holds its peers' streams: send, end, limits.

Owns: the Output protocol, declared for those who decide (``clients``, ``deliver``, ``publish``).
Must not touch: sockets; an implementation does. The reactor is one as it stands (plain TCP).
Invariants, which every implementation is checked for (tests/support/output_check.py):

- What was accepted reaches the peer in order and whole, or the connection ends.
- No call waits, and none raises for a connection that has ended meanwhile: the caller hears of the
  end later, with the turn that reports it.
- Memory for a peer that does not read is bounded by two marks. Above the lower one messages for
  many (``fan_out``, ``send_numbered``) skip it; above the upper one it is ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Output(Protocol):
    """Sends to connections, which it knows by number; a number is used again after its end."""

    def send(self, connection: int, data: bytes) -> None:
        """Queue what is owed to one peer, such as an answer; it is taken above the lower mark too.

        Ends the connection if the peer does not read and the upper mark would be exceeded.
        """
        ...

    def fan_out(self, data: bytes, connections: Sequence[int]) -> list[int]:
        """Queue one message for many; return those skipped: ended, or above the lower mark."""
        ...

    def send_numbered(
        self, data: bytes, number_at: int, receivers: list[tuple[int, int]]
    ) -> list[int]:
        """``fan_out`` with a 16-bit number of each receiver's own put at ``data[number_at]``.

        ValueError, and nothing is sent, if the number does not fit there.
        """
        ...

    def flush(self) -> None:
        """Send what is queued; needed by who queues outside the turns of the implementation."""
        ...

    def close(self, connection: int) -> None:
        """Send what is queued, then end the connection; this end is not reported to the caller."""
        ...

    def set_variant(self, connection: int, variant: int) -> None:
        """Have ``variant``, the MQTT version, handed over with each packet received from now on."""
        ...

    def set_limits(self, connection: int, *, frame_bytes_max: int, idle_s_max: int) -> None:
        """Set the largest packet, and after how many seconds without one a fault is reported."""
        ...

    def peer(self, connection: int) -> tuple[str, int]:
        """Return the peer's address and port, also after the end until the number is used again."""
        ...
