"""Receivers that lag: each is served from the log at its own cursor until it is at the tail.

Owns: how cursors advance, which receiver is served next, what one receiver is sent.
Must not touch: the live positions (``watched``), subscriptions.
Invariants: a receiver with a cursor for a queue gets nothing of that queue from the live path, so
that it receives in the queue's order. Nothing is sent beyond its window or its output's mark.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.6, 4.9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from motelog.core.message import SYS_FLAG_COMPRESSED
from motelog.core.records.decode import decode_brief, inflate
from motelog.gateway.deliver.plans import (
    INFLATED_BYTES_MAX,
    TOPIC_PROPERTY,
    OutgoingMessage,
    Plans,
    encode,
    native_topic_name,
)
from motelog.gateway.deliver.watched import WatchedQueue, count_lost
from motelog.gateway.log.log_port import LogPort, LogRead, Waiting
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import NO_LOCAL, QOS_MASK

#: Most records, and their bytes, that one lagging receiver is served before the next one.
CATCH_UP_COUNT_MAX: Final = 128
CATCH_UP_BYTES_MAX: Final = 262_144


class CatchUp:
    """The lagging receivers of one gateway; ``serve`` sends one slice to each that can go on."""

    def __init__(
        self, log: LogPort, plans: Plans, metrics: GatewayMetrics, *, wake: Callable[[], None]
    ) -> None:
        self._log_port = log
        self._plans = plans
        self._metrics = metrics
        self._wake = wake
        #: Receivers that have room again and wait for ``serve``.
        self.returning: dict[Session, None] = {}
        #: Cursor -> what the log returned for its last read, which is tried again.
        self._waited: dict[tuple[Session, WatchedQueue], Waiting] = {}
        #: Cursors that wait for the log now.
        self._waiting: set[tuple[Session, WatchedQueue]] = set()

    def serve(self, now_ms: int) -> None:
        """Serve one slice to each of ``returning``; receivers that can go on return to it."""
        returning, self.returning = self.returning, {}
        for session in returning:
            if session.lagging and session.connection is not None:
                self._serve_lagging(session, now_ms)

    def acknowledged(self, session: Session) -> None:
        """Note that ``session`` has room in its window or socket again."""
        if session.lagging:
            self.returning[session] = None

    def forget(self, session: Session) -> None:
        """Drop the cursors of a session that has ended."""
        if session.lagging is not None:
            for queue in session.lagging:
                self._waited.pop((session, queue), None)
            session.lagging = None
            self._metrics.receivers_lagging_now -= 1
        self.returning.pop(session, None)

    def lag(self, session: Session, queue: WatchedQueue, queue_offset: int) -> None:
        """Have a receiver go on at ``queue_offset`` when it has room again."""
        if session.lagging is None:
            session.lagging = {}
            self._metrics.receivers_lagging_now += 1
        session.lagging[queue] = queue_offset

    def _serve_lagging(self, session: Session, now_ms: int) -> None:
        """Read on for one receiver, one slice of each queue it lags in."""
        assert session.lagging is not None
        for queue, queue_offset in list(session.lagging.items()):
            queue_offset, is_blocked = self._read_on(session, queue, queue_offset, now_ms)
            if queue_offset >= queue.next_offset:
                del session.lagging[queue]
            else:
                session.lagging[queue] = queue_offset
                if not is_blocked:
                    self.returning[session] = None
        if not session.lagging:
            self.forget(session)

    def _read_on(
        self, session: Session, queue: WatchedQueue, queue_offset: int, now_ms: int
    ) -> tuple[int, bool]:
        """Return the cursor after one slice, and whether it has to wait.

        It waits for the client, whose window or socket is full, or for the log.
        """
        cursor = session, queue
        if cursor in self._waiting:
            return queue_offset, True
        read = self._log_port.read(
            queue.handle,
            queue_offset,
            count_max=CATCH_UP_COUNT_MAX,
            bytes_max=CATCH_UP_BYTES_MAX,
            waited=self._waited.get(cursor),
        )
        if not isinstance(read, LogRead):
            self._waited[cursor] = read
            if not self._log_port.when_at_hand(read, partial(self._at_hand, *cursor)):
                return queue_offset, False
            self._waiting.add(cursor)
            return queue_offset, True
        self._waited.pop(cursor, None)
        if read.begin_offset > queue_offset:
            count_lost(self._metrics, queue, queue_offset, read.begin_offset)
        plans = self._plans.by_name
        for record in decode_brief(read.records, TOPIC_PROPERTY):
            if record[0] >= queue.next_offset:
                return queue.next_offset, False
            name = record[1] or native_topic_name(record)
            plan = plans[name] if name in plans else self._plans.make(name)
            options = plan.matches.get(session) if plan is not None else None
            if options is None:
                continue
            body = record[4]
            if record[5] & SYS_FLAG_COMPRESSED:
                inflated = inflate(body, INFLATED_BYTES_MAX)
                if inflated is None:
                    self._metrics.messages_undeliverable += 1
                    continue
                body = inflated
            message = OutgoingMessage(record, name, body, now_ms)
            if not self.send_one(session, options, message):
                return record[0], True
        return max(read.next_offset, queue_offset), False

    def _at_hand(self, session: Session, queue: WatchedQueue) -> None:
        self._waiting.remove((session, queue))
        if session.lagging and queue in session.lagging:
            self.returning[session] = None
            self._wake()

    def send_one(self, session: Session, options: int, message: OutgoingMessage) -> bool:
        """Send, or drop by a rule; return False if the message must wait for window or socket."""
        if message.expiry:
            self._metrics.messages_expired += 1
            return True
        if options & NO_LOCAL and message.client_id == session.client_id:
            return True  # [MQTT-3.8.3-3]
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        qos = min(message.qos, options & QOS_MASK)
        first_byte = 0x32 if qos else 0x30
        packet, number_at = encode(
            message.name, message.body, first_byte, connection.version, message.properties
        )
        if len(packet) > connection.packet_bytes_max:
            self._metrics.messages_dropped_too_large += 1  # [MQTT-3.1.2-25]
            return True
        if not qos:
            dropped = len(connection.output.fan_out(packet, [connection.number]))
            self._metrics.messages_dropped_qos0 += dropped
            self._metrics.messages_delivered += 1 - dropped
            return True
        packet_id = session.inflight.allocate(None)
        if not packet_id:
            return False
        receiver = (connection.number, packet_id)
        if connection.output.send_numbered(packet, number_at, [receiver]):
            session.inflight.ack(packet_id)
            return False
        self._metrics.messages_delivered += 1
        return True
