"""Receivers that lag: they are served from the log, from their cursors to the tail.

Owns: cursors, which receivers have room again, what a quota skips. Must not touch: the live
positions (``watched``), how the log is read for many (``elevator``), which records a receiver wants
(``offers``), what is sent again (``resending``).
Invariants: a receiver with a cursor for a queue gets nothing of that queue from the live path, so
that it receives in the queue's order. Messages that were in flight before a reconnect are sent
again before anything else. Nothing is sent beyond a receiver's window or its output's mark.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.4, 4.6, 4.9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from motelog.gateway.deliver.elevator import Elevator
from motelog.gateway.deliver.moves import Moves
from motelog.gateway.deliver.offers import Offers
from motelog.gateway.deliver.replay import Replays
from motelog.gateway.deliver.resending import Resending
from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.sessions.session import Session


class Quota(NamedTuple):
    """How much may wait for one session that lags; 0: no limit except the log's retention.

    ``messages_max`` and ``bytes_max`` are for each queue. Without ``offline_qos_0``, messages at
    QoS 0 do not wait for a session that is away.
    """

    messages_max: int
    age_max_ms: int
    bytes_max: int = 0
    offline_qos_0: bool = True

    def begin(self, queue: WatchedQueue) -> int:
        """Return the first queue offset that may wait for the session; 0 if all may."""
        counts = [self.messages_max] if self.messages_max else []
        if self.bytes_max and queue.record_bytes:
            counts.append(max(1, int(self.bytes_max / queue.record_bytes)))
        return queue.next_offset - min(counts) if counts else 0


class CatchUp:
    """The lagging receivers of one gateway; ``serve`` sends one slice to each that can go on."""

    def __init__(
        self,
        log: LogPort,
        queues: WatchedQueues,
        moves: Moves,
        offers: Offers,
        replays: Replays,
        *,
        resent: Callable[[Session], None],
        quota: Quota,
        wake: Callable[[], None],
    ) -> None:
        self._log_port = log
        self._queues = queues
        self._moves = moves
        self._offers = offers
        self._sender = offers.sender
        self._replays = replays
        self._metrics = offers.metrics
        self._resent = resent
        self._quota = quota
        self._wake = wake
        #: Queue whose tail was requested from a broker -> the sessions of the next request.
        self._asking: dict[WatchedQueue, list[Session]] = {}
        #: Receivers that have room again and wait for ``serve``.
        self.returning: dict[Session, None] = {}
        self.elevators: dict[WatchedQueue, Elevator] = {}
        #: Elevators of queues whose receivers have no room for the moment: the elevator of a
        #: receiver that drains a queue alone stops after each window.
        self._idle: dict[WatchedQueue, Elevator] = {}
        self._resending = Resending(log, queues, offers, read_again=self._go_on)

    def limit(self, quota: Quota) -> None:
        """Use another quota from now on."""
        self._quota = quota
        self._offers.aged_ms = 0

    def serve(self, now_ms: int) -> None:
        """Pick up the sessions in ``returning`` and let each elevator read one slice."""
        if self._quota.age_max_ms:
            self._offers.aged_ms = now_ms - self._quota.age_max_ms
        self._offers.begin_slice()
        returning, self.returning = self.returning, {}
        for session in returning:
            if session.connection is None:
                continue
            if session.has_particulars and session.particulars.resend:
                if not session.particulars.is_unsure and self._resending.send(session, now_ms):
                    self.returning[session] = None
                    self._resent(session)
                continue
            # Retained messages go first: their number is finite, and they share the window.
            if session.has_replays and self._replays.serve(session, now_ms):
                self.returning[session] = None
            if session.inflight.is_half_free:
                self._board(session)
        for queue, elevator in list(self.elevators.items()):
            elevator.run(now_ms)
            if elevator.is_idle:
                del self.elevators[queue]
                if queue.lagging:
                    self._idle[queue] = elevator
        self._sender.send_batches()

    def acknowledged(self, session: Session) -> bool:
        """Note that ``session`` has room in its window or socket again.

        Return whether any messages wait for it.
        """
        is_awaited = bool(session.lagging) or (
            session.has_particulars
            and bool(session.particulars.replays or session.particulars.resend)
        )
        if is_awaited:
            self.returning[session] = None
        return is_awaited

    def forget(self, session: Session) -> None:
        """Drop the cursors of a session that has lost its connection."""
        for queue in list(session.lagging or ()):
            self.reached(session, queue)
        self.returning.pop(session, None)
        self._resending.forget(session)

    def lag(self, session: Session, queue: WatchedQueue, queue_offset: int) -> None:
        """Let a receiver continue at ``queue_offset`` when it has room again."""
        if session.lagging is None:
            session.lagging = {}
            self._metrics.receivers_lagging_now += 1
        session.lagging[queue] = queue_offset
        queue.lagging.add(session)
        if session.expiry_s:
            self._sender.note_change(session)

    def resume(self, session: Session, behind: dict[WatchedQueue, int]) -> None:
        """Let a receiver that is new here continue at these queue offsets."""
        session.lagging = behind
        self._metrics.receivers_lagging_now += 1
        for queue in behind:
            queue.lagging.add(session)
        if session.expiry_s:
            self._sender.note_change(session)
        for queue in behind:
            if not self._quota.offline_qos_0:
                session.particulars.away[queue] = 0
            self.tail_known(session, queue)

    def place(self, session: Session, queue: WatchedQueue, queue_offset: int) -> None:
        """Let a session continue at the offset at which it begins in ``queue``, now known."""
        assert session.lagging is not None
        self.lag(session, queue, max(queue_offset, session.lagging[queue]))
        self.tail_known(session, queue)
        self.acknowledged(session)
        self._wake()

    def tail_known(self, session: Session, queue: WatchedQueue) -> None:
        """Note the offset up to which messages came while a session was away; apply its quota."""
        if session.has_particulars and queue in session.particulars.away and queue.is_known:
            session.particulars.away[queue] = queue.next_offset
        self.pass_over(session, queue)

    def reached(self, session: Session, queue: WatchedQueue) -> None:
        """Let a receiver get ``queue`` from the live path, or not at all."""
        assert session.lagging is not None
        del session.lagging[queue]
        queue.lagging.discard(session)
        if not queue.lagging:
            self._idle.pop(queue, None)
        elevator = self.elevators.get(queue)
        if elevator is not None:
            elevator.drop(session)
        if session.has_particulars:
            particulars = session.particulars
            particulars.away.pop(queue, None)
            for topic_filter, offsets in list(particulars.since.items()):
                offsets.pop(queue, None)
                if not offsets:
                    del particulars.since[topic_filter]
            if particulars.delivered:
                particulars.delivered = {
                    place for place in particulars.delivered if place[0] is not queue
                }
        if session.lagging:
            self.returning[session] = None  # the next queue's turn
        else:
            session.lagging = None
            self._metrics.receivers_lagging_now -= 1

    def _arrived(self, session: Session, queue: WatchedQueue) -> bool:
        """As ``reached``, unless the session must not get the records at the live position yet.

        A subscription may begin at the tail, and a session may continue where another gateway left
        off: from the live path it would get the records before that.
        """
        if session.has_particulars and session.particulars.since:
            begin = max(at.get(queue, 0) for at in session.particulars.since.values())
            if begin > queue.next_offset:
                tail = self._log_port.tail(queue.handle)
                if tail is None:
                    self._ask_tail(queue, [session])
                    return False
                if begin <= tail:
                    return False
                # The log has lost its end, and new messages will take those offsets.
        self.reached(session, queue)
        return True

    def _ask_tail(self, queue: WatchedQueue, sessions: list[Session]) -> None:
        """Ask whether a broker's log ends before the offsets at which these sessions continue.

        One request for ``queue`` is under way at a time; later sessions wait for the next one.
        """
        waiting = self._asking.get(queue)
        if waiting is not None:
            waiting += sessions
            return
        self._asking[queue] = []
        self._log_port.tail(queue.handle, partial(self._tail_found, queue, sessions))

    def _tail_found(self, queue: WatchedQueue, sessions: list[Session], tail: int) -> None:
        is_lost = False
        for session in sessions:
            begins = session.particulars.since.values() if session.has_particulars else ()
            for offsets in begins:
                if offsets.get(queue, 0) > tail:
                    offsets[queue] = tail
                    is_lost = True
        if is_lost:
            elevator = self.elevators.get(queue)
            if elevator is not None:
                elevator.look_again()
            self._wake()
        waiting = self._asking.pop(queue)
        if waiting:
            self._ask_tail(queue, waiting)

    def live_moved(self, queue: WatchedQueue) -> None:
        """Resume the receivers that lag in a queue and wait for its live position to move."""
        elevator = self.elevators.get(queue)
        if elevator is not None:
            elevator.live_moved()

    def cursor_of(self, session: Session, queue: WatchedQueue) -> int:
        """Return the offset from which a session that lags in ``queue`` has to read on."""
        assert session.lagging is not None
        elevator = self.elevators.get(queue)
        riding = elevator.cursor_of(session) if elevator is not None else None
        return session.lagging[queue] if riding is None else riding

    @property
    def has_more(self) -> bool:
        """Whether ``serve`` has work to do without waiting for the log or a client."""
        if self.returning or not self.elevators:
            return bool(self.returning)
        return any(e.can_go_on for e in self.elevators.values())

    # --- quotas --------------------------------------------------------------------------

    def keep_to_quota(self) -> None:
        """Skip the messages beyond the quota of messages or bytes, for all that lag."""
        if self._quota.messages_max or self._quota.bytes_max:
            for queue in self._queues.by_handle.values():
                for session in list(queue.lagging):
                    self.pass_over(session, queue)

    def pass_over(self, session: Session, queue: WatchedQueue) -> None:
        """Let a session that lags in ``queue`` continue where its quota begins.

        The records in between are not read: some of them may be for other sessions.
        """
        begin = self._quota.begin(queue)
        if begin <= 0 or not queue.is_known or _is_unplaced(session, queue):
            return
        cursor = self.cursor_of(session, queue)
        if cursor >= begin:
            return
        elevator = self.elevators.get(queue)
        if elevator is not None:
            elevator.drop(session)
        assert session.lagging is not None
        session.lagging[queue] = begin
        self._offers.count_dropped(session, begin - cursor)
        if session.expiry_s:
            self._sender.note_change(session)
        self.acknowledged(session)

    def _board(self, session: Session) -> None:
        """Board a session that has room in the queues in which it lags.

        Only in as many queues as fill its room, because each of them reads for it. A queue in which
        it wants only some tags is expected to bring one message.
        """
        if not session.lagging:
            return
        tags = self._offers.tags_of(session)
        room = session.inflight.room
        for queue, cursor in session.lagging.items():
            # ``Delivery`` serves the other queues when their tails are known.
            if not queue.is_known or _is_unplaced(session, queue):
                continue
            if room <= 0:
                break
            if self._moves.is_early(session.lagging, queue, cursor):
                continue
            room -= max(1, queue.next_offset - cursor) if tags is None else 1
            elevator = self.elevators.get(queue)
            if elevator is None:
                elevator = self._idle.pop(queue, None) or Elevator(
                    queue,
                    self._log_port,
                    self._offers,
                    self._metrics,
                    arrived=self._arrived,
                    wake=self._wake,
                )
                self.elevators[queue] = elevator
            elevator.board(session, cursor, tags)

    def filters_changed(self, session: Session) -> None:
        """Read on for a session that lags, with the tags that it can want now."""
        for queue in session.lagging or ():
            elevator = self.elevators.get(queue)
            if elevator is not None:
                assert session.lagging is not None
                session.lagging[queue] = self.cursor_of(session, queue)
                elevator.drop(session)
        self.acknowledged(session)

    def _go_on(self, session: Session) -> None:
        self.acknowledged(session)
        self._wake()


def _is_unplaced(session: Session, queue: WatchedQueue) -> bool:
    return session.has_particulars and queue in session.particulars.unplaced
