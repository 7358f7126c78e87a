"""What the gateway needs from the part that holds its peers' streams: send, end, pause, limits.

Owns: the Output protocol. A ``Connection`` is an output and a number there; ``deliver`` and
``publish`` send to many of them at once.
Must not touch: sockets. An implementation such as the reactor does.
Invariants, checked for every implementation (tests/support/output_check.py):

- Accepted data reaches the peer complete and in order, or the connection ends.
- No call waits. No call raises because a connection has ended meanwhile: a later turn reports the
  end to the caller.
- Two marks bound the memory for a peer that does not read. Above the lower mark, messages for
  several peers (``fan_out``, ``send_numbered``) skip it. Above the upper mark, its connection ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from motelog.core.net.codec import Certificate, Observer


class Output(Protocol):
    """Sends to connections by number. A number is reused after its connection has ended."""

    def send(self, connection: int, data: bytes) -> None:
        """Queue data that one peer must get, such as an answer, even above the lower mark.

        Ends the connection if the peer does not read and the upper mark would be exceeded.
        """
        ...

    def fan_out(self, data: bytes, connections: Sequence[int]) -> list[int]:
        """Queue one message for several peers; return those that have ended or are skipped."""
        ...

    def send_numbered(
        self, data: bytes, number_at: int, receivers: list[tuple[int, int]]
    ) -> list[int]:
        """Like ``fan_out``, but write each receiver's own 16-bit number at ``data[number_at]``.

        ValueError if the number does not fit there; then nothing is sent.
        """
        ...

    def output_bytes(self, connection: int) -> int:
        """Return how many bytes wait to be sent; 0 for a connection that has ended."""
        ...

    def held_bytes(self) -> int:
        """Return about how many bytes are held for all connections.

        These are queued output (counted once if it is for several connections) and incomplete
        packets. The cost is proportional to the number of connections.
        """
        ...

    def holding(self, bytes_min: int) -> list[tuple[int, int]]:
        """Return (bytes, connection) for connections that hold at least ``bytes_min``.

        Queued output and incomplete packets count.
        """
        ...

    def flush(self) -> None:
        """Send what is queued. Call this after queueing outside the implementation's turns."""
        ...

    def close(self, connection: int) -> None:
        """Send what is queued, then end the connection. The end is not reported to the caller."""
        ...

    def abort(self, connection: int) -> None:
        """End the connection at once and drop what is queued. The end is not reported."""
        ...

    def set_variant(self, connection: int, variant: int) -> None:
        """From now on, pass ``variant``, the MQTT version, along with each received packet."""
        ...

    def set_limits(self, connection: int, *, frame_bytes_max: int, idle_s_max: int) -> None:
        """Set the largest packet, and after how many seconds without a packet a fault is reported.

        0 seconds: silence is allowed. A peer above the lower mark counts as silent only if it takes
        no output either.
        """
        ...

    def pause(self, connection: int) -> None:
        """Stop reading from the peer; what it sends waits on its side."""
        ...

    def resume(self, connection: int) -> None:
        """Continue reading after ``pause``; the time without a packet starts again."""
        ...

    def peer(self, connection: int) -> tuple[str, int]:
        """Return the peer's address and port, also after the end until the number is reused.

        Behind a load balancer that reports them, they are the client's from its first packet on.
        """
        ...

    def identity(self, connection: int) -> Certificate | None:
        """Return the verified certificate of the peer, until the connection ends."""
        ...

    def codec_fault(self, connection: int) -> str:
        """Return a description of the fault of a connection whose fault is TRANSPORT."""
        ...

    def observe(self, connection: int, observer: Observer | None) -> bool:
        """Pass what a connection receives and sends from now on to an observer; None ends that.

        The observer replaces an earlier one. Return False if the connection has ended.
        """
        ...

    def listener(self, connection: int) -> int:
        """Return the number of the listener that accepted it; after the end as ``peer``."""
        ...
