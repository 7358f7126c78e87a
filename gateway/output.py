"""What the gateway needs of the part that holds its peers' streams: send, end, pause, limits.

Owns: the Output protocol, declared for its users: ``clients``, ``deliver``, ``publish``.
Must not touch: sockets; an implementation does. The reactor is one.
Invariants, which every implementation is checked for (tests/support/output_check.py):

- Accepted data reaches the peer in order and whole, or the connection ends.
- No call waits, and none raises for a connection that has ended meanwhile: the caller hears of the
  end later, with the turn that reports it.
- Memory for a peer that does not read is bounded by two marks. Above the lower one, messages for
  many (``fan_out``, ``send_numbered``) skip it. Above the upper one, its connection is ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from motelog.core.net.codec import Certificate, Observer


class Output(Protocol):
    """Sends to connections by number; a number is used again after its connection has ended."""

    def send(self, connection: int, data: bytes) -> None:
        """Queue data that one peer is owed, such as an answer, also above the lower mark.

        Ends the connection if the peer does not read and the upper mark would be exceeded.
        """
        ...

    def fan_out(self, data: bytes, connections: Sequence[int]) -> list[int]:
        """Queue one message for many; return those not served: ended, or above the lower mark."""
        ...

    def send_numbered(
        self, data: bytes, number_at: int, receivers: list[tuple[int, int]]
    ) -> list[int]:
        """Like ``fan_out``, with each receiver's own 16-bit number put at ``data[number_at]``.

        ValueError, and nothing is sent, if the number does not fit there.
        """
        ...

    def output_bytes(self, connection: int) -> int:
        """Return how many bytes wait to be sent; 0 for a connection that has ended."""
        ...

    def held_bytes(self) -> int:
        """Return about how many bytes are held for all connections.

        Output that waits, where what waits for many counts once, and packets that have not come
        whole. Costs a look at each connection.
        """
        ...

    def holding(self, bytes_min: int) -> list[tuple[int, int]]:
        """Return (bytes, connection) of those with at least so many to send or received in part."""
        ...

    def flush(self) -> None:
        """Send what is queued; needed after queueing outside the implementation's turns."""
        ...

    def close(self, connection: int) -> None:
        """Send what is queued, then end the connection; this end is not reported to the caller."""
        ...

    def abort(self, connection: int) -> None:
        """End the connection at once, without what is queued; not reported to the caller."""
        ...

    def set_variant(self, connection: int, variant: int) -> None:
        """Hand over ``variant``, the MQTT version, with each packet received from now on."""
        ...

    def set_limits(self, connection: int, *, frame_bytes_max: int, idle_s_max: int) -> None:
        """Set the largest packet, and how many seconds without a packet are reported as a fault.

        0 seconds: silence is no fault. A peer above the lower mark is silent only if it takes no
        output either.
        """
        ...

    def pause(self, connection: int) -> None:
        """Read nothing more from the peer; what it sends waits on its side."""
        ...

    def resume(self, connection: int) -> None:
        """Read on after ``pause``; the time without a packet starts again."""
        ...

    def peer(self, connection: int) -> tuple[str, int]:
        """Return the peer's address and port; after the end too, until the number is used again.

        Behind a balancer that tells them they are the client's, from its first packet on.
        """
        ...

    def identity(self, connection: int) -> Certificate | None:
        """Return the certificate that the peer has shown and that was checked, until the end."""
        ...

    def codec_fault(self, connection: int) -> str:
        """Return what is wrong with a connection whose fault is TRANSPORT, in words."""
        ...

    def observe(self, connection: int, observer: Observer | None) -> bool:
        """Show an observer what a connection receives and sends from now on; None ends that.

        It takes the place of an earlier one. False: the connection has ended.
        """
        ...

    def listener(self, connection: int) -> int:
        """Return the number of the listener that it came by; after the end as ``peer``."""
        ...
