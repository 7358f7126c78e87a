"""The parts of shared subscriptions: which queues a part has, and its state as the log keeps it.

Owns: PartStates: the values that are stored for a part. Must not touch: when they are stored
(``sharing``, ``dividing``), who gets a message (``shares``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify
from itertools import chain
from typing import TypeAlias

from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues
from motelog.gateway.sessions.groups import PARTS, Group, Part, part_number
from motelog.gateway.sessions.inflight import group_of, read_flight
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK
from motelog.gateway.state.stored import EXPIRY_NEVER, Progress, StoredFlight, StoredSession

#: For one group: the messages in flight that are stored with each part.
Flights: TypeAlias = dict[Part, list[int]]


class PartStates:
    """The states of the parts of one gateway's groups."""

    def __init__(self, queues: WatchedQueues) -> None:
        self._queues = queues

    def queues_of(self, part: Part, known: Iterable[str] = ()) -> Iterator[WatchedQueue]:
        """Yield the queues of a part; ``known`` are the names of further queues to consider."""
        own = [name for name in known if part_number(name) == part.number]
        for queue in self._queues.find((part.group.topic_filter,), own).values():
            if self._queues.parts[queue.number] == part.number:
                yield queue

    def stored(self, part: Part, *, left_ms: int | None) -> StoredSession:
        """Return the state of a part as the log keeps it, in the form of a session's."""
        return self.stored_with(part, left_ms, self.flights(part.group).get(part, ()))

    def stored_with(self, part: Part, left_ms: int | None, flights: Iterable[int]) -> StoredSession:
        """Return the state of a part with these messages in flight."""
        parts = self._queues.parts
        delivered = [
            (queue.name, at)
            for queue, at in part.group.delivered
            if parts[queue.number] == part.number
        ]
        return StoredSession(
            part.client_id,
            EXPIRY_NEVER,
            left_ms,
            cursors=self.cursors(part),
            inflight=self._stored_flights(flights),
            delivered=tuple(delivered),
        )

    def cursors(self, part: Part) -> dict[str, int]:
        """Return the offset at which a part continues in each queue, as far as it is known."""
        group = part.group
        cursors = {}
        for queue in self.queues_of(part):
            places = group.lagging if group.lags_in(queue) else group.standing
            at = (places or {}).get(queue)
            if at is None and queue.is_known:
                at = queue.next_offset
            if at is not None:
                cursors[queue.name] = max(at, group.since.get(queue, 0))
        return cursors

    def begin(self, part: Part) -> dict[str, int]:
        """Return where a part that was never held begins; empty until all offsets are known."""
        cursors = self.cursors(part)
        return cursors if all(q.name in cursors for q in self.queues_of(part)) else {}

    def lagging(self, part: Part) -> list[str]:
        """Return the names of the queues in which a part is not at the live position."""
        group = part.group
        return [queue.name for queue in self.queues_of(part) if group.lags_in(queue)]

    def progress(self, part: Part, flights: Flights) -> Progress:
        """Return what a tick stores about a part; ``flights`` are its group's."""
        parts = self._queues.parts
        lagging = part.group.lagging or {}
        cursors = {q.name: at for q, at in lagging.items() if parts[q.number] == part.number}
        return Progress(part.client_id, cursors, self._stored_flights(flights.get(part, ())))

    def flights(self, group: Group) -> Flights:
        """Return the messages that are unacknowledged or were given back, except at QoS 2.

        This includes the unacknowledged messages of members that have left: a crash would lose
        them otherwise.
        """
        for session in [one for one in group.parted if not self.unacknowledged(group, one)]:
            del group.parted[session]
        found: Flights = {}
        recorders = [group.recorded_by(number) for number in range(PARTS)]
        parts = self._queues.parts
        receivers = chain(group.sessions(), group.parted)
        for flight in chain(group.front, *(self.unacknowledged(group, one) for one in receivers)):
            recorder = recorders[parts[read_flight(flight).queue_number]]
            if recorder is not None:
                found.setdefault(recorder, []).append(flight)
        return found

    def _stored_flights(self, flights: Iterable[int]) -> tuple[StoredFlight, ...]:
        places = self._queues.places
        stored = []
        for count, flight in enumerate(sorted(flights), 1):
            place = read_flight(flight)
            name = places[place.queue_number][1]
            stored.append(StoredFlight(count, name, place.queue_offset, 1))
        return tuple(stored)

    def unacknowledged(self, group: Group, session: Session) -> list[int]:
        """Return the group's QoS 1 messages in flight to one client."""
        if not session.has_inflight:
            return []
        return [
            flight
            for _, flight in session.inflight
            if flight > 0 and flight & QOS_MASK == 1 and group_of(flight) == group.number
        ]

    def take_front_of(self, part: Part) -> list[int]:
        """Take from the front the messages of a part's queues."""
        group, parts = part.group, self._queues.parts
        by_part: dict[bool, list[int]] = {True: [], False: []}
        for flight in group.front:
            by_part[parts[read_flight(flight).queue_number] == part.number].append(flight)
        group.front = by_part[False]
        heapify(group.front)
        return by_part[True]
