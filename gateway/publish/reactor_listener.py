"""The plain TCP listener: turns of the reactor in, one append and one batch of answers out.

Owns: the hot loop over a turn's packets, the turn's append, topic aliases. Must not touch: what
other packets mean (``clients``), where messages go (``routes``), who receives them (``delivery``),
when a publish is acknowledged (``acknowledge``). Invariant: the packets of one connection take
effect in the order in which they came.
Spec: MQTT 5.0 sections 3.3, 3.4 and 4.6; 3.1.1 likewise.
"""

from __future__ import annotations

import time
from typing import Any

from motelog.core.errors import StoreError
from motelog.core.message import PROPERTIES_BYTES_MAX
from motelog.core.net.reactor import Turn
from motelog.gateway.clients import Clients
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import GatewayError, ProtocolViolationError, TopicNameError
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.message_properties import publish_properties, publisher_properties
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import PINGRESP
from motelog.gateway.mqtt.frames import split, split_one
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.properties import decode_properties
from motelog.gateway.output import Output
from motelog.gateway.publish.acknowledge import PublishAcks
from motelog.gateway.publish.routes import Route, Routes
from motelog.gateway.sessions.session import Session


class ReactorListener:
    """Handles every turn of one gateway's reactor."""

    def __init__(
        self,
        output: Output,
        log: LogPort,
        routes: Routes,
        clients: Clients,
        delivery: Delivery,
        metrics: GatewayMetrics,
        *,
        sessions: list[Session | None],
        acks: PublishAcks,
    ) -> None:
        self._output = output
        self._log_port = log
        self._routes = routes
        self._clients = clients
        self._delivery = delivery
        self._metrics = metrics
        self._sessions = sessions
        self._publish_acks = acks
        # What this turn has collected: messages, who wants an acknowledgement for which, who pings.
        self._messages: list[tuple[Any, ...]] = []
        self._acks: list[tuple[int, int]] = []
        self._pings: list[int] = []

    def handle_turn(self, turn: Turn) -> None:
        """Handle one batch of the reactor; called by ``core.net.driver.drive``."""
        now_ms = time.time_ns() // 1_000_000
        for connection, _, address in turn.opened:
            self._clients.opened(connection, address)
        if turn.frames:
            self._handle_packets(split(turn.data, turn.index), now_ms)
            self._commit()
        for connection, fault in turn.faults:
            self._clients.faulted(connection, fault)
        for connection, reason in turn.closed:
            self._clients.closed(connection, reason)
        for connection in turn.drained:
            session = self._sessions[connection]
            if session is not None:
                self._delivery.acknowledged(session)
        self._delivery.deliver(now_ms)

    def _handle_packets(self, packets: list[tuple[Any, ...]], now_ms: int) -> None:
        # The hot loop: once per PUBLISH and PUBACK, so without a call where one can be spared.
        sessions = self._sessions
        routes = self._routes.by_topic
        messages = self._messages
        acks = self._acks
        for packet in packets:
            connection, first_byte, topic, payload, packet_id, extra = packet
            session = sessions[connection]
            if session is not None:
                if first_byte & 0xF4 == 0x30:  # PUBLISH with QoS 0 or 1 (or the illegal 2 | 1 = 3)
                    route = routes.get(topic)
                    if route is not None and extra is None and not first_byte & 1:
                        origin = session.origin or self._make_origin(session)
                        if first_byte & 2:
                            properties = route.at_least_once + origin
                            acks.append((connection, packet_id))
                        else:
                            properties = route.at_most_once + origin
                        messages.append(
                            (
                                route.tail,
                                payload,
                                properties,
                                route.tags_code,
                                now_ms,
                                session.host,
                                0,
                                0,
                                0,
                                0,
                            )
                        )
                        continue
                elif first_byte == 0x40:  # PUBACK
                    if session.inflight.ack(packet_id) and session.lagging:
                        self._delivery.acknowledged(session)
                    continue
                elif first_byte == 0xC0 and not payload:  # PINGREQ
                    self._pings.append(connection)
                    continue
            self._handle_rare(packet, session, now_ms)

    def _handle_rare(self, packet: tuple[Any, ...], session: Session | None, now_ms: int) -> None:
        connection, first_byte, topic, payload, packet_id, extra = packet
        packet_type = first_byte >> 4
        if session is not None and packet_type == PacketType.PUBLISH:
            if (
                topic is None
            ):  # came in the same turn as CONNECT: split before its version was known
                packet = split_one(first_byte, payload, session.version, connection)
                self._handle_packets([packet], now_ms)
                return
            try:
                self._publish(session, first_byte, topic, payload, packet_id, extra, now_ms)
            except GatewayError as exc:
                self._commit()
                self._metrics.publishes_refused += 1
                self._clients.disconnect(connection, exc.reason_code, str(exc))
            return
        # Whatever else a client says takes effect after what it published before.
        self._commit()
        if first_byte == 0:
            self._clients.malformed(connection, packet_id, extra)
        else:
            self._clients.handle(connection, first_byte, payload or b"")

    # --- publish -------------------------------------------------------------------------

    def _publish(
        self,
        session: Session,
        first_byte: int,
        topic: bytes,
        payload: bytes,
        packet_id: int,
        block: bytes | None,
        now_ms: int,
    ) -> None:
        """Take a PUBLISH that the hot loop could not: new topic, properties, alias, refusal."""
        qos = first_byte >> 1 & 3
        if qos == 2:
            raise GatewayError(
                "QoS 2 is not offered yet", reason_code=ReasonCode.QOS_NOT_SUPPORTED
            )  # [MQTT-3.2.2-11]
        if first_byte & 1:
            raise GatewayError(
                "retained messages are not offered yet",
                reason_code=ReasonCode.RETAIN_NOT_SUPPORTED,
            )  # [MQTT-3.2.2-14]
        extra = b""
        if block is not None:
            properties = decode_properties(block, PacketType.PUBLISH)
            if properties.topic_alias is not None:
                topic = session.resolve_alias(topic, properties.topic_alias)
            extra = publish_properties(properties)
        if not topic:
            raise ProtocolViolationError("PUBLISH with neither topic name nor topic alias")
        try:
            route = self._route(session, topic)
        except TopicNameError as exc:
            self._refuse_publish(session, qos, packet_id, exc)
            return
        origin = session.origin or self._make_origin(session)
        text = (route.at_least_once if qos else route.at_most_once) + origin + extra
        if len(text) > PROPERTIES_BYTES_MAX:
            error = GatewayError(
                f"topic name and properties take {len(text)} bytes in the log,"
                f" at most {PROPERTIES_BYTES_MAX} fit",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )
            self._refuse_publish(session, qos, packet_id, error)
            return
        if qos:
            self._acks.append((session.connection, packet_id))
        self._messages.append(
            (route.tail, payload, text, route.tags_code, now_ms, session.host, 0, 0, 0, 0)
        )

    def _route(self, session: Session, topic: bytes) -> Route:
        return self._routes.resolve(
            topic, client_id=session.client_id, user_name=session.user_name or ""
        )

    def _refuse_publish(
        self, session: Session, qos: int, packet_id: int, error: GatewayError
    ) -> None:
        """Answer one publish that will not be stored; the connection goes on where it can."""
        if qos:
            self._commit()  # acknowledgements go out in the order of the publishes [MQTT-4.6.0-2]
            self._publish_acks.refuse_one(session, packet_id, error)
        else:
            self._metrics.publishes_refused += 1

    @staticmethod
    def _make_origin(session: Session) -> bytes:
        session.origin = publisher_properties(session.client_id)
        return session.origin

    # --- append and acknowledge ----------------------------------------------------------

    def _commit(self) -> None:
        """Append what was collected and answer as soon as the log's mode allows."""
        # The lists are emptied in place: the hot loop holds on to them across a commit.
        if self._messages:
            acks = self._acks.copy()
            self._acks.clear()
            self._append(acks)
        # Afterwards, so that a PINGRESP also says that what came before it is in the log.
        for connection in self._pings:
            self._output.send(connection, PINGRESP)
        self._pings.clear()

    def _append(self, acks: list[tuple[int, int]]) -> None:
        messages = self._messages
        self._metrics.publishes_received += len(messages)
        try:
            end_offset = self._log_port.append(messages)
        except StoreError as exc:
            messages.clear()
            self._publish_acks.refuse(acks, exc)
            return
        self._metrics.messages_appended += len(messages)
        messages.clear()
        if acks:
            self._publish_acks.appended(acks, end_offset)
