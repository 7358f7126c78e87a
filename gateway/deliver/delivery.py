"""From the log to subscribers: the live path and the receivers that lag behind it.

Owns: which queues are read and how far; delivery plans, one per topic name; the cursors of lagging
receivers.
Must not touch: CONNECT and SUBSCRIBE (``clients``), appends (``routes``, ``reactor_listener``).
Invariants: nothing is delivered that was not read from the log. A queue is read once for all its
receivers. A receiver with a cursor for a queue gets nothing of that queue from the live path, so
that its order is the queue's. Memory is bounded by the inflight windows and the reactor's output
marks.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.6, 4.9.

                      live                                  lagging
    grown queue -> read -> plan of the topic name -> fan out
                     window or socket full -> cursor at this record -> PUBACK or drained socket
                              ^-- still full <- read on, match, send -> at the tail: live
    What is not in memory any more is paged in elsewhere first; others go on meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from motelog.core.broker.api import NotInMemoryError, PageIns, ReadStatus
from motelog.core.message import (
    MQTT_PROPERTIES,
    MQTT_QOS,
    MQTT_TOPIC,
    SYS_FLAG_COMPRESSED,
    TAGS,
    decode_properties,
)
from motelog.core.net.reactor import Reactor
from motelog.core.records.append import QueueTail
from motelog.core.records.decode import decode_brief, inflate
from motelog.gateway.errors import MalformedPacketError, TopicNameError
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.message_properties import client_id_property, delivery_properties
from motelog.gateway.mapping.topic_mapping import TopicMapping, is_device_topic
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.topics import check_topic_name, has_wildcard
from motelog.gateway.sessions.session import PACKET_BYTES_LIMIT, Session
from motelog.gateway.sessions.subscriptions import NO_LOCAL, QOS_MASK, SubscriptionTree

_log = logging.getLogger(__name__)

#: Records of one queue that one turn of the live path takes, and their bytes.
LIVE_COUNT_MAX: Final = 2048
LIVE_BYTES_MAX: Final = 1_048_576
#: Records that one lagging receiver is served before the next one has its turn.
CATCH_UP_COUNT_MAX: Final = 128
CATCH_UP_BYTES_MAX: Final = 262_144
#: A native producer's compressed body may become at most this large for an MQTT client.
INFLATED_BYTES_MAX: Final = 4_194_304

_TOPIC_PROPERTY: Final = MQTT_TOPIC.encode()
_AT_MOST_ONCE: Final = f"{MQTT_QOS}\x010\x02".encode()
_V5_PROPERTIES: Final = f"{MQTT_PROPERTIES}\x01".encode()

#: (queue offset, MQTT topic or None, queue topic, properties, body, sys flag, store time ms, bytes)
BriefRecord = tuple[int, bytes | None, bytes, bytes, bytes, int, int, int]


class Plan:
    """Who receives a topic name, grouped by what is sent: one encoding, one call each."""

    __slots__ = ("direct", "matches", "particular", "windowed")

    def __init__(self, matches: dict[Session, int]) -> None:
        self.matches = matches
        direct: dict[int, list[int]] = {}
        windowed: dict[int, list[Session]] = {}
        #: Sessions that need a look at each message: No Local, Maximum Packet Size.
        self.particular: list[Session] = []
        for session, options in matches.items():
            if options & NO_LOCAL or session.packet_bytes_max < PACKET_BYTES_LIMIT:
                self.particular.append(session)
            elif options & QOS_MASK:
                windowed.setdefault(session.version, []).append(session)
            else:
                direct.setdefault(session.version, []).append(session.connection)
        #: (MQTT version, connections with a QoS 0 subscription or sessions with a QoS 1 one)
        self.direct = list(direct.items())
        self.windowed = list(windowed.items())


class WatchedQueue:
    """One queue that some subscription needs; ``next_offset`` is the live position.

    ``page_ins``: what was paged in for the read that is tried again; None if none is.
    """

    __slots__ = ("is_paging_in", "next_offset", "page_ins", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.is_paging_in = False
        self.page_ins: PageIns | None = None


class OutgoingMessage:
    """One record as a message, for receivers that are served one by one."""

    __slots__ = ("body", "client_id", "expiry", "name", "properties", "qos", "record")

    def __init__(self, record: BriefRecord, name: bytes, body: bytes, now_ms: int) -> None:
        properties = record[3]
        self.name = name
        self.body = body
        self.qos = 0 if properties.find(_AT_MOST_ONCE) >= 0 else 1
        self.properties: bytes | None = None
        self.expiry = False
        if properties.find(_V5_PROPERTIES) >= 0:
            block = delivery_properties(properties, store_ms=record[6], now_ms=now_ms)
            self.expiry = block is None
            self.properties = block or None
        self.client_id = client_id_property(properties)


class Delivery:
    """Delivers one gateway's share of the log. State changes only between awaits of its callers."""

    def __init__(
        self,
        log: LogPort,
        reactor: Reactor,
        mapping: TopicMapping,
        subscriptions: SubscriptionTree[Session],
        metrics: GatewayMetrics,
        *,
        sessions: list[Session | None],
        wake: Callable[[], None],
    ) -> None:
        self._log_port = log
        self._reactor = reactor
        self._mapping = mapping
        self._subscriptions = subscriptions
        self._metrics = metrics
        self._sessions = sessions
        self._wake = wake
        self._queues: dict[QueueTail, WatchedQueue] = {}
        #: Queue topic -> how many subscriptions name it; and how many may match any.
        self._wanted: dict[str, int] = {}
        self._wanted_any = 0
        self._grown: dict[WatchedQueue, None] = {}
        self._returning: dict[Session, None] = {}
        self._plans: dict[bytes, Plan | None] = {}
        #: Of cursors whose read is tried again, what was paged in for it, and which wait for it.
        self._page_ins: dict[tuple[Session, WatchedQueue], PageIns] = {}
        self._paging_in: set[tuple[Session, WatchedQueue]] = set()
        log.on_growth(self._on_growth)
        log.on_topic_created(self._on_topic_created)

    # --- which queues are read -----------------------------------------------------------

    def subscribe(self, topic_filter: str) -> None:
        """Read what ``topic_filter`` can match from the tail on; undone by ``unsubscribe``."""
        topics = self._mapping.queue_topics(topic_filter)
        if topics is None:
            self._wanted_any += 1
            topics = frozenset(self._log_port.topics()) if self._wanted_any == 1 else frozenset()
        else:
            for topic in topics:
                self._wanted[topic] = self._wanted.get(topic, 0) + 1
        for topic in topics:
            self._watch(topic)

    def unsubscribe(self, topic_filter: str) -> None:
        """Stop reading what only ``topic_filter`` needed."""
        topics = self._mapping.queue_topics(topic_filter)
        if topics is None:
            self._wanted_any -= 1
        else:
            for topic in topics:
                self._wanted[topic] -= 1
                if not self._wanted[topic]:
                    del self._wanted[topic]
        if not self._wanted_any and (topics is None or not topics <= self._wanted.keys()):
            self._queues = {
                tail: queue for tail, queue in self._queues.items() if queue.topic in self._wanted
            }

    def replan(self, topic_filter: str) -> None:
        """Drop the plans that a change of this filter's subscribers or options may touch."""
        if has_wildcard(topic_filter):
            self._plans.clear()
        else:
            # An exact filter matches one name, so a storm of connects leaves all other plans be.
            self._plans.pop(topic_filter.encode(), None)

    def _watch(self, topic: str) -> None:
        if not is_device_topic(topic):
            return
        for queue_id in range(self._log_port.queue_count(topic) or 0):
            tail = self._log_port.queue_tail(topic, queue_id)
            if tail not in self._queues:
                next_offset = self._log_port.max_offset(topic, queue_id)
                self._queues[tail] = WatchedQueue(topic, queue_id, next_offset)

    def _on_topic_created(self, topic: str) -> None:
        if self._wanted_any or topic in self._wanted:
            self._watch(topic)

    def _on_growth(self, tails: list[QueueTail]) -> None:
        queues = self._queues
        if queues:
            for tail in tails:
                queue = queues.get(tail)
                if queue is not None:
                    self._grown[queue] = None
            if self._grown:
                self._wake()

    # --- live ----------------------------------------------------------------------------

    def deliver(self, now_ms: int) -> bool:
        """Deliver one slice of what has grown and of what lags; return whether more is at hand."""
        if self._grown:
            grown, self._grown = self._grown, {}
            for queue in grown:
                if self._deliver_queue(queue, now_ms):
                    self._grown[queue] = None
        if self._returning:
            returning, self._returning = self._returning, {}
            for session in returning:
                if session.lagging and self._sessions[session.connection] is session:
                    self._serve_lagging(session, now_ms)
        is_more = bool(self._grown or self._returning)
        if is_more:
            self._wake()  # whoever called may not call again
        return is_more

    def _deliver_queue(self, queue: WatchedQueue, now_ms: int) -> bool:
        if queue.is_paging_in:
            return False
        page_ins = queue.page_ins
        try:
            read = self._log_port.read(
                queue.topic,
                queue.queue_id,
                queue.next_offset,
                count_max=LIVE_COUNT_MAX,
                bytes_max=LIVE_BYTES_MAX,
                may_wait=page_ins is not None and page_ins.may_wait,
            )
        except NotInMemoryError as cold:
            then = partial(self._paged_in_live, queue)
            queue.is_paging_in = self._log_port.page_in(cold.missing, then)
            if queue.is_paging_in:
                queue.page_ins = page_ins or PageIns()
                queue.page_ins.note(cold.missing)
            return not queue.is_paging_in
        queue.page_ins = None
        if read.status is ReadStatus.OFFSET_TOO_SMALL:
            self._count_lost(queue, queue.next_offset, read.min_offset)
            queue.next_offset = read.min_offset
            return True
        plans = self._plans
        for record in decode_brief(read.records, _TOPIC_PROPERTY):
            name = record[1] or native_topic_name(record)
            try:
                plan = plans[name]
            except KeyError:
                plan = self._make_plan(name)
            if plan is not None:
                self._send_live(plan, name, record, queue, now_ms)
        queue.next_offset = read.next_offset
        return read.next_offset < read.max_offset

    def _paged_in_live(self, queue: WatchedQueue) -> None:
        queue.is_paging_in = False
        self._grown[queue] = None
        self._wake()

    def _make_plan(self, name: bytes) -> Plan | None:
        plan = None
        try:
            check_topic_name(name)
            matches = self._subscriptions.match(name.decode())
            plan = Plan(matches) if matches else None
        except (TopicNameError, MalformedPacketError):
            # A native producer's name; devices' names were checked before they were stored.
            self._metrics.messages_undeliverable += 1
        if len(self._plans) >= 100_000:
            self._plans.clear()
        self._plans[name] = plan
        return plan

    def _send_live(
        self, plan: Plan, name: bytes, record: BriefRecord, queue: WatchedQueue, now_ms: int
    ) -> None:
        queue_offset, _, _, properties, body, sys_flag, store_ms, _ = record
        block: bytes | None = None
        if sys_flag & SYS_FLAG_COMPRESSED:
            inflated = inflate(body, INFLATED_BYTES_MAX)
            if inflated is None:
                self._metrics.messages_undeliverable += 1
                return
            body = inflated
        # find, as "in" raises and catches an exception inside for every bytes it looks for.
        if properties.find(_V5_PROPERTIES) >= 0:
            block = delivery_properties(properties, store_ms=store_ms, now_ms=now_ms)
            if block is None:
                self._metrics.messages_expired += 1
                return
        is_at_most_once = properties.find(_AT_MOST_ONCE) >= 0
        for version, connections in plan.direct:
            self._fan_out(encode(name, body, 0x30, version, block)[0], connections)
        for version, sessions in plan.windowed:
            if is_at_most_once:
                packet, _ = encode(name, body, 0x30, version, block)
                self._fan_out(packet, [s.connection for s in sessions if not s.lagging])
                continue
            packet, number_at = encode(name, body, 0x32, version, block)
            self._send_windowed(packet, number_at, sessions, queue, queue_offset)
        if plan.particular:
            message = OutgoingMessage(record, name, body, now_ms)
            for session in plan.particular:
                if session.lagging and queue in session.lagging:
                    continue
                if not self._send_one(session, plan.matches[session], message):
                    self._lag(session, queue, queue_offset)

    def _fan_out(self, packet: bytes, connections: list[int]) -> None:
        dropped = len(self._reactor.fan_out(packet, connections))
        self._metrics.messages_dropped_qos0 += dropped
        self._metrics.messages_delivered += len(connections) - dropped

    def _send_windowed(
        self,
        packet: bytes,
        number_at: int,
        sessions: list[Session],
        queue: WatchedQueue,
        queue_offset: int,
    ) -> None:
        receivers = []
        for session in sessions:
            if session.lagging and queue in session.lagging:
                continue
            packet_id = session.inflight.allocate(None)
            if packet_id:
                receivers.append((session.connection, packet_id))
            else:
                self._lag(session, queue, queue_offset)
        skipped = self._reactor.send_numbered(packet, number_at, receivers)
        self._metrics.messages_delivered += len(receivers) - len(skipped)
        if skipped:
            packet_ids = dict(receivers)
            for connection in skipped:
                receiver = self._sessions[connection]
                if receiver is not None:
                    receiver.inflight.ack(packet_ids[connection])
                    self._lag(receiver, queue, queue_offset)

    # --- lagging -------------------------------------------------------------------------

    def acknowledged(self, session: Session) -> None:
        """Note that ``session`` has room in its window or socket again."""
        if session.lagging:
            self._returning[session] = None

    def forget(self, session: Session) -> None:
        """Drop the cursors of a session that has ended."""
        if session.lagging is not None:
            for queue in session.lagging:
                self._page_ins.pop((session, queue), None)
            session.lagging = None
            self._metrics.receivers_lagging_now -= 1
        self._returning.pop(session, None)

    def _lag(self, session: Session, queue: WatchedQueue, queue_offset: int) -> None:
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
                    self._returning[session] = None
        if not session.lagging:
            self.forget(session)

    def _read_on(
        self, session: Session, queue: WatchedQueue, queue_offset: int, now_ms: int
    ) -> tuple[int, bool]:
        """Return the cursor after one slice and whether it has to wait for somebody.

        That is the client, whose window or socket is full, or the disk.
        """
        cursor = session, queue
        if cursor in self._paging_in:
            return queue_offset, True
        page_ins = self._page_ins.get(cursor)
        try:
            read = self._log_port.read(
                queue.topic,
                queue.queue_id,
                queue_offset,
                count_max=CATCH_UP_COUNT_MAX,
                bytes_max=CATCH_UP_BYTES_MAX,
                may_wait=page_ins is not None and page_ins.may_wait,
            )
        except NotInMemoryError as cold:
            if not self._log_port.page_in(cold.missing, partial(self._paged_in_lagging, *cursor)):
                return queue_offset, False
            self._page_ins.setdefault(cursor, PageIns()).note(cold.missing)
            self._paging_in.add(cursor)
            return queue_offset, True
        self._page_ins.pop(cursor, None)
        if read.status is ReadStatus.OFFSET_TOO_SMALL:
            self._count_lost(queue, queue_offset, read.min_offset)
            return read.min_offset, False
        for record in decode_brief(read.records, _TOPIC_PROPERTY):
            if record[0] >= queue.next_offset:
                return queue.next_offset, False
            name = record[1] or native_topic_name(record)
            plan = self._plans[name] if name in self._plans else self._make_plan(name)
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
            if not self._send_one(session, options, message):
                return record[0], True
        return max(read.next_offset, queue_offset), False

    def _paged_in_lagging(self, session: Session, queue: WatchedQueue) -> None:
        self._paging_in.remove((session, queue))
        if session.lagging and queue in session.lagging:
            self._returning[session] = None
            self._wake()

    def _send_one(self, session: Session, options: int, message: OutgoingMessage) -> bool:
        """Send, or drop by a rule; return False if window or socket is full and it must wait."""
        if message.expiry:
            self._metrics.messages_expired += 1
            return True
        if options & NO_LOCAL and message.client_id == session.client_id:
            return True  # [MQTT-3.8.3-3]
        qos = min(message.qos, options & QOS_MASK)
        first_byte = 0x32 if qos else 0x30
        packet, number_at = encode(
            message.name, message.body, first_byte, session.version, message.properties
        )
        if len(packet) > session.packet_bytes_max:
            self._metrics.messages_dropped_too_large += 1  # [MQTT-3.1.2-25]
            return True
        if not qos:
            self._fan_out(packet, [session.connection])
            return True
        packet_id = session.inflight.allocate(None)
        if not packet_id:
            return False
        if self._reactor.send_numbered(packet, number_at, [(session.connection, packet_id)]):
            session.inflight.ack(packet_id)
            return False
        self._metrics.messages_delivered += 1
        return True

    def _count_lost(self, queue: WatchedQueue, begin: int, end: int) -> None:
        self._metrics.messages_lost_to_retention += end - begin
        _log.warning(
            "messages expired before delivery topic=%s queue_id=%d queue_offset=%d count=%d",
            queue.topic,
            queue.queue_id,
            begin,
            end - begin,
        )


def encode(
    name: bytes, body: bytes, first_byte: int, version: int, block: bytes | None
) -> tuple[bytes, int]:
    """Return a PUBLISH and where its packet identifier is; only MQTT 5 has properties."""
    return encode_publish(name, body, first_byte, version, block if version == 5 else None)


def native_topic_name(record: BriefRecord) -> bytes:
    """Return the topic name of a native producer's message: its queue topic and tag."""
    tag = decode_properties(record[3]).get(TAGS)
    return record[2] + b"/" + tag.encode() if tag else record[2]
