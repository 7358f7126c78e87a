"""Lagging receivers of one queue share a reader, which passes once for all that it picks up.

Owns: cars, their riders, the receivers that wait to be picked up; the cursor of a rider.
Must not touch: how one message is sent (``sender``), what is sent again (``catch_up``).
Invariants (``_check``): a receiver that lags in the queue rides in one car, or waits in ``ready``
with room in its window and socket, or is parked until it has room. A car passes its riders' cursors
together, so a record is read once for all of them. A queue has at most ``CARS_MAX`` cars.
Spec: MQTT 5.0 sections 4.3 and 4.6.

    records    3 4 5 6 7 8 9 ...                                    live position
    car            ^ riders: a b        picks up c here
    ready      d         c              d has to wait for another car, or for this one to end
    parked       e                      no room: PUBACK or a drained socket makes it ready

Without this, a thousand devices that reconnect would each read the messages that all have missed.
If the filters of all riders determine the tags, the log itself skips the other records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from motelog.core.records.decode import decode_brief
from motelog.gateway.deliver.offers import Offers
from motelog.gateway.deliver.outgoing import (
    BriefRecord,
    OutgoingMessage,
    native_topic_name,
)
from motelog.gateway.deliver.watched import WatchedQueue, count_lost
from motelog.gateway.log.log_port import LogPort, LogRead, Waiting
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.session import Session

#: Cars that read one queue at the same time. One slow receiver needs one.
CARS_MAX: Final = 8
#: A receiver waits for a car that is at most this many records before its cursor.
NEAR: Final = 4096
#: Maximum records of one slice, and their bytes.
SLICE_COUNT: Final = 512
SLICE_BYTES: Final = 262_144
#: Records that a slice by tags looks at, at first and at most: a car looks at more if few are
#: wanted, so that each rider gets several at once.
SLICE_COUNT_BY_TAGS: Final = 4096
LOOKS_MAX: Final = 65_536

#: Records that are collected for riders before they are offered together.
OFFERED_MAX: Final = 65_536

#: For at most FEW riders, a slice is as long as the room in their windows; its bytes are estimated
#: at BYTES_EXPECTED for each message.
FEW: Final = 8
ROOM_MIN: Final = 16
BYTES_EXPECTED: Final = 512
#: Bytes that are read ahead for a rider that fills its window again and again: a read for each
#: window would cost as much as all the rest.
AHEAD_BYTES: Final = 131_072

#: Tag hash of a record without a tag: a native producer's message may match any filter.
NO_TAG: Final = 0
#: Stands for all tags in place of tag hashes.
_ANY: Final = (None,)


class Slice(NamedTuple):
    """The records in [position, end): all of them, or at least those with one of ``tags``."""

    position: int
    end: int
    records: Sequence[BriefRecord]
    tags: AbstractSet[int] | None


class Car:
    """One pass over a queue; its riders have received everything before ``position``."""

    __slots__ = ("is_waiting", "looks", "position", "riders", "tags", "waited")

    def __init__(self, position: int) -> None:
        self.position = position
        #: How many records its next slice by tags looks at.
        self.looks = SLICE_COUNT_BY_TAGS
        #: Session -> hashes of the tags that it can want; None: any tag.
        self.riders: dict[Session, frozenset[int] | None] = {}
        #: How many riders want each tag; None counts those that want any tag.
        self.tags: dict[int | None, int] = {}
        self.waited: Waiting | None = None
        self.is_waiting = False

    def take(self, session: Session, tags: frozenset[int] | None) -> None:
        self.riders[session] = tags
        counts = self.tags
        for tag in _ANY if tags is None else tags:
            counts[tag] = counts.get(tag, 0) + 1

    def leave(self, session: Session) -> None:
        tags = self.riders.pop(session)
        counts = self.tags
        for tag in _ANY if tags is None else tags:
            count = counts[tag] - 1
            if count:
                counts[tag] = count
            else:
                del counts[tag]


class Elevator:
    """The cars of one queue, and its lagging receivers that have room."""

    def __init__(
        self,
        queue: WatchedQueue,
        log: LogPort,
        offers: Offers,
        metrics: GatewayMetrics,
        *,
        arrived: Callable[[Session, WatchedQueue], bool],
        wake: Callable[[], None],
    ) -> None:
        """``arrived`` takes off a session at the live position; False if it has to stay."""
        self._queue = queue
        self._log_port = log
        self._offers = offers
        self._arrived = arrived
        self._metrics = metrics
        self._wake = wake
        self.cars: list[Car] = []
        self._riding: dict[Session, Car] = {}
        #: Session that waits for a car -> its cursor.
        self._waiting_at: dict[Session, int] = {}
        #: Cursor -> sessions that wait there, with the tag hashes that they can want. Sessions that
        #: disconnected together share a cursor.
        self._ready: SortedDict = SortedDict()
        #: Records that were read but not offered, because the only rider had no room for them.
        self._ahead: Slice | None = None
        #: Whether there has been such a rider.
        self._is_drained = False

    # --- who rides -----------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no session rides or waits for a car."""
        return not self.cars and not self._ready

    @property
    def can_go_on(self) -> bool:
        """Whether ``run`` has work to do without waiting for the log or a client."""
        return any(not car.is_waiting for car in self.cars)

    def cursor_of(self, session: Session) -> int | None:
        """Return the cursor of a session that rides; None if it does not."""
        car = self._riding.get(session)
        return None if car is None else car.position

    def board(self, session: Session, cursor: int, tags: frozenset[int] | None) -> None:
        """Take a session that has room; ``tags`` are the tag hashes that it can want, or None."""
        if session in self._riding or session in self._waiting_at:
            return
        self._waiting_at[session] = cursor
        waiting = self._ready.get(cursor)
        if waiting is not None:
            waiting[session] = tags
            return
        self._ready[cursor] = {session: tags}
        if not any(car.position <= cursor <= car.position + NEAR for car in self.cars):
            self._start(cursor)

    def drop(self, session: Session) -> None:
        """Forget a session; the caller keeps its cursor."""
        car = self._riding.pop(session, None)
        if car is not None:
            car.leave(session)
            if car.is_waiting and not car.riders and car.waited is None:
                car.is_waiting = False  # the next ``run`` ends it
                self._wake()
            return
        cursor = self._waiting_at.pop(session, None)
        if cursor is not None:
            waiting = self._ready[cursor]
            del waiting[session]
            if not waiting:
                del self._ready[cursor]

    def _start(self, position: int) -> None:
        if len(self.cars) < CARS_MAX:
            self.cars.append(Car(position))

    def _end(self, car: Car) -> None:
        self.cars.remove(car)
        if self._ready:
            lowest = self._ready.peekitem(0)[0]
            if not any(other.position <= lowest <= other.position + NEAR for other in self.cars):
                self._start(lowest)

    def _pick_up(self, car: Car, until: int) -> dict[Session, int]:
        """Pick up the sessions whose cursors are between the car's position and ``until``.

        Return the cursors of those that are ahead of the car.
        """
        on_the_way: dict[Session, int] = {}
        for cursor in list(self._ready.irange(car.position, until)):
            for session, tags in self._ready.pop(cursor).items():
                del self._waiting_at[session]
                self._riding[session] = car
                car.take(session, tags)
                if cursor > car.position:
                    on_the_way[session] = cursor
        return on_the_way

    # --- a slice -------------------------------------------------------------------------

    def run(self, now_ms: int) -> None:
        """Let each car read one slice of the queue."""
        for car in list(self.cars):
            if not car.is_waiting:
                self._pass(car, now_ms)

    def _pass(self, car: Car, now_ms: int) -> None:
        queue = self._queue
        if car.position < queue.next_offset:
            # All sessions picked up on the way are among these, so that their tags are read.
            until = car.position + car.looks
            boarding = list(self._ready.irange(car.position, until))
            found = self._slice(car, boarding)
            if found is None:
                return
            on_the_way = self._pick_up(car, found.end)
            if len(car.riders) == 1 and not on_the_way:
                car.position = max(self._deliver_run(car, found, now_ms), car.position)
            else:
                self._deliver(car, found.records, on_the_way, now_ms)
                car.position = max(found.end, car.position)
        else:
            self._pick_up(car, car.position)
        if car.position >= queue.next_offset:
            for session in list(car.riders):
                if self._arrived(session, queue):
                    self.drop(session)
            car.is_waiting = bool(car.riders)  # for the live path
        if not car.riders:
            self._end(car)

    def look_again(self) -> None:
        """Let riders that wait at the live position ask again whether they may leave."""
        for car in self.cars:
            if car.waited is None:
                car.is_waiting = False

    def live_moved(self) -> None:
        """Resume the cars that have waited for the live position to move."""
        for car in self.cars:
            if car.position < self._queue.next_offset and car.waited is None:
                car.is_waiting = False

    def _slice(self, car: Car, boarding: Sequence[int]) -> Slice | None:
        """Return the next slice for a car; None if it has to wait for the log."""
        tags = _tags(car, [self._ready[cursor] for cursor in boarding])
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.position == car.position and ahead.tags == tags:
            return ahead
        read = self._read(car, boarding, tags)
        if read is None:
            return None
        if read.begin_offset > car.position:
            count_lost(self._metrics, self._queue.name, car.position, read.begin_offset)
        end = min(read.next_offset, self._queue.next_offset)
        records = decode_brief(read.records, TOPIC_PROPERTY)
        self._queue.note_sizes(len(read.records), len(records))
        if records and records[-1][0] >= end:
            records = [record for record in records if record[0] < end]
        return Slice(car.position, end, records, tags)

    def _read(
        self, car: Car, boarding: Sequence[int], tags: AbstractSet[int] | None
    ) -> LogRead | None:
        count_max, bytes_max = SLICE_COUNT if tags is None else car.looks, SLICE_BYTES
        room = self._room(car, boarding)
        if room is not None:
            ahead = AHEAD_BYTES if self._is_drained else 0
            bytes_max = min(bytes_max, max(room * BYTES_EXPECTED, ahead))
            if tags is None and not ahead:
                count_max = min(count_max, room)
        read = self._log_port.read(
            self._queue.handle,
            car.position,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tags,
            waited=car.waited,
        )
        if isinstance(read, LogRead):
            car.waited = None
            if tags is not None:
                is_sparse = len(read.records) < bytes_max // 2
                car.looks = min(car.looks * 2, LOOKS_MAX) if is_sparse else SLICE_COUNT_BY_TAGS
            return read
        car.waited = read

        def at_hand() -> None:
            car.is_waiting = False
            self._wake()

        car.is_waiting = self._log_port.when_at_hand(read, at_hand)
        return None

    def _room(self, car: Car, boarding: Sequence[int]) -> int | None:
        """Return about how many messages the riders can take; None if there are many riders.

        A rider that drains a queue takes one window of messages at a time: records read beyond
        these are read again.
        """
        if len(car.riders) > FEW or len(boarding) > FEW:
            return None
        sessions: list[Session] = list(car.riders)
        for cursor in boarding:
            sessions += self._ready[cursor]
        if len(sessions) > FEW:
            return None
        return ROOM_MIN + sum(session.inflight.room for session in sessions)

    def _deliver_run(self, car: Car, found: Slice, now_ms: int) -> int:
        """Offer the records of a slice to the only rider; return the car's new position."""
        [session] = car.riders
        records = found.records
        queue_offset = self._offers.offer_run(session, records, self._queue, now_ms, {})
        if queue_offset is None:
            return found.end
        rest = records[bisect_left(records, queue_offset, key=itemgetter(0)) :]
        self._ahead = found._replace(position=queue_offset, records=rest)
        self._is_drained = True
        self._park(session, queue_offset)
        return queue_offset + 1

    def _park(self, session: Session, queue_offset: int) -> None:
        """Take off a session that has no room for the record at ``queue_offset``."""
        assert session.lagging is not None, "riders lag"
        # Move it to the end: when there is room again, another queue comes first.
        del session.lagging[self._queue]
        session.lagging[self._queue] = queue_offset
        self.drop(session)

    def _deliver(
        self,
        car: Car,
        records: Sequence[BriefRecord],
        on_the_way: Mapping[Session, int],
        now_ms: int,
    ) -> None:
        """Offer records to the riders that want them; park those that have no room.

        Sessions ``on_the_way`` get the records from their cursors on. Each rider is offered all
        that it wants of the slice in one call: a call for each message would cost more than the
        message.
        """
        riders = car.riders
        wanted: dict[Session, list[BriefRecord]] = {}
        count = 0
        for record in records:
            matches = self._offers.matches(record[1] or native_topic_name(record))
            if len(riders) < len(matches):
                wanting = [session for session in riders if session in matches]
            else:
                wanting = [session for session in matches if session in riders]
            for session in wanting:
                if not on_the_way or record[0] >= on_the_way.get(session, 0):
                    wanted.setdefault(session, []).append(record)
            count += len(wanting)
            if count >= OFFERED_MAX:
                self._offer(wanted, now_ms)
                wanted.clear()
                count = 0
        self._offer(wanted, now_ms)

    def _offer(self, wanted: Mapping[Session, Sequence[BriefRecord]], now_ms: int) -> None:
        """Offer each rider the records that it wants; park those that have no room."""
        # Shared, so that a record that many riders want is decoded once.
        made: dict[int, OutgoingMessage] = {}
        for session, records in wanted.items():
            queue_offset = self._offers.offer_run(session, records, self._queue, now_ms, made)
            if queue_offset is not None:
                self._park(session, queue_offset)

    def _check(self) -> None:
        """Assert the invariants; for tests."""
        assert len(self.cars) <= CARS_MAX
        riders = [session for car in self.cars for session in car.riders]
        assert len(set(riders)) == len(riders)
        assert self._riding.keys() == set(riders)
        assert not self._riding.keys() & self._waiting_at.keys()
        waiting = [(s, at) for at, by_session in self._ready.items() for s in by_session]
        assert len(waiting) == len(self._waiting_at)
        assert dict(waiting) == self._waiting_at
        assert all(self._ready.values())
        for car in self.cars:
            wanted: Counter[int | None] = Counter()
            for tags in car.riders.values():
                wanted.update(_ANY if tags is None else tags)
            assert wanted == car.tags
        assert self.cars or not self._ready


def _tags(car: Car, boarding: Sequence[Mapping[Session, Iterable[int] | None]]) -> set[int] | None:
    """Return the tags that the riders want, and those who board here; None: any."""
    if None in car.tags:
        return None
    if any(None in by_session.values() for by_session in boarding):
        return None
    tags = {NO_TAG, *(tag for tag in car.tags if tag is not None)}
    return tags.union(*(more for by_session in boarding for more in by_session.values() if more))
