"""The state of one session from its records: the last whole record, and later changes.

Owns: SessionState and how each kind of record changes it (marks and filters: Changing); Positions.
Must not touch: the log, the view.

A connected session has received everything up to its gateway's live positions, except as its whole
record, a later Progress entry, or marks say. One queue, in the order of records:

    session  cursor 10            tick: 20            tick: 30, lags at 25        tick: 40, no lag
    ---|-----------------------------|----------------------|----------------------|----------->
    cursor: 10                       20                     25 (pinned)            40

    marks    SENT 3 = 31, COMPLETED 3            SENT 4 = 32                     RELEASED 4
    ---|-----------|---------------------------------|-------------------------------|--------->
    flights: 3     -                                 4 sent                          4 released
    delivered: 31  31                                31, 32                          31, 32

Rules:

- A whole record replaces everything. Its cursors hold until a newer position or Progress entry.
- A position counts if it was written after the whole record, or if a Progress entry was: that says
  that the session is at all positions of its gateway, except in the queues in which it lags.
- If the position of a queue was first written after the whole record, the queue was created since,
  or its gateway did not know its end: the queue is added. If a gateway stops reading a queue and
  reads it again later, the position is written again.
- A Progress entry replaces cursors that were pinned and all flights. Its tick's positions come with
  it or after it, never before it. A cursor that it pins no longer is not below the place where it
  was pinned: the session is at a live position, which the log may not have yet.
- A change of filters has a Progress entry. Its cursors are those of the queues that the new filters
  need. Queues that no filter needs any longer may keep a cursor; it is not used.
- ``delivered`` has places that the cursor has not passed and that must not be read again. The
  places of flights are among them. What the cursor has passed is dropped.
- A cursor can only be too low: then QoS 1 messages are sent again, and QoS 2 messages are not, as
  their places are in ``delivered``. UNSENT of a place that the cursor has passed pins it there.
- Entries of a run other than the whole record's are ignored: the session has moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from motelog.gateway.state.records import SessionRecord
from motelog.gateway.state.stored import (
    FiltersChange,
    FlightState,
    Mark,
    MarkKind,
    Progress,
    Received,
    StoredFilter,
    StoredFlight,
    StoredSession,
)

#: The run of a session without a connection.
AWAY: Final = 0

#: A queue's name, and a queue offset.
Place: TypeAlias = tuple[str, int]


class Position(NamedTuple):
    """A live position, and the places in the topic of the ticks that wrote it last and first."""

    queue_offset: int
    at: int
    first_at: int


class SessionState(msgspec.Struct, frozen=True):
    """One session, according to its records so far.

    ``session`` is the last whole record with later flights, received identifiers and delivered
    places; its cursors are still those of the record. ``at`` is the record's place, ``run`` the run
    that wrote it, or AWAY: then only whole records follow. ``pinned`` has the cursors that no
    position moves. ``has_progress``: a Progress entry has come since the record. ``is_claimed``:
    the run got the session by a claim, so a run without a claim cannot take the session from it.
    """

    session: StoredSession
    run: int
    at: int
    pinned: dict[str, int] = {}
    has_progress: bool = False
    is_claimed: bool = False

    def cursor(self, queue: str, positions: Mapping[str, Position]) -> int:
        """Return where the session continues in one queue."""
        pinned = self.pinned.get(queue)
        if pinned is not None:
            return pinned
        cursor = self.session.cursors.get(queue, 0)
        if self.session.left_ms is None:
            position = positions.get(queue)
            if position is not None and (self.has_progress or position.at > self.at):
                return max(cursor, position.queue_offset)
        return cursor

    def as_of_now(
        self, positions: Mapping[str, Position], *, left_ms: int | None = None
    ) -> StoredSession:
        """Return the session with its present cursors; ``left_ms`` if its run is over."""
        session = self.session
        if session.left_ms is not None and not (session.delivered or session.inflight):
            return session  # most sessions that are away
        cursors = session.cursors
        if session.left_ms is None:
            names = dict.fromkeys(cursors)
            names.update(dict.fromkeys(self.pinned))
            names.update(dict.fromkeys(_made_since(self.at, positions)))
            cursors = {name: self.cursor(name, positions) for name in names}
        return msgspec.structs.replace(
            session,
            left_ms=session.left_ms if session.left_ms is not None else left_ms,
            cursors=cursors,
            delivered=self.not_passed(self.places(), positions),
        )

    def with_progress(self, entry: Progress, positions: Mapping[str, Position]) -> SessionState:
        """Return the state after an entry of a tick."""
        cursors = self.session.cursors
        if freed := self.freed(entry.cursors):
            cursors = cursors | freed
        changed = msgspec.structs.replace(
            self,
            session=msgspec.structs.replace(
                self.session, cursors=cursors, inflight=entry.inflight, replays=entry.replays
            ),
            pinned=entry.cursors,
            has_progress=True,
        )
        delivered = changed.not_passed(changed.places(), positions)
        session = msgspec.structs.replace(changed.session, delivered=delivered)
        return msgspec.structs.replace(changed, session=session)

    def freed(self, pinned: Mapping[str, int]) -> dict[str, int]:
        """Return the cursors that are pinned, and are not in ``pinned``."""
        cursors = self.session.cursors
        return {
            queue: max(cursor, cursors.get(queue, 0))
            for queue, cursor in self.pinned.items()
            if queue not in pinned
        }

    def places(self) -> dict[Place, None]:
        """Return the delivered places, including those of flights."""
        places = dict.fromkeys(self.session.delivered)
        places.update(((f.queue, f.queue_offset), None) for f in self.session.inflight)
        return places

    def not_passed(
        self, places: Iterable[Place], positions: Mapping[str, Position]
    ) -> tuple[Place, ...]:
        """Return those of ``places`` that the cursor has not passed."""
        cursors: dict[str, int] = {}
        found = []
        for place in places:
            queue = place[0]
            cursor = cursors.get(queue)
            if cursor is None:
                cursor = cursors[queue] = self.cursor(queue, positions)
            if place[1] >= cursor:
                found.append(place)
        return tuple(found)


class Changing:
    """A state that marks and new filters change, each at constant cost whatever its size.

    It must not be changed after ``state``.
    """

    __slots__ = ("_cursors", "_delivered", "_filters", "_flights", "_received", "_state")

    def __init__(self, state: SessionState) -> None:
        session = state.session
        self._state = state
        self._filters: dict[str, StoredFilter] | None = None
        self._cursors: dict[str, int] = {}
        self._flights = {flight.packet_id: flight for flight in session.inflight}
        self._received = {received.packet_id: received for received in session.received}
        self._delivered = state.places()

    @property
    def run(self) -> int:
        """The run of the session, as in SessionState."""
        return self._state.run

    def take(self, mark: Mark, positions: Mapping[str, Position]) -> None:
        """Change the state by one step of a QoS 2 exchange."""
        packet_id, place = mark.packet_id, (mark.queue, mark.queue_offset)
        match mark.kind:
            case MarkKind.RECEIVED:
                self._received.pop(packet_id, None)
                self._received[packet_id] = Received(packet_id, *place, mark.taken_ms)
            case MarkKind.FORGOTTEN:
                self._received.pop(packet_id, None)
            case MarkKind.SENT:
                # The identifier was free: its previous message is at the client.
                self._flights.pop(packet_id, None)
                self._flights[packet_id] = StoredFlight(packet_id, *place, 2)
                self._delivered[place] = None
            case MarkKind.UNSENT:
                self._flights.pop(packet_id, None)
                self._delivered.pop(place, None)
                state = self._state
                if state.cursor(mark.queue, positions) > mark.queue_offset:
                    pinned = state.pinned | {mark.queue: mark.queue_offset}
                    self._state = msgspec.structs.replace(state, pinned=pinned)
            case MarkKind.RELEASED:
                flight = self._flights.get(packet_id)
                if flight is not None:
                    released = msgspec.structs.replace(flight, state=FlightState.RELEASED)
                    self._flights[packet_id] = released
            case MarkKind.COMPLETED:
                self._flights.pop(packet_id, None)

    def take_filters(self, change: FiltersChange) -> None:
        """Change the state by a SUBSCRIBE or UNSUBSCRIBE."""
        session, progress = self._state.session, change.progress
        filters = self._filters
        if filters is None:
            filters = self._filters = {one.topic_filter: one for one in session.filters}
            self._cursors = session.cursors.copy()
        self._cursors |= self._state.freed(progress.cursors)
        for topic_filter in change.removed:
            filters.pop(topic_filter, None)
        filters.update((one.topic_filter, one) for one in change.filters)
        self._cursors.update(change.cursors)
        session = msgspec.structs.replace(session, cursors=self._cursors, replays=progress.replays)
        self._state = msgspec.structs.replace(
            self._state, session=session, pinned=progress.cursors, has_progress=True
        )
        self._flights = {flight.packet_id: flight for flight in progress.inflight}
        self._delivered.update(((f.queue, f.queue_offset), None) for f in progress.inflight)

    def state(self, positions: Mapping[str, Position]) -> SessionState:
        """Return the state after the changes so far."""
        state = self._state
        filters = self._filters
        session = msgspec.structs.replace(
            state.session,
            filters=state.session.filters if filters is None else tuple(filters.values()),
            inflight=tuple(self._flights.values()),
            received=tuple(self._received.values()),
            delivered=state.not_passed(self._delivered, positions),
        )
        return msgspec.structs.replace(state, session=session)


def state_of(record: SessionRecord, at: int) -> SessionState:
    """Return the state after a whole record at ``at``."""
    is_connected = record.session.left_ms is None
    return SessionState(
        record.session,
        record.run if is_connected else AWAY,
        at,
        is_claimed=is_connected and record.claim > 0,
    )


def move(
    positions: dict[str, Position], left: Iterable[str], moved: Mapping[str, int], at: int
) -> None:
    """Record the live positions of the tick at ``at``, and the queues that it has left."""
    for queue in left:
        positions.pop(queue, None)
    for queue, queue_offset in moved.items():
        known = positions.get(queue)
        positions[queue] = Position(queue_offset, at, known.first_at if known is not None else at)


def _made_since(at: int, positions: Mapping[str, Position]) -> Iterator[str]:
    return (queue for queue, position in positions.items() if position.first_at > at)
