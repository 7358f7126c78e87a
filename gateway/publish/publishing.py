"""A PUBLISH of a client: whether it is allowed, where it goes, which parts of it are stored.

Owns: the decision about a PUBLISH that the hot loop cannot make, refusals, the origin that is
stored with a message. Must not touch: the append (``commit``), routes (``routes``), when it is
acknowledged (``acknowledge``).
Spec: MQTT 5.0 section 3.3; 3.1.1 likewise.
"""

from __future__ import annotations

import logging
from typing import Final

from motelog.core.limited_log import LimitedLog
from motelog.core.message import PROPERTIES_BYTES_MAX, encode_host
from motelog.gateway.access.access import Access
from motelog.gateway.access.acl import Acl
from motelog.gateway.mapping.message_properties import publish_properties, publisher_properties
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import (
    GatewayError,
    NotAuthorizedError,
    ProtocolViolationError,
    QuotaExceededError,
    TopicNameError,
)
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.properties import decode_properties
from motelog.gateway.mqtt.topics import check_topic_name
from motelog.gateway.publish.commit import Commit
from motelog.gateway.publish.delayed import DELAYED_PREFIX, split_delayed
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.retaining import RETAIN_TEXT, Retaining
from motelog.gateway.publish.routes import QOS_TEXTS, Routes
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import who
from motelog.gateway.turn import Message, Packet, Turn

logger = logging.getLogger(__name__)

#: Stands for the properties of a publish without properties that the hot loop must not handle.
NO_BLOCK: Final = b""


