"""Everything a client says but PUBLISH and PUBACK: CONNECT, SUBSCRIBE, DISCONNECT...

Owns: which session a connection has, which connection a client identifier has, refusals and why.
Must not touch: appends, delivery plans; it tells ``Delivery`` what subscriptions need. Lives in the
one task of the reactor.
Spec: MQTT 5.0 and 3.1.1 chapter 3. What this gateway does not offer yet (QoS 2, persistent
sessions, retained and will messages, shared subscriptions, enhanced authentication) is said in
CONNACK and refused with the standard's own codes; nothing is taken and then forgotten.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from motelog.core.limited_log import LimitedLog
from motelog.core.message import encode_host
from motelog.core.net.reactor_types import CloseReason, Fault
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import (
    GatewayError,
    MalformedPacketError,
    ProtocolViolationError,
)
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.connect import claimed_version, decode_connect, encode_connack
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.packet_types import (
    PROTOCOL_VERSIONS,
    Connect,
    PacketType,
    PropertyId,
    PropertyValue,
    ReasonCode,
    SubscribeEntry,
)
from motelog.gateway.mqtt.subscribe import (
    decode_subscribe,
    decode_unsubscribe,
    encode_suback,
    encode_unsuback,
)
from motelog.gateway.mqtt.topics import parse_shared
from motelog.gateway.output import Output
from motelog.gateway.sessions.session import PACKET_BYTES_LIMIT, Session
from motelog.gateway.sessions.subscriptions import NO_LOCAL, SubscriptionTree

_log = logging.getLogger(__name__)

_QOS_MAX: Final = 1

_FAULT_CODES: Final = {
    Fault.FRAME_TOO_LARGE: ReasonCode.PACKET_TOO_LARGE,
    Fault.MALFORMED_LENGTH: ReasonCode.MALFORMED_PACKET,
    Fault.IDLE: ReasonCode.KEEP_ALIVE_TIMEOUT,
}


class Clients:
    """The sessions of one gateway's plain connections."""

    def __init__(
        self,
        config: GatewayConfig,
        output: Output,
        subscriptions: SubscriptionTree[Session],
        delivery: Delivery,
        metrics: GatewayMetrics,
        *,
        sessions: list[Session | None],
    ) -> None:
        self._config = config
        self._output = output
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._metrics = metrics
        #: Connection -> session; shared with the hot path, which only reads it.
        self._sessions = sessions
        self._by_client_id: dict[str, Session] = {}
        #: What CONNACK tells an MQTT 5 client of our limits (section 3.2.2.3).
        self._limits: dict[PropertyId, PropertyValue] = {
            PropertyId.RECEIVE_MAXIMUM: config.receive_maximum,
            PropertyId.MAXIMUM_QOS: _QOS_MAX,
            PropertyId.RETAIN_AVAILABLE: 0,
            PropertyId.MAXIMUM_PACKET_SIZE: config.packet_bytes_max,
            PropertyId.TOPIC_ALIAS_MAXIMUM: config.topic_alias_max,
            PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: 0,
            PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: 0,
        }
        #: Version -> the CONNACK of a client that gets what it asked for.
        self._connacks = {
            version: encode_connack(version, ReasonCode.SUCCESS, properties=self._limits)
            for version in PROTOCOL_VERSIONS
        }
        #: Connections that have not completed CONNECT, and where they come from.
        self._peers: dict[int, tuple[str, int]] = {}
        self._peer_log = LimitedLog(_log)

    # --- connections ---------------------------------------------------------------------

    def opened(self, connection: int, address: tuple[str, int]) -> None:
        self._metrics.connections_opened += 1
        self._peers[connection] = address

    def faulted(self, connection: int, fault: Fault) -> None:
        """Answer what the reactor could not accept; it reads no more from this connection."""
        if self._sessions[connection] is None:
            self._refuse_connection(connection, ReasonCode(_FAULT_CODES[fault]), fault.name)
        else:
            self.disconnect(connection, _FAULT_CODES[fault], fault.name)

    def closed(self, connection: int, reason: CloseReason) -> None:
        """Note that the connection is gone."""
        session = self._sessions[connection]
        if reason is CloseReason.OUTPUT_FULL and session is not None:
            self._peer_log.warning("client too slow, output full client_id=%r", session.client_id)
        self._forget(connection)

    def disconnect(self, connection: int, reason_code: int, why: str) -> None:
        """End a connection with the protocol's reason; MQTT 3 has none, so there it just closes."""
        session = self._sessions[connection]
        if session is not None:
            self._peer_log.warning(
                "connection closed client_id=%r reason_code=0x%02x why=%s",
                session.client_id,
                reason_code,
                why,
            )
            if session.version == 5:
                self._output.send(connection, encode_disconnect(5, reason_code))
        self._output.close(connection)
        self._forget(connection)

    def disconnect_all(self, reason_code: int) -> None:
        """End every connection, for a shutdown."""
        for session in list(self._by_client_id.values()):
            if session.version == 5:
                packet = encode_disconnect(5, reason_code)
                self._output.send(session.connection, packet)
            self._output.close(session.connection)
            self._forget(session.connection)

    def _forget(self, connection: int) -> None:
        self._metrics.connections_closed += 1
        self._peers.pop(connection, None)
        session = self._sessions[connection]
        if session is None:
            return
        self._sessions[connection] = None
        self._metrics.sessions_now -= 1
        self._delivery.forget(session)
        for topic_filter in list(session.filters):
            self._remove_subscription(session, topic_filter)
        if self._by_client_id.get(session.client_id) is session:
            del self._by_client_id[session.client_id]

    # --- packets -------------------------------------------------------------------------

    def malformed(self, connection: int, reason_code: int, offset_bytes: int) -> None:
        """End a connection whose packet the frames kernel refused."""
        self._metrics.packets_malformed += 1
        if self._sessions[connection] is None:
            self._refuse_connection(connection, reason_code, "malformed packet before CONNECT")
        else:
            self.disconnect(connection, reason_code, f"malformed packet at byte {offset_bytes}")

    def handle(self, connection: int, first_byte: int, body: bytes) -> None:
        """Handle one whole control packet; a fault ends that connection alone."""
        session = self._sessions[connection]
        try:
            if session is None:
                self._before_connect(connection, first_byte, body)
            else:
                self._handle(session, first_byte, body)
        except GatewayError as exc:
            self._metrics.packets_malformed += isinstance(exc, MalformedPacketError)
            if self._sessions[connection] is None:
                self._refuse_connection(connection, exc.reason_code, str(exc))
            else:
                self.disconnect(connection, exc.reason_code, str(exc))

    def _before_connect(self, connection: int, first_byte: int, body: bytes) -> None:
        if connection not in self._peers:
            return  # closed earlier in this turn
        if first_byte != PacketType.CONNECT << 4:  # [MQTT-3.1.0-1]
            raise ProtocolViolationError("the first packet is not CONNECT")
        try:
            connect = decode_connect(body)
        except GatewayError as exc:
            version = claimed_version(body)
            self._refuse_connection(connection, exc.reason_code, str(exc), version=version)
            return
        self._connect(connection, connect)

    def _handle(self, session: Session, first_byte: int, body: bytes) -> None:
        packet_type = first_byte >> 4
        if packet_type == PacketType.SUBSCRIBE:
            self._subscribe(session, first_byte, body)
        elif packet_type == PacketType.UNSUBSCRIBE:
            self._unsubscribe(session, first_byte, body)
        elif packet_type == PacketType.DISCONNECT:
            decode_disconnect(session.version, first_byte, body)
            self._output.close(session.connection)
            self._forget(session.connection)
        elif packet_type == PacketType.CONNECT:  # [MQTT-3.1.0-2]
            raise ProtocolViolationError("second CONNECT")
        elif packet_type in (PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP):
            raise ProtocolViolationError("QoS 2 acknowledgement without a QoS 2 message")
        else:
            raise ProtocolViolationError(f"packet with first byte 0x{first_byte:02x}")

    # --- CONNECT -------------------------------------------------------------------------

    def _connect(self, connection: int, connect: Connect) -> None:
        refusal = self._refusal(connect)
        if refusal is not None:
            reason_code, why = refusal
            self._refuse_connection(
                connection, reason_code, why, version=connect.version, client_id=connect.client_id
            )
            return
        peer = self._peers.pop(connection)
        client_id = connect.client_id or f"motelog-{secrets.token_hex(8)}"
        self._take_over(client_id)
        properties = connect.properties
        keep_alive_s = min(connect.keep_alive_s or 65535, self._config.keep_alive_max_s)
        session = Session(
            client_id,
            connection,
            connect.version,
            keep_alive_s=keep_alive_s,
            inflight_limit=min(properties.receive_maximum or 65535, self._config.inflight_max),
            user_name=connect.user_name,
            topic_alias_maximum=self._config.topic_alias_max,
            packet_bytes_max=properties.maximum_packet_bytes or PACKET_BYTES_LIMIT,
            host=encode_host(*peer),
        )
        self._sessions[connection] = session
        self._by_client_id[client_id] = session
        self._metrics.sessions_now += 1
        self._output.set_variant(connection, connect.version)
        self._output.set_limits(
            connection,
            frame_bytes_max=self._config.packet_bytes_max,
            idle_s_max=keep_alive_s + (keep_alive_s + 1) // 2,  # [MQTT-3.1.2-22]
        )
        self._output.send(connection, self._connack(connect, client_id, keep_alive_s))

    def _refusal(self, connect: Connect) -> tuple[int, str] | None:
        """Return (reason code, why) if this CONNECT asks for what cannot be given."""
        if connect.properties.authentication_method is not None:
            return ReasonCode.BAD_AUTHENTICATION_METHOD, "enhanced authentication is not offered"
        if connect.will is not None:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "will messages are not offered yet"
        if connect.version < 5 and not connect.clean_start:
            return ReasonCode.NOT_AUTHORIZED, "persistent sessions are not offered yet"
        if len(connect.client_id.encode()) > self._config.client_id_bytes_max:
            return (
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                f"client identifier longer than {self._config.client_id_bytes_max} bytes",
            )
        return None

    def _connack(self, connect: Connect, client_id: str, keep_alive_s: int) -> bytes:
        """Return the CONNACK that accepts, for MQTT 5 with what differs from what was asked for."""
        particular: dict[PropertyId, PropertyValue] = {}
        if connect.properties.session_expiry_interval_s:
            particular[PropertyId.SESSION_EXPIRY_INTERVAL] = 0
        if not connect.client_id:
            particular[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client_id
        if keep_alive_s != connect.keep_alive_s:
            particular[PropertyId.SERVER_KEEP_ALIVE] = keep_alive_s
        if not particular:
            return self._connacks[connect.version]
        return encode_connack(
            connect.version, ReasonCode.SUCCESS, properties={**self._limits, **particular}
        )

    def _take_over(self, client_id: str) -> None:
        """End the connection that has this client identifier. [MQTT-3.1.4-3]"""
        session = self._by_client_id.get(client_id)
        if session is not None:
            self._metrics.sessions_taken_over += 1
            self.disconnect(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over")

    def _refuse_connection(
        self,
        connection: int,
        reason_code: int,
        why: str,
        *,
        version: int | None = None,
        client_id: str = "",
    ) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        self._metrics.connections_refused += 1
        self._peer_log.warning(
            "connection refused peer=%s:%d client_id=%r reason_code=0x%02x why=%s",
            *peer,
            client_id,
            reason_code,
            why,
        )
        if version is not None:
            self._output.send(connection, encode_connack(version, reason_code))
        self._output.close(connection)
        self._forget(connection)

    # --- SUBSCRIBE, UNSUBSCRIBE ----------------------------------------------------------

    def _subscribe(self, session: Session, first_byte: int, body: bytes) -> None:
        subscribe = decode_subscribe(session.version, first_byte, body)
        if subscribe.properties.subscription_identifiers:
            raise GatewayError(
                "subscription identifiers are not offered yet",
                reason_code=ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
            )
        codes = [self._add_subscription(session, entry) for entry in subscribe.entries]
        self._output.send(
            session.connection, encode_suback(session.version, subscribe.packet_id, codes)
        )

    def _add_subscription(self, session: Session, entry: SubscribeEntry) -> int:
        """Return the code that SUBACK has for one entry (section 3.9.3)."""
        topic_filter = entry.topic_filter
        refusal = self._filter_refusal(session, topic_filter)
        if refusal is not None:
            reason_code, why = refusal
            self._peer_log.warning(
                "subscription refused client_id=%r filter=%r reason_code=0x%02x why=%s",
                session.client_id,
                topic_filter,
                reason_code,
                why,
            )
            return reason_code
        qos = min(entry.qos, _QOS_MAX)
        options = qos | (NO_LOCAL if entry.no_local else 0)
        if self._subscriptions.add(topic_filter, session, options):
            session.add_filter(topic_filter)
            self._metrics.subscriptions_now += 1
            self._delivery.subscribe(topic_filter)
        self._delivery.replan(topic_filter)
        return qos

    def _filter_refusal(self, session: Session, topic_filter: str) -> tuple[int, str] | None:
        if parse_shared(topic_filter) is not None:
            return (
                ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                "shared subscriptions are not offered yet",
            )
        if topic_filter.startswith("$"):
            return ReasonCode.NOT_AUTHORIZED, "filters that begin with '$' are the server's"
        if len(topic_filter.encode()) > self._config.topic_bytes_max:
            return ReasonCode.TOPIC_FILTER_INVALID, "the filter is too long"
        if (
            session.filters_count >= self._config.subscriptions_max
            and topic_filter not in session.filters
        ):
            return ReasonCode.QUOTA_EXCEEDED, "the session has too many subscriptions"
        return None

    def _unsubscribe(self, session: Session, first_byte: int, body: bytes) -> None:
        unsubscribe = decode_unsubscribe(session.version, first_byte, body)
        codes = [
            ReasonCode.SUCCESS
            if self._remove_subscription(session, topic_filter)
            else ReasonCode.NO_SUBSCRIPTION_EXISTED
            for topic_filter in unsubscribe.topic_filters
        ]
        self._output.send(
            session.connection, encode_unsuback(session.version, unsubscribe.packet_id, codes)
        )

    def _remove_subscription(self, session: Session, topic_filter: str) -> bool:
        if not self._subscriptions.remove(topic_filter, session):
            return False
        session.remove_filter(topic_filter)
        self._metrics.subscriptions_now -= 1
        self._delivery.unsubscribe(topic_filter)
        self._delivery.replan(topic_filter)
        return True
