"""The QoS 1 messages that a client has not acknowledged yet, by packet identifier.

Owns: the packet identifiers towards one client and how many may be in use. Must not touch: packets,
clocks; the caller chooses what to keep of a message.
Invariants (``_check``): at most ``limit`` in flight; no identifier is 0 or given twice.
Spec: MQTT 5.0 sections 2.2.1, 4.4 and 4.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

M = TypeVar("M")

PACKET_ID_MAX: Final = 65535


class InflightWindow(Generic[M]):
    """Holds at most ``limit`` messages: the smaller of the client's Receive Maximum and ours.

    An idle window is 56 bytes: the table exists only while messages are in flight. A new connection
    may bring a ``limit`` below their number: then no message is taken until there is room again.
    """

    __slots__ = ("_last_packet_id", "_messages", "limit")

    def __init__(self, limit: int) -> None:
        assert 1 <= limit <= PACKET_ID_MAX
        self.limit = limit
        self._last_packet_id = 0
        self._messages: dict[int, M] | None = None

    def __len__(self) -> int:
        return 0 if self._messages is None else len(self._messages)

    def allocate(self, message: M) -> int:
        """Remember ``message`` under the next free packet identifier; return the identifier.

        Return 0 when the window is full [MQTT-3.3.4-9]. Identifiers go round, so that one just
        acknowledged is the last to be used again. O(1) on average.
        """
        messages = self._messages
        if messages is None:
            messages = self._messages = {}
        elif len(messages) >= self.limit:
            return 0
        packet_id = self._last_packet_id
        while True:  # ends: fewer than ``limit`` of the identifiers are taken
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            if packet_id not in messages:  # [MQTT-2.2.1-4]
                break
        self._last_packet_id = packet_id
        messages[packet_id] = message
        return packet_id

    def ack(self, packet_id: int) -> bool:
        """Forget the message; return False if none was in flight under that identifier."""
        messages = self._messages
        if messages is None or packet_id not in messages:
            return False
        del messages[packet_id]
        if not messages:
            self._messages = None
        return True

    def __iter__(self) -> Iterator[tuple[int, M]]:
        """Yield (packet identifier, message), oldest first [MQTT-4.6.0-1]: the redelivery order."""
        return iter(()) if self._messages is None else iter(self._messages.items())

    def _check(self) -> None:
        """Assert the invariants; for tests."""
        if self._messages is None:
            return
        assert 1 <= len(self._messages) <= self.limit
        assert all(1 <= packet_id <= PACKET_ID_MAX for packet_id in self._messages)