class LogRefusesError(GatewayError):
    """A remote log refuses what is published to a broker that is away."""

    reason_code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class Publishing:
    """Decides about the publishes of one gateway's clients, and puts them on its turn."""

    def __init__(
        self,
        turn: Turn,
        routes: Routes,
        exchanges: Exchanges,
        retaining: Retaining,
        commit: Commit,
        metrics: GatewayMetrics,
        *,
        topic_alias_max: int,
        access: Access | None = None,
    ) -> None:
        """``access`` is None if clients do not log in."""
        self._turn = turn
        self._routes = routes
        self._exchanges = exchanges
        self._retaining = retaining
        self._commit = commit
        self._metrics = metrics
        self._topic_alias_max = topic_alias_max
        self._access = access
        self._peer_log = LimitedLog(logger, monotonic_s=lambda: turn.monotonic_ms / 1000)

    def publish(self, connection: Connection, session: Session, packet: Packet) -> None:
        """Handle a PUBLISH that the hot loop cannot: new topic name, properties, alias, refusal.

        GatewayError if the connection has to end.
        """
        number, first_byte, topic, payload, packet_id, block = packet
        qos = first_byte >> 1 & 3
        if first_byte & 8 and qos == 1:
            self.note_sent_again(connection)
        topic, extra = self._unfold(connection, topic, block)
        try:
            delay_ms, name = _split_delayed(topic, first_byte)
            if self._acl is not None:
                self._check_right(self._acl, connection, session, first_byte, name)
            message = self._message(connection, session, qos, name, payload, extra)
            if first_byte & 1:
                message = (*message[:2], message[2] + RETAIN_TEXT, *message[3:])
            if delay_ms:
                message = self._routes.delayed(message, delay_ms)
            _check_size(message)
            is_retained = first_byte & 1 and self._may_be_retained(connection, qos, name, message)
            if is_retained and (refusal := self._routes.refusal(message[0])) is not None:
                if first_byte & 8:  # the log may have it already
                    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
                    raise GatewayError(str(refusal), reason_code=code)
                raise LogRefusesError(str(refusal))  # its copy may be at another broker
        except (TopicNameError, NotAuthorizedError, QuotaExceededError, LogRefusesError) as exc:
            self._refuse(connection, qos, packet_id, topic, exc)
            return
        turn = self._turn
        if qos == 1:
            turn.acks.append((number, packet_id))
        published: Message | None = message
        if qos == 2:
            published = self.receive(connection, packet_id, message)
        if published is not None:
            turn.messages.append(published)
            if is_retained:
                turn.copied.append(len(turn.messages) - 1)
                turn.retained.append(self._retaining.write(name, message))

    def _unfold(
        self, connection: Connection, topic: bytes, block: bytes | None
    ) -> tuple[bytes, bytes]:
        """Return the topic name, and those of the properties in ``block`` that are stored."""
        extra = b""
        if block:
            properties = decode_properties(block, PacketType.PUBLISH)
            alias = properties.topic_alias
            if alias is not None:
                topic = connection.resolve_alias(topic, alias, self._topic_alias_max)
            extra = publish_properties(properties)
        if not topic:
            raise ProtocolViolationError("PUBLISH with neither topic name nor topic alias")
        return topic, extra

    def _message(
        self,
        connection: Connection,
        session: Session,
        qos: int,
        name: bytes,
        payload: bytes,
        extra: bytes,
    ) -> Message:
        """Return the message that is stored for a publish; TopicNameError."""
        text, now_ms = QOS_TEXTS[qos], self._turn.now_ms
        origin = (connection.origin or self.make_origin(connection)) + extra
        host = connection.host
        message = self._routes.message(name, payload, text, origin, now_ms, host)
        if message is not None:
            return message
        route = self._routes.resolve(name, client_id=session.client_id, user_name=session.user_name)
        text = route.text + text + origin
        return (route.queue, payload, text, route.tags_code, now_ms, host, 0, 0, 0, 0)

    def _may_be_retained(
        self, connection: Connection, qos: int, name: bytes, message: Message
    ) -> bool:
        """Return whether the limits allow a message to be retained.

        QuotaExceededError if they do not and the client can be sent a reason code. Otherwise the
        message is published without being retained.
        """
        session = connection.session
        assert session is not None, "a PUBLISH comes after CONNECT"
        if self._retaining.has_room(session.client_id, name, message):
            return True
        self._metrics.retained_refused += 1
        error = QuotaExceededError(
            "there are as many retained messages as gateway.retained_count_max,"
            " retained_client_count_max or retained_bytes_max allows"
        )
        if qos and connection.version == 5:
            raise error
        self._peer_log.warning(
            "a publish is not retained client_id=%r qos=%d why=%s", session.client_id, qos, error
        )
        return False

    def put_aside_unasked(self, packets: list[Packet]) -> None:
        """Send publishes whose rights are not known from an earlier one through ``publish``.

        So the hot loop is the same with and without access rules.
        """
        connections = self._turn.connections
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

    @staticmethod
    def note_sent_again(connection: Connection) -> None:
        """Note that a client sends a QoS 1 message again."""
        assert connection.session is not None, "a PUBLISH comes after CONNECT"
        connection.session.particulars.has_sent_again = True

    def receive(self, connection: Connection, packet_id: int, message: Message) -> Message | None:
        """Return a QoS 2 publish with its exchange in the property text.

        None if the message must not be appended, for example because the log has it already.
        """
        text = self._exchanges.take(connection, packet_id, message[0])
        if text is None:
            return None
        self._turn.recs.append((connection.number, packet_id))
        return (*message[:2], message[2] + text, *message[3:])

    def _refuse(
        self, connection: Connection, qos: int, packet_id: int, topic: bytes, error: GatewayError
    ) -> None:
        """Refuse one publish; this ends the connection only if there is no other way.

        At QoS 0 there is no answer, so the log line and the counter are the only signs of it.
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
            kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
            self._commit.refuse(kind, (connection.number, packet_id), error)
        else:
            self._metrics.publishes_refused += 1

    @staticmethod
    def make_origin(connection: Connection) -> bytes:
        assert connection.session is not None, "a PUBLISH comes after CONNECT"
        connection.host = encode_host(*connection.output.peer(connection.number))
        connection.origin = publisher_properties(connection.session.client_id)
        return connection.origin


def _split_delayed(topic: bytes, first_byte: int) -> tuple[int, bytes]:
    """Return the delay of a publish in ms, 0 if none, and the topic name without it."""
    if not topic.startswith(DELAYED_PREFIX):
        return 0, topic
    delay_ms, name = split_delayed(topic)
    if first_byte & 1:
        raise TopicNameError("a delayed publish cannot be retained")
    return delay_ms, name


def _check_size(message: Message) -> None:
    size_bytes = len(message[2])
    if size_bytes > PROPERTIES_BYTES_MAX:
        raise QuotaExceededError(
            f"topic name and properties take {size_bytes} bytes in the log,"
            f" at most {PROPERTIES_BYTES_MAX} fit"
        )
