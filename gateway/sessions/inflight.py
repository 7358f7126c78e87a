"""The messages that a client has not yet acknowledged, by packet identifier.

Owns: the packet identifiers towards one client, their limit, the definition of a flight.
Must not touch: packets, clocks, the log.
Invariants (``_check``): ``allocate`` never exceeds ``limit``; no identifier is 0 or used twice.
Spec: MQTT 5.0 sections 2.2.1, 4.3, 4.4 and 4.9.

A flight is one integer, so that a window of many messages is small and all receivers of a message
share it: the record's place in the log, and its QoS towards the client.

    group number | queue number, 24 bits | queue offset, 48 bits | QoS, 2 bits
                                    sent: neither PUBACK nor PUBREC yet
    ~ of the same (negative)        released: PUBREC was received

The group is the shared subscription through which the client got the message; 0: its own one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from motelog.gateway.mqtt.errors import ProtocolViolationError

PACKET_ID_MAX: Final = 65535

_OFFSET_BITS: Final = 48
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_QUEUE_BITS: Final = 24
_QUEUE_MASK: Final = (1 << _QUEUE_BITS) - 1
_GROUP_SHIFT: Final = _QUEUE_BITS + _OFFSET_BITS + 2


class Flight(NamedTuple):
    """The parts of a flight's integer."""

    queue_number: int
    queue_offset: int
    qos: int
    is_released: bool
    group_number: int = 0


def flight_of(queue_number: int, queue_offset: int, qos: int, group_number: int = 0) -> int:
    """Return the flight of a sent message."""
    place = queue_number << _OFFSET_BITS | queue_offset
    return group_number << _GROUP_SHIFT | place << 2 | qos


def group_of(flight: int) -> int:
    """Return the group number of a flight, released or not."""
    return (~flight if flight < 0 else flight) >> _GROUP_SHIFT


def read_flight(flight: int) -> Flight:
    is_released = flight < 0
    sent = ~flight if is_released else flight
    place, qos = divmod(sent, 4)
    queue_number = place >> _OFFSET_BITS & _QUEUE_MASK
    return Flight(queue_number, place & _OFFSET_MASK, qos, is_released, sent >> _GROUP_SHIFT)


class InflightWindow:
    """Has at most ``limit`` messages: the smaller of the client's Receive Maximum and ours.

    An idle window is 56 bytes: the table exists only while messages are in flight. A new connection
    may have a ``limit`` below their number: then only that many are sent again at once, and no
    message is added until there is room.
    """

    __slots__ = ("_flights", "has_skipped", "last_packet_id", "limit")

    def __init__(self, limit: int) -> None:
        assert 1 <= limit <= PACKET_ID_MAX
        self.limit = limit
        self.last_packet_id = 0
        self.has_skipped = False
        self._flights: dict[int, int] | None = None

    def __len__(self) -> int:
        return 0 if self._flights is None else len(self._flights)

    @property
    def room(self) -> int:
        """How many more messages fit."""
        return max(0, self.limit - len(self))

    @property
    def is_half_free(self) -> bool:
        """Whether enough is free to make reading the log again worthwhile.

        Doing so at each acknowledgement would cost a read for each message.
        """
        return self.room >= max(1, self.limit // 2)

    def allocate(self, flight: int, *, again: int = 0) -> int:
        """Store ``flight`` under the next free packet identifier; return the identifier.

        ``again`` is an identifier under which the client has had the message; it is used if free.
        Return 0 if the window is full [MQTT-3.3.4-9]. Identifiers are used in turn, so that a just
        acknowledged one is the last to be reused. O(1) on average.
        """
        flights = self._flights
        if flights is None:
            flights = self._flights = {}
        elif len(flights) >= self.limit:
            return 0
        if again and again not in flights:
            flights[again] = flight
            return again
        packet_id = self.last_packet_id
        while True:  # ends: fewer than ``limit`` of the identifiers are taken
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            if packet_id not in flights:  # [MQTT-2.2.1-4]
                break
        self.last_packet_id = packet_id
        flights[packet_id] = flight
        return packet_id

    def lend(self) -> dict[int, int]:
        """Return the table, packet identifier -> flight, for adding as ``allocate`` does.

        ``last_packet_id`` is set with it, and then ``take_back`` is called.
        """
        if self._flights is None:
            self._flights = {}
        return self._flights

    def take_back(self) -> None:
        """Drop the table if nothing was added."""
        if not self._flights:
            self._flights = None

    def restore(self, flights: Iterable[tuple[int, int]]) -> None:
        """Take over the flights of an earlier connection, oldest first, whatever the limit."""
        restored = dict(flights)
        if restored:
            self._flights = restored
            self.last_packet_id = next(reversed(restored))

    def skip(self, count: int) -> None:
        """Advance the next identifier by ``count``."""
        self.has_skipped = True
        self.last_packet_id = (self.last_packet_id + count) % PACKET_ID_MAX

    def get(self, packet_id: int) -> int | None:
        """Return the flight under the identifier, if there is one."""
        return None if self._flights is None else self._flights.get(packet_id)

    def release(self, packet_id: int) -> None:
        """Record PUBREC for an existing flight: from now on only PUBREL is sent for it."""
        assert self._flights is not None
        flight = self._flights[packet_id]
        self._flights[packet_id] = flight if flight < 0 else ~flight

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """Process PUBACKs; return whether a message was in flight under one of the identifiers.

        ProtocolViolationError if one is that of a QoS 2 message; those before it are processed.
        """
        flights = self._flights
        if flights is None:
            return False
        count = len(flights)
        for packet_id in packet_ids:
            flight = flights.get(packet_id)
            if flight is None:
                continue
            if flight < 0 or flight & 3 == 2:
                raise ProtocolViolationError("PUBACK for a message with QoS 2")
            del flights[packet_id]
        is_any = len(flights) < count
        if not flights:
            self._flights = None
        return is_any

    def ack(self, packet_id: int) -> bool:
        """Remove a message; return False if none was in flight under the identifier."""
        flights = self._flights
        if flights is None or packet_id not in flights:
            return False
        del flights[packet_id]
        if not flights:
            self._flights = None
        return True

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (packet identifier, flight), oldest first [MQTT-4.6.0-1]: the redelivery order."""
        return iter(()) if self._flights is None else iter(self._flights.items())

    def _check(self) -> None:
        """Assert the invariants; for tests."""
        if self._flights is None:
            return
        assert self._flights
        assert all(1 <= packet_id <= PACKET_ID_MAX for packet_id in self._flights)
