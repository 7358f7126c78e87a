"""The plain TCP listener: turns of the reactor in, one append and one batch of answers out.

Owns: the hot loop over a turn's packets, the turn's append.
Must not touch: what other packets mean (``clients``, ``exchanges``), where messages go
(``routes``), how fast they may come (``rates``), who receives them (``delivery``), when a publish
is acknowledged (``acknowledge``).
Invariant: the packets of one connection take effect in the order in which they came.
Spec: MQTT 5.0 sections 3.3, 3.4 and 4.6; 3.1.1 likewise.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Any, Final

from motelog.core.clock import Clock
from motelog.core.limited_log import LimitedLog
from motelog.core.message import PROPERTIES_BYTES_MAX, encode_host
from motelog.core.net.reactor import Turn
from motelog.gateway.access.access import Access
from motelog.gateway.access.acl import Acl
from motelog.gateway.clients import Clients
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import (
    GatewayError,
    NotAuthorizedError,
    ProtocolViolationError,
    TopicNameError,
)
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.message_properties import publish_properties, publisher_properties
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import PINGRESP
from motelog.gateway.mqtt.frames import split, split_one
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.properties import decode_properties
from motelog.gateway.mqtt.topics import check_topic_name
from motelog.gateway.output import Output
from motelog.gateway.publish.acknowledge import Acks, Answers
from motelog.gateway.publish.delayed import DELAYED_PREFIX, split_delayed
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.rates import Rates
from motelog.gateway.publish.retaining import RETAIN_TEXT, Retaining
from motelog.gateway.publish.routes import QOS_TEXTS, Routes
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import who

logger = logging.getLogger(__name__)

#: Stands for the properties of a publish that has none, where it is not for the hot loop.
NO_BLOCK: Final = b""
LACK_PERIOD_S: Final = 60.0


class ReactorListener:
    """Handles every turn of one gateway's reactor."""

    def __init__(
        self,
        config: GatewayConfig,
        output: Output,
        log: LogPort,
        routes: Routes,
        clients: Clients,
        delivery: Delivery,
        answers: Answers,
        exchanges: Exchanges,
        retaining: Retaining,
        rates: Rates,
        metrics: GatewayMetrics,
        *,
        connections: list[Connection | None],
        clock: Clock,
        access: Access | None = None,
    ) -> None:
        """``access`` is None where clients are not told apart."""
        self._access = access
        self._config = config
        self._output = output
        self._log_port = log
        self._routes = routes
        self._clients = clients
        self._delivery = delivery
        self._answers = answers
        self._exchanges = exchanges
        self._retaining = retaining
        self._rates = rates
        self._metrics = metrics
        self._connections = connections
        self._clock = clock
        self._peer_log = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        self._faults = LimitedLog(logger, lines_max=1, period_s=LACK_PERIOD_S)
        # Collected in this turn: messages, publishes to acknowledge, connections that ping.
        self._messages: list[tuple[Any, ...]] = []
        self._acks: Acks = []
        self._recs: Acks = []
        self._pings: list[int] = []
        self._began_ns = 0

    def handle_turn(self, turn: Turn) -> None:
        """Handle one batch of the reactor; called by ``core.net.driver.drive``."""
        now_ms = self._clock.now_ms()
        self._clients.begin_turn()
        self._delivery.begin_turn()
        for number, _, _ in turn.opened:
            self._clients.opened(self._output, number)
        rates = self._rates
        if rates.is_on:
            if turn.opened:
                rates.opened([item[0] for item in turn.opened], self._clock.monotonic_ms())
            if turn.frames and rates.limits_publishes:
                rates.received(turn.data, turn.index, self._clock.monotonic_ms())
        if turn.frames:
            self._began_ns = perf_counter_ns()
            self._metrics.received_bytes += len(turn.data)
            try:
                self._handle_frames(turn, now_ms)
            except MemoryError:
                self._lose(turn)
        for number, fault in turn.faults:
            self._clients.faulted(self._output, number, fault)
        for number, reason in turn.closed:
            self._clients.closed(number, reason)
        for number in turn.drained:
            connection = self._connections[number]
            if connection is not None and connection.session is not None:
                self._delivery.acknowledged(connection.session)
        self._clients.end_turn()
        self._delivery.deliver(now_ms)

    def _handle_frames(self, turn: Turn, now_ms: int) -> None:
        packets = split(turn.data, turn.index, self._metrics.received_packets, True)
        if self._clients.awaits_connects:
            self._clients.expect([(p[0], p[3] or b"") for p in packets if p[1] == 0x10])
        self._handle_packets(packets, now_ms)
        self._commit()

    def _lose(self, turn: Turn) -> None:
        """End the clients of a turn that lacks memory: what is not acknowledged they send again.

        What has been collected before is appended, and answers nobody.
        """
        self._faults.fault("a turn lacks memory, and its clients are closed: free memory")
        numbers = memoryview(turn.index).cast("B").cast("I")
        for i in range(0, 4 * turn.frames, 4):
            self._clients.shed(numbers[i])
        try:
            self._commit()
        except MemoryError:
            self._exchanges.lose()
        for collected in (self._messages, self._acks, self._recs, self._pings):
            collected.clear()

    def handle_kept(self, packets: list[tuple[Any, ...]]) -> None:
        """Handle the packets that a client has sent behind its CONNECT, which was parked."""
        self._handle_packets(packets, self._clock.now_ms())
        self._commit()

    def _handle_packets(self, packets: list[tuple[Any, ...]], now_ms: int) -> None:
        if self._acl is not None:
            self._put_aside_unasked(packets)
        # The hot loop runs once per PUBLISH and PUBACK, so it avoids calls where it can.
        connections = self._connections
        make_message = self._routes.message
        messages = self._messages
        acks = self._acks
        have_room: dict[Session, None] = {}
        for packet in packets:
            number, first_byte, topic, payload, packet_id, extra = packet
            connection = connections[number]
            if connection is not None:
                if first_byte & 0xF0 == 0x30:  # PUBLISH
                    # A packet is split into a topic name only after CONNECT, so there is a session.
                    if topic and extra is None and not first_byte & 1:
                        message = make_message(
                            topic,
                            payload,
                            QOS_TEXTS[first_byte >> 1 & 3],
                            connection.origin or self._make_origin(connection),
                            now_ms,
                            connection.host,
                        )
                        if message is not None:
                            if first_byte & 2:
                                acks.append((number, packet_id))
                            elif first_byte & 4:
                                message = self._receive(connection, packet_id, message)
                                if message is None:
                                    continue
                            messages.append(message)
                            continue
                elif first_byte == 0x40 and packet_id:  # PUBACK
                    # Of a turn they are joined; one that came alone has a reason code there.
                    packet_ids = extra if type(extra) is list else (packet_id,)
                    session = connection.session
                    try:
                        if session is not None and session.acknowledge(packet_ids):
                            have_room[session] = None
                    except ProtocolViolationError as exc:
                        self._clients.disconnect(connection, exc.reason_code, str(exc))
                    continue
                elif first_byte == 0xC0 and not payload:  # PINGREQ
                    self._pings.append(number)
                    continue
                elif 0x50 <= first_byte < 0x80 and connection.session is not None and packet_id:
                    # PUBREC, PUBREL or PUBCOMP; not one that came in the turn of its CONNECT.
                    with self._clients.boundary:
                        self._exchanges.go_on(connection, first_byte >> 4, packet_id, extra)
                        continue
                    self._clients.failed(number)
                    continue
            self._handle_rare(packet, connection, now_ms)
        for session in have_room:
            if session.connection is not None:  # not ended in this turn
                self._delivery.acknowledged(session)

    def _handle_rare(
        self, packet: tuple[Any, ...], connection: Connection | None, now_ms: int
    ) -> None:
        number, first_byte, topic, payload, packet_id, extra = packet
        if connection is None and self._clients.keep(packet):
            return
        session = connection.session if connection is not None else None
        if connection is not None and session is not None and 0x30 <= first_byte < 0x80:
            if payload is not None and topic is None:
                # It came in the turn of its CONNECT, when no version was known.
                packet = split_one(first_byte, payload, connection.version, number)
                self._handle_packets([packet], now_ms)
                return
            with self._clients.boundary:
                try:
                    self._publish(
                        connection, session, first_byte, topic, payload, packet_id, extra, now_ms
                    )
                except GatewayError as exc:
                    self._commit()
                    self._metrics.publishes_refused += 1
                    self._clients.disconnect(connection, exc.reason_code, str(exc))
                return
            self._clients.failed(number)
            return
        # Any other packet takes effect after the publishes that came before it.
        self._commit()
        if first_byte == 0:
            self._clients.malformed(number, packet_id, extra)
        else:
            self._clients.handle(number, first_byte, payload or b"")

    # --- publish -------------------------------------------------------------------------

    def _publish(
        self,
        connection: Connection,
        session: Session,
        first_byte: int,
        topic: bytes,
        payload: bytes,
        packet_id: int,
        block: bytes | None,
        now_ms: int,
    ) -> None:
        """Take a PUBLISH that the hot loop cannot: new topic name, properties, alias, refusal."""
        qos = first_byte >> 1 & 3
        extra = b""
        if block:
            properties = decode_properties(block, PacketType.PUBLISH)
            if properties.topic_alias is not None:
                topic = connection.resolve_alias(
                    topic, properties.topic_alias, self._config.topic_alias_max
                )
            extra = publish_properties(properties)
        if not topic:
            raise ProtocolViolationError("PUBLISH with neither topic name nor topic alias")
        delay_ms = 0
        if topic.startswith(DELAYED_PREFIX):
            try:
                delay_ms, topic = split_delayed(topic)
                if first_byte & 1:
                    raise TopicNameError("a delayed publish cannot be retained")
            except TopicNameError as exc:
                self._refuse_publish(connection, qos, packet_id, topic, exc)
                return
        acl = self._acl
        if acl is not None:
            try:
                self._check_right(acl, connection, session, first_byte, topic)
            except (TopicNameError, NotAuthorizedError) as exc:
                self._refuse_publish(connection, qos, packet_id, topic, exc)
                return
        text = QOS_TEXTS[qos]
        origin = (connection.origin or self._make_origin(connection)) + extra
        host = connection.host
        message = self._routes.message(topic, payload, text, origin, now_ms, host)
        if message is None:
            try:
                route = self._routes.resolve(
                    topic, client_id=session.client_id, user_name=session.user_name
                )
            except TopicNameError as exc:
                self._refuse_publish(connection, qos, packet_id, topic, exc)
                return
            text = route.text + text + origin
            message = (route.queue, payload, text, route.tags_code, now_ms, host, 0, 0, 0, 0)
        is_retained = bool(first_byte & 1)
        if is_retained:
            message = (*message[:2], message[2] + RETAIN_TEXT, *message[3:])
        if delay_ms:
            message = self._log_port.delayed(message, delay_ms)
        if len(message[2]) > PROPERTIES_BYTES_MAX:
            error = GatewayError(
                f"topic name and properties take {len(message[2])} bytes in the log,"
                f" at most {PROPERTIES_BYTES_MAX} fit",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )
            self._refuse_publish(connection, qos, packet_id, topic, error)
            return
        if is_retained and not self._retaining.has_room(session.client_id, topic, message):
            error = GatewayError(
                "there are as many retained messages as gateway.retained_count_max,"
                " retained_client_count_max or retained_bytes_max allows",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )
            self._metrics.retained_refused += 1
            if qos and connection.version == 5:
                self._refuse_publish(connection, qos, packet_id, topic, error)
                return
            # It cannot be told, so the message goes to those who are there, as a plain one does.
            self._peer_log.warning(
                "a publish is not retained client_id=%r qos=%d why=%s",
                session.client_id,
                qos,
                error,
            )
            is_retained = False
        if qos == 1:
            self._acks.append((connection.number, packet_id))
        published: tuple[Any, ...] | None = message
        if qos == 2:
            published = self._receive(connection, packet_id, message)
        if published is not None:
            self._messages.append(published)
            if is_retained:
                self._retaining.add(topic, message)

    def _put_aside_unasked(self, packets: list[tuple[Any, ...]]) -> None:
        """Have publishes go by ``_publish`` whose rights are not known from an earlier one.

        So the hot loop is the same whether there are rules or not.
        """
        connections = self._connections
        for i, packet in enumerate(packets):
            number, first_byte, topic, _, _, extra = packet
            if first_byte & 0xF0 == 0x30 and topic and extra is None:
                connection = connections[number]
                if (
                    connection is not None
                    and connection.publishable.get(topic, -1) < first_byte & 6
                ):
                    packets[i] = (*packet[:5], NO_BLOCK)

    @property
    def _acl(self) -> Acl | None:
        return None if self._access is None else self._access.acl

    def _check_right(
        self, acl: Acl, connection: Connection, session: Session, first_byte: int, topic: bytes
    ) -> None:
        """Raise NotAuthorizedError if the client may not publish this; TopicNameError."""
        known = connection.publishable.get(topic)
        if known is None or first_byte & 1:
            check_topic_name(topic)
            name, whose = topic.decode(), who(session)
            qos_max = acl.publish_qos(whose, name)
            connection.note_publishable(topic, qos_max)
            known = qos_max << 1
            if first_byte & 1 and not acl.may_retain(whose, name):
                self._metrics.publishes_not_allowed += 1
                raise NotAuthorizedError("the client has no right to have it retained")
        if known < first_byte & 6:
            self._metrics.publishes_not_allowed += 1
            raise NotAuthorizedError("the client has no right to publish it")

    def _receive(
        self, connection: Connection, packet_id: int, message: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Return a QoS 2 publish with its exchange in the property text; None if it was taken."""
        told = self._exchanges.take(connection, packet_id, message[0])
        if told is None:
            return None
        self._recs.append((connection.number, packet_id))
        return (*message[:2], message[2] + told, *message[3:])

    def _refuse_publish(
        self, connection: Connection, qos: int, packet_id: int, topic: bytes, error: GatewayError
    ) -> None:
        """Answer one publish that is not stored; it ends the connection only where it must.

        At QoS 0 there is no answer, so that the log line and the counter are all that tells of it.
        """
        session = connection.session
        self._peer_log.warning(
            "the gateway refuses a publish client_id=%r qos=%d reason_code=0x%02x user=%r topic=%r "
            "why=%s",
            session.client_id if session is not None else "",
            qos,
            error.reason_code,
            session.user_name if session is not None else None,
            topic.decode("utf-8", "replace"),
            error,
        )
        if qos:
            self._commit()  # acknowledgements go out in the order of the publishes [MQTT-4.6.0-2]
            kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
            self._answers.refuse_one(kind, connection, packet_id, error)
        else:
            self._metrics.publishes_refused += 1

    @staticmethod
    def _make_origin(connection: Connection) -> bytes:
        assert connection.session is not None, "a PUBLISH comes after CONNECT"
        connection.host = encode_host(*connection.output.peer(connection.number))
        connection.origin = publisher_properties(connection.session.client_id)
        return connection.origin

    # --- append and acknowledge ----------------------------------------------------------

    def _commit(self) -> None:
        """Append the collected messages; publishers are answered when the ticket has settled."""
        # The lists are emptied in place: the hot loop keeps using them across a commit.
        if self._messages:
            self._append()
        self._exchanges.commit()
        # After the append: a PINGRESP also says that the log has taken earlier publishes.
        for number in self._pings:
            self._output.send(number, PINGRESP)
        self._pings.clear()

    def _append(self) -> None:
        messages = self._messages
        count = len(messages)
        self._metrics.publishes_received += count
        if self._recs:
            # What is received exactly once is marked before it, in the same append.
            messages[:0] = self._exchanges.take_marks()
        retaining = self._retaining
        if retaining.added:
            messages[:0] = retaining.take()
        ticket = self._log_port.append(messages)
        if retaining.added:
            retaining.appended(ticket)
        if ticket.error is None:
            self._metrics.messages_appended += count
        else:  # the others have answers to be refused by
            self._metrics.publishes_refused += count - len(self._acks) - len(self._recs)
        messages.clear()
        acks, recs = self._acks.copy(), self._recs.copy()
        self._acks.clear()
        self._recs.clear()
        if recs:
            self._exchanges.appended(ticket)
        if acks:
            self._answers.answer(PacketType.PUBACK, acks, ticket, self._began_ns)
        if recs:
            self._answers.answer(PacketType.PUBREC, recs, ticket, self._began_ns)
