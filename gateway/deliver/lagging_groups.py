"""Groups of shared subscriptions that lag: where they are in their queues, and how they catch up.

Owns: the cursors of groups that lag, the order in which groups are served. Must not touch: which
groups there are (``shares``), which member gets a message (``handing``).
Invariants: while no member has room the group lags, so that each member receives in the queue's
order. Messages that a member gave back are sent before any others.
Spec: MQTT 5.0 section 4.8.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from motelog.core.records.decode import decode_brief
from motelog.gateway.deliver.handing import Had, Handing
from motelog.gateway.deliver.outgoing import native_topic_name
from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues, count_lost
from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle
from motelog.gateway.log.reads import Reads
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.mqtt.errors import MalformedPacketError, TopicNameError
from motelog.gateway.mqtt.topics import check_topic_name, matches
from motelog.gateway.sessions.groups import Group
from motelog.gateway.sessions.inflight import read_flight
from motelog.gateway.sessions.session import Session

#: Records that a lagging group is served before it is the others' turn, if there is room.
SERVE_COUNT_MAX: Final = 1024
SERVE_BYTES_MAX: Final = 1_048_576
#: Messages given back are read together if their queue offsets span at most this many records.
FRONT_SPAN: Final = 128


class LaggingGroups:
    """The groups of one gateway that are not at the live positions of all their queues."""

    def __init__(
        self,
        log: LogPort,
        queues: WatchedQueues,
        handing: Handing,
        *,
        had: Had,
        wake: Callable[[], None],
    ) -> None:
        """``had`` has the packet identifiers of messages that members gave back."""
        self._log_port = log
        self._queues = queues
        self._handing = handing
        self._sender = handing.sender
        self._metrics = handing.metrics
        self._had = had
        self._wake = wake
        #: Queue -> groups that are at its live position and begin after it.
        self.early: dict[WatchedQueue, dict[Group, None]] = {}
        #: Groups that can go on and wait for ``serve``.
        self.returning: dict[Group, None] = {}
        #: Sessions with room again, whose groups wait for ``serve``.
        self.roomy: dict[Session, None] = {}
        self._reads: Reads[Group] = Reads(log, read_again=self._read_again)

    def go_on(self, group: Group) -> None:
        """Note that a member may have room: one is new, or one has given messages back."""
        if group.is_behind:
            self.returning[group] = None
            self._wake()

    def has_room(self, session: Session) -> None:
        """Note that a session has room in its window or socket again."""
        if session.has_particulars and session.particulars.awaiting:
            self.roomy[session] = None

    def forget(self, group: Group) -> None:
        """Forget a group that has ended."""
        for queue in list(group.lagging or ()):
            self.reached(group, queue)
        self.returning.pop(group, None)
        self._reads.forget(group)

    def serve(self, now_ms: int) -> None:
        """Serve one slice to each of ``returning``; groups that can go on are added to it again.

        Then groups that have waited for a session's room get a slice, while there is room.
        """
        returning, self.returning = self.returning, {}
        for group in returning:
            if group.is_served:
                self._serve(group, now_ms)
        roomy, self.roomy = self.roomy, {}
        for session in roomy:
            awaiting = session.particulars.awaiting
            # Groups that get nothing wait again, after the others: each is served once.
            for _ in range(len(awaiting)):
                if not (awaiting and session.inflight.room):
                    break
                group = next(iter(awaiting))
                del awaiting[group]
                if group.is_behind and group.is_served:
                    self._serve(group, now_ms)

    def lag(self, group: Group, queue: WatchedQueue, queue_offset: int) -> None:
        """Let a group continue at ``queue_offset`` when a member has room again."""
        if group.lagging is None:
            group.lagging = {}
            self._metrics.receivers_lagging_now += 1
        group.lagging[queue] = queue_offset
        part = group.parts[self._queues.parts[queue.number]]
        if part.is_stored:
            self._sender.note_change(part)

    def reached(self, group: Group, queue: WatchedQueue) -> None:
        """Let a group get ``queue`` from the live path, or not at all."""
        assert group.lagging is not None
        del group.lagging[queue]
        group.reached(queue)
        self.early.get(queue, {}).pop(group, None)
        if not group.lagging:
            group.lagging = None
            self._metrics.receivers_lagging_now -= 1

    def _arrived(self, group: Group, queue: WatchedQueue) -> None:
        """Note that a group is at the live position; it waits there if it begins later.

        Otherwise the live path would hand out messages that another gateway handed out before.
        """
        begin = group.since.get(queue, 0)
        if begin > queue.next_offset:
            early = self.early.setdefault(queue, {})
            tail = (
                None
                if group in early
                else self._log_port.tail(queue.handle, partial(self._tail_found, group, queue))
            )
            # If the log has lost its end, new messages will take those offsets.
            if tail is None or begin <= tail:
                early[group] = None
                return
        self.reached(group, queue)

    def _tail_found(self, group: Group, queue: WatchedQueue, tail: int) -> None:
        if group.since.get(queue, 0) > tail:
            group.since[queue] = tail
            self.early.get(queue, {}).pop(group, None)
            self.go_on(group)

    def live_moved(self, queue: WatchedQueue) -> None:
        """Resume the groups that have waited for the live position of a queue to move."""
        self.returning.update(self.early.pop(queue, {}))

    def _serve(self, group: Group, now_ms: int) -> None:
        """Hand out messages given back, then a slice of each queue in which the group lags."""
        has_room = self._serve_front(group, now_ms) and all(
            self._serve_queue(group, queue, now_ms)
            for queue in list(group.lagging or ())
            if queue.is_known
        )
        if not has_room:
            group.await_room()

    def _serve_queue(self, group: Group, queue: WatchedQueue, now_ms: int) -> bool:
        """Read on in one queue; return False if no member has room."""
        assert group.lagging is not None
        cursor = group.lagging[queue]
        if cursor >= queue.next_offset:
            self._arrived(group, queue)
            return True
        room = self._handing.room(group)
        if not room:
            return False
        count_max = min(room, SERVE_COUNT_MAX)
        read = self._read(group, queue.handle, cursor, count_max)
        if read is None:
            return True
        if read.begin_offset > cursor:
            count_lost(self._metrics, queue.name, cursor, read.begin_offset)
        end = min(max(read.next_offset, cursor), queue.next_offset)
        since = group.since.get(queue, 0)
        wanted: dict[bytes, bool] = {}
        records = []
        for record in decode_brief(read.records, TOPIC_PROPERTY):
            if not since <= record[0] < end or (queue, record[0]) in group.delivered:
                continue
            name = record[1] or native_topic_name(record)
            if name not in wanted:
                wanted[name] = _wants(group, name)
            if wanted[name]:
                records.append((name, record))
        waits = self._handing.hand_out(group, queue.number, records, now_ms)
        cursor = end if waits is None else waits
        if cursor >= queue.next_offset:
            group.lagging[queue] = cursor
            self._arrived(group, queue)
            return True
        # Move it to the end: when there is room again, another queue comes first.
        del group.lagging[queue]
        self.lag(group, queue, cursor)
        if waits is None:
            self.returning[group] = None
        return waits is None

    def _serve_front(self, group: Group, now_ms: int) -> bool:
        """Hand out the messages given back; return False if any of them must wait."""
        while group.front:
            if not self._handing.room(group):
                return False
            taken = _take_run(group)
            first = read_flight(taken[0])
            handle, queue_name = self._queues.places[first.queue_number]
            by_offset = {read_flight(flight).queue_offset: flight for flight in taken}
            begin, end = min(by_offset), max(by_offset) + 1
            read = self._read(group, handle, begin, end - begin)
            if read is None:
                for flight in taken:
                    group.give_back(flight)
                return False
            records = [
                (record[1] or native_topic_name(record), record)
                for record in decode_brief(read.records, TOPIC_PROPERTY)
                if record[0] in by_offset
            ]
            waits = self._handing.hand_out(group, first.queue_number, records, now_ms, self._had)
            # If the log has lost its end, it does not have them.
            is_stuck = read.next_offset <= begin
            tail = self._log_port.tail(handle) if is_stuck else None
            is_lost = tail is not None and tail <= begin
            for queue_offset, flight in by_offset.items():
                if queue_offset < read.begin_offset or is_lost:
                    count_lost(self._metrics, queue_name, queue_offset, queue_offset + 1)
                elif queue_offset >= (read.next_offset if waits is None else waits):
                    group.give_back(flight)
            if waits is not None or (is_stuck and not is_lost):
                return False
        return True

    def _read(
        self, group: Group, handle: QueueHandle, queue_offset: int, count_max: int
    ) -> LogRead | None:
        return self._reads.read(
            group, handle, queue_offset, count_max=count_max, bytes_max=SERVE_BYTES_MAX
        )

    def _read_again(self, group: Group) -> None:
        self.returning[group] = None
        self._wake()


def _wants(group: Group, name: bytes) -> bool:
    try:
        check_topic_name(name)
    except (TopicNameError, MalformedPacketError):
        return False  # counted by the live path
    return matches(group.topic_filter, name.decode())


def _take_run(group: Group) -> list[int]:
    """Take the first message given back, with the ones close behind it in its queue."""
    first = read_flight(group.front[0])
    taken = []
    while group.front:
        place = read_flight(group.front[0])
        if place.queue_number != first.queue_number:
            break
        if place.queue_offset >= first.queue_offset + FRONT_SPAN:
            break
        taken.append(group.take_front())
    return taken
