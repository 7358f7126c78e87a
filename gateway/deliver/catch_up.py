"""Receivers that lag: each is served from the log at its own cursor until it is at the tail.

Owns: how cursors advance, which receiver is served next, what is sent again after a reconnect.
Must not touch: the live positions (``watched``), subscriptions, how one message is sent
(``sender``).
Invariants: a receiver with a cursor for a queue gets nothing of that queue from the live path, so
that it receives in the queue's order. What was in flight before a reconnect is sent again before
anything else. Nothing is sent beyond its window or its output's mark.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.4, 4.6, 4.9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from motelog.core.records.decode import decode_brief
from motelog.gateway.deliver.outgoing import TOPIC_PROPERTY, OutgoingMessage, native_topic_name
from motelog.gateway.deliver.plans import Plans
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues, count_lost
from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle, Waiting
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.topics import matches
from motelog.gateway.sessions.inflight import read_flight
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree, merge_options

#: Most records, and their bytes, that one lagging receiver is served before the next one.
CATCH_UP_COUNT_MAX: Final = 128
CATCH_UP_BYTES_MAX: Final = 262_144


class CatchUp:
    """The lagging receivers of one gateway; ``serve`` sends one slice to each that can go on."""

    def __init__(
        self,
        log: LogPort,
        queues: WatchedQueues,
        plans: Plans,
        subscriptions: SubscriptionTree[Session],
        sender: Sender,
        metrics: GatewayMetrics,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._log_port = log
        self._queues = queues
        self._plans = plans
        self._subscriptions = subscriptions
        self._sender = sender
        self._metrics = metrics
        self._wake = wake
        #: Receivers that have room again and wait for ``serve``.
        self.returning: dict[Session, None] = {}
        #: (session, queue) -> what the log returned for its last read, which is tried again.
        self._waited: dict[tuple[Session, QueueHandle], Waiting] = {}
        #: Reads that wait for the log now.
        self._waiting: set[tuple[Session, QueueHandle]] = set()

    def serve(self, now_ms: int) -> None:
        """Serve one slice to each of ``returning``; receivers that can go on return to it."""
        returning, self.returning = self.returning, {}
        for session in returning:
            if session.connection is None:
                continue
            if session.has_particulars and session.particulars.resend:
                self._send_again(session, now_ms)
            elif session.lagging:
                self._serve_lagging(session, now_ms)

    def acknowledged(self, session: Session) -> None:
        """Note that ``session`` has room in its window or socket again."""
        if session.lagging or (session.has_particulars and session.particulars.resend):
            self.returning[session] = None

    def forget(self, session: Session) -> None:
        """Drop the cursors of a session that has lost its connection."""
        for queue in list(session.lagging or ()):
            self.reached(session, queue)
        self.returning.pop(session, None)

    def lag(self, session: Session, queue: WatchedQueue, queue_offset: int) -> None:
        """Have a receiver go on at ``queue_offset`` when it has room again."""
        if session.lagging is None:
            session.lagging = {}
            self._metrics.receivers_lagging_now += 1
        session.lagging[queue] = queue_offset
        queue.lagging.add(session)
        if session.expiry_s:
            self._sender.note_change(session)

    def reached(self, session: Session, queue: WatchedQueue) -> None:
        """Have a receiver get ``queue`` from the live path, or not at all."""
        assert session.lagging is not None
        del session.lagging[queue]
        queue.lagging.discard(session)
        self._waited.pop((session, queue.handle), None)
        if session.has_particulars:
            particulars = session.particulars
            for topic_filter, offsets in list(particulars.since.items()):
                offsets.pop(queue, None)
                if not offsets:
                    del particulars.since[topic_filter]
            if particulars.delivered:
                particulars.delivered = {
                    place for place in particulars.delivered if place[0] is not queue
                }
        if not session.lagging:
            session.lagging = None
            self._metrics.receivers_lagging_now -= 1

    # --- a slice -------------------------------------------------------------------------

    def _serve_lagging(self, session: Session, now_ms: int) -> None:
        """Read on for one receiver, one slice of each queue it lags in."""
        assert session.lagging is not None
        for queue, queue_offset in list(session.lagging.items()):
            if not queue.is_known:
                continue  # ``Delivery`` has it served when the tail is known
            queue_offset, is_blocked = self._read_on(session, queue, queue_offset, now_ms)
            if queue_offset >= queue.next_offset:
                self.reached(session, queue)
            else:
                session.lagging[queue] = queue_offset
                if not is_blocked:
                    self.returning[session] = None

    def _read_on(
        self, session: Session, queue: WatchedQueue, queue_offset: int, now_ms: int
    ) -> tuple[int, bool]:
        """Return the cursor after one slice, and whether it has to wait.

        It waits for the client, whose window or socket is full, or for the log.
        """
        if queue_offset >= queue.next_offset:
            return queue_offset, False
        read = self._read(session, queue.handle, queue_offset, CATCH_UP_COUNT_MAX)
        if read is None:
            return queue_offset, (session, queue.handle) in self._waiting
        if read.begin_offset > queue_offset:
            count_lost(self._metrics, queue.name, queue_offset, read.begin_offset)
        for record in decode_brief(read.records, TOPIC_PROPERTY):
            if record[0] >= queue.next_offset:
                return queue.next_offset, False
            name = record[1] or native_topic_name(record)
            options = self._options(session, name, queue, record[0])
            if options is None:
                continue
            message = OutgoingMessage(record, name, now_ms)
            if not self._sender.send_one(session, options, message, queue.number, record[0]):
                return record[0], True
        return max(read.next_offset, queue_offset), False

    def _options(
        self, session: Session, name: bytes, queue: WatchedQueue, queue_offset: int
    ) -> int | None:
        """Return the options by which a session gets a record, None if it does not want it."""
        if session.has_particulars:
            particulars = session.particulars
            if (queue, queue_offset) in particulars.delivered:
                return None
            if particulars.since:
                return self._options_since(session, name, queue, queue_offset)
        return self._planned_options(session, name)

    def _planned_options(self, session: Session, name: bytes) -> int | None:
        plans = self._plans.by_name
        plan = plans[name] if name in plans else self._plans.make(name)
        return plan.matches.get(session) if plan is not None else None

    def _options_since(
        self, session: Session, name: bytes, queue: WatchedQueue, queue_offset: int
    ) -> int | None:
        """Like ``_options``, for a session with subscriptions that are younger than a cursor."""
        since = session.particulars.since
        if queue_offset < since.get("", {}).get(queue, 0):
            return None
        merged: int | None = None
        topic_name = name.decode(errors="replace")
        for topic_filter in session.filters:
            if queue_offset < since.get(topic_filter, {}).get(queue, 0):
                continue
            if matches(topic_filter, topic_name):
                options = self._subscriptions.options(topic_filter, session)
                assert options is not None, "a session's filters are in the tree"
                merged = options if merged is None else merge_options(merged, options)
        return merged

    # --- reads that may wait -------------------------------------------------------------

    def _read(
        self, session: Session, handle: QueueHandle, queue_offset: int, count_max: int
    ) -> LogRead | None:
        """Read, or None if the records are not at hand: then the session is served again later."""
        cursor = session, handle
        if cursor in self._waiting:
            return None
        read = self._log_port.read(
            handle,
            queue_offset,
            count_max=count_max,
            bytes_max=CATCH_UP_BYTES_MAX,
            waited=self._waited.get(cursor),
        )
        if isinstance(read, LogRead):
            self._waited.pop(cursor, None)
            return read
        self._waited[cursor] = read
        if self._log_port.when_at_hand(read, partial(self._at_hand, *cursor)):
            self._waiting.add(cursor)
        else:
            self.returning[session] = None
        return None

    def _at_hand(self, session: Session, handle: QueueHandle) -> None:
        self._waiting.remove((session, handle))
        if session.connection is None:
            self._waited.pop((session, handle), None)
            return
        self.acknowledged(session)
        if session in self.returning:
            self._wake()

    # --- again after a reconnect ---------------------------------------------------------

    def _send_again(self, session: Session, now_ms: int) -> None:
        """Send what was in flight before the reconnect, oldest first. [MQTT-4.6.0-1]"""
        resend = session.particulars.resend
        while resend:
            packet_id = resend[0]
            flight = session.inflight.get(packet_id)
            if flight is not None:
                place = read_flight(flight)
                if place.is_released:
                    self._sender.release_again(session, packet_id)
                elif not self._send_flight(session, packet_id, flight, now_ms):
                    return
            del resend[0]
        self.returning[session] = None

    def _send_flight(self, session: Session, packet_id: int, flight: int, now_ms: int) -> bool:
        """Send one message again; return False if that must wait for the log or the socket."""
        place = read_flight(flight)
        handle, queue_name = self._queues.places[place.queue_number]
        read = self._read(session, handle, place.queue_offset, 1)
        if read is None:
            return False
        records = decode_brief(read.records, TOPIC_PROPERTY)
        if not records or records[0][0] != place.queue_offset:
            count_lost(self._metrics, queue_name, place.queue_offset, place.queue_offset + 1)
            session.inflight.ack(packet_id)
            return True
        record = records[0]
        name = record[1] or native_topic_name(record)
        message = OutgoingMessage(record, name, now_ms, was_sent=True)
        options = self._planned_options(session, name) or 0
        return self._sender.send_again(session, packet_id, options, message, place.qos)
