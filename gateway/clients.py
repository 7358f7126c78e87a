"""The shell for all packets but PUBLISH and PUBACK: it applies what the rules decide.

Owns: the session of each connection and of each client identifier, the order in which a decision
takes effect, its metrics and log lines.
Must not touch: what a client may ask for (``sessions.connect_rules``, ``subscribe_rules``),
appends, delivery plans; it tells ``Delivery`` what subscriptions need.
State changes between two awaits of its callers.
Spec: MQTT 5.0 and 3.1.1 chapter 3.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from motelog.core.clock import Clock
from motelog.core.limited_log import LimitedLog
from motelog.core.net.reactor_types import CloseReason, Fault
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import GatewayError, MalformedPacketError
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.output import Output
from motelog.gateway.sessions.connect_rules import (
    Accepted,
    ConnectRules,
    Refused,
    check_disconnect,
    refuse_above_limit,
    refuse_unread,
)
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.publish_rules import unexpected
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import (
    Granted,
    NotGranted,
    subscribe,
    unsubscribe,
)
from motelog.gateway.sessions.subscriptions import SubscriptionTree

logger = logging.getLogger(__name__)

#: Connections beyond ``connections_max``, for peers that have not sent CONNECT. So a full gateway
#: can answer a CONNECT: it refuses a new client, and a client whose old connection is half-open
#: takes that over. When these are taken too, peers wait until one of them has sent CONNECT or its
#: time is over.
CONNECTIONS_RESERVED: Final = 256

_FAULT_CODES: Final = {
    Fault.FRAME_TOO_LARGE: ReasonCode.PACKET_TOO_LARGE,
    Fault.MALFORMED_LENGTH: ReasonCode.MALFORMED_PACKET,
    Fault.IDLE: ReasonCode.KEEP_ALIVE_TIMEOUT,
}


class Clients:
    """The connections and sessions of one gateway.

    Callers name a connection by its number; a connection that has ended meanwhile is ignored.
    """

    def __init__(
        self,
        config: GatewayConfig,
        subscriptions: SubscriptionTree[Session],
        delivery: Delivery,
        metrics: GatewayMetrics,
        *,
        connections: list[Connection | None],
        connections_max: int,
        clock: Clock,
    ) -> None:
        self._config = config
        self._connections_max = connections_max
        self._connect_rules = ConnectRules(config)
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._metrics = metrics
        #: Number -> connection, None once it has ended; the hot path reads it too.
        self._connections = connections
        self._by_client_id: dict[str, Session] = {}
        #: Connections whose CONNECT had a Session Expiry Interval above 0.
        self._asked_for_expiry: set[Connection] = set()
        self._peer_log = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)

    # --- connections ---------------------------------------------------------------------

    def opened(self, output: Output, number: int) -> None:
        self._metrics.connections_opened += 1
        self._connections[number] = Connection(output, number)

    def faulted(self, number: int, fault: Fault) -> None:
        """Answer a peer whose stream has a fault; no more is read from this connection."""
        self._end_faulty(number, _FAULT_CODES[fault], fault.name)

    def closed(self, number: int, reason: CloseReason) -> None:
        """Note that the connection is gone."""
        connection = self._connections[number]
        if connection is None:
            return
        session = connection.session
        if reason is CloseReason.OUTPUT_FULL and session is not None:
            self._peer_log.warning(
                "a client reads too slowly and is disconnected, its output is full client_id=%r",
                session.client_id,
            )
        self._forget(connection)

    def disconnect(self, connection: Connection, reason_code: int, why: str) -> None:
        """End a connection with a reason code; MQTT 3 has none, so it is only closed."""
        session = connection.session
        if session is None:
            return  # ended meanwhile
        self._peer_log.warning(
            "the gateway closes a connection client_id=%r reason_code=0x%02x why=%s",
            session.client_id,
            reason_code,
            why,
        )
        self._close(connection, reason_code)

    def disconnect_all(self, reason_code: int) -> None:
        """End every connection, for a shutdown."""
        for session in list(self._by_client_id.values()):
            if session.connection is not None:
                self._close(session.connection, reason_code)

    def _close(self, connection: Connection, reason_code: int) -> None:
        if connection.version == 5:
            connection.send(encode_disconnect(5, reason_code))
        connection.output.close(connection.number)
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        """Drop a connection; its session ends with it (session expiry 0)."""
        self._metrics.connections_closed += 1
        self._connections[connection.number] = None
        self._asked_for_expiry.discard(connection)
        session = connection.session
        if session is not None:
            session.detach()
            self._end(session)

    def _end(self, session: Session) -> None:
        """Drop a session, its subscriptions and its cursors."""
        self._metrics.sessions_now -= 1
        self._delivery.forget(session)
        for topic_filter in list(session.filters):
            self._remove_subscription(session, topic_filter)
        del self._by_client_id[session.client_id]

    # --- packets -------------------------------------------------------------------------

    def malformed(self, number: int, reason_code: int, offset_bytes: int) -> None:
        """End a connection whose packet the frames kernel refused."""
        self._metrics.packets_malformed += 1
        self._end_faulty(number, reason_code, f"malformed packet at byte {offset_bytes}")

    def _end_faulty(self, number: int, reason_code: int, why: str) -> None:
        connection = self._connections[number]
        if connection is None:
            return
        if connection.session is None:
            self._refuse(connection, refuse_unread(reason_code, f"{why} before CONNECT"))
        else:
            self.disconnect(connection, reason_code, why)

    def handle(self, number: int, first_byte: int, body: bytes) -> None:
        """Handle one whole control packet; a fault ends that connection alone."""
        connection = self._connections[number]
        if connection is None:
            return  # closed earlier in this turn
        if connection.session is None:
            self._connect(connection, first_byte, body)
            return
        try:
            self._handle(connection, connection.session, first_byte, body)
        except GatewayError as exc:
            self._metrics.packets_malformed += isinstance(exc, MalformedPacketError)
            self.disconnect(connection, exc.reason_code, str(exc))

    def _handle(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        packet_type = first_byte >> 4
        if packet_type == PacketType.SUBSCRIBE:
            self._subscribe(connection, session, first_byte, body)
        elif packet_type == PacketType.UNSUBSCRIBE:
            self._unsubscribe(connection, session, first_byte, body)
        elif packet_type == PacketType.DISCONNECT:
            disconnect = decode_disconnect(connection.version, first_byte, body)
            check_disconnect(disconnect, asked_for_expiry=connection in self._asked_for_expiry)
            connection.output.close(connection.number)
            self._forget(connection)
        else:
            raise unexpected(first_byte)

    # --- CONNECT -------------------------------------------------------------------------

    def _connect(self, connection: Connection, first_byte: int, body: bytes) -> None:
        decision = self._connect_rules.decide(first_byte, body, new_client_id=_new_client_id)
        if isinstance(decision, Refused):
            self._refuse(connection, decision)
        elif self._has_room(decision.client_id):
            self._accept(connection, decision)
        else:
            self._refuse(connection, refuse_above_limit(decision))

    def _has_room(self, client_id: str) -> bool:
        """Return whether the client may connect: it is new and there is room, or it takes over."""
        return client_id in self._by_client_id or len(self._by_client_id) < self._connections_max

    def _accept(self, connection: Connection, accepted: Accepted) -> None:
        self._take_over(accepted.client_id)
        connection.version = accepted.version
        connection.user_name = accepted.user_name
        connection.packet_bytes_max = accepted.packet_bytes_max
        if accepted.asks_for_expiry:
            self._asked_for_expiry.add(connection)
        session = Session(accepted.client_id)
        session.attach(connection, inflight_max=accepted.inflight_max)
        self._by_client_id[accepted.client_id] = session
        self._metrics.sessions_now += 1
        output, number = connection.output, connection.number
        output.set_variant(number, accepted.version)
        output.set_limits(
            number,
            frame_bytes_max=self._config.packet_bytes_max,
            idle_s_max=accepted.idle_s_max,
        )
        connection.send(accepted.connack)

    def _take_over(self, client_id: str) -> None:
        """End the connection that has this client identifier. [MQTT-3.1.4-3]"""
        session = self._by_client_id.get(client_id)
        if session is not None and session.connection is not None:
            self._metrics.sessions_taken_over += 1
            self.disconnect(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over")

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        output, number = connection.output, connection.number
        self._metrics.connections_refused += 1
        self._peer_log.warning(
            "the gateway refuses a connection peer=%s:%d client_id=%r reason_code=0x%02x why=%s",
            *output.peer(number),
            refused.client_id,
            refused.reason_code,
            refused.why,
        )
        if refused.connack:
            output.send(number, refused.connack)
        output.close(number)
        self._forget(connection)

    # --- SUBSCRIBE, UNSUBSCRIBE ----------------------------------------------------------

    def _subscribe(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        subscribed = subscribe(self._config, session, connection.version, first_byte, body)
        connection.send(subscribed.suback)  # a client that cannot be answered gets nothing
        for decision in subscribed.decisions:
            if isinstance(decision, Granted):
                self._add_subscription(session, decision)
            else:
                self._log_refusal(session, decision)

    def _add_subscription(self, session: Session, granted: Granted) -> None:
        topic_filter = granted.topic_filter
        if self._subscriptions.add(topic_filter, session, granted.options):
            session.add_filter(topic_filter)
            self._metrics.subscriptions_now += 1
            self._delivery.subscribe(topic_filter)
        self._delivery.replan(topic_filter)

    def _log_refusal(self, session: Session, refused: NotGranted) -> None:
        self._peer_log.warning(
            "the gateway refuses a subscription client_id=%r filter=%r reason_code=0x%02x why=%s",
            session.client_id,
            refused.topic_filter,
            refused.reason_code,
            refused.why,
        )

    def _unsubscribe(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        unsubscribed = unsubscribe(session, connection.version, first_byte, body)
        connection.send(unsubscribed.unsuback)
        for topic_filter in unsubscribed.removed:
            self._remove_subscription(session, topic_filter)

    def _remove_subscription(self, session: Session, topic_filter: str) -> None:
        self._subscriptions.remove(topic_filter, session)
        session.remove_filter(topic_filter)
        self._metrics.subscriptions_now -= 1
        self._delivery.unsubscribe(topic_filter)
        self._delivery.replan(topic_filter)


def _new_client_id() -> str:
    return f"motelog-{secrets.token_hex(8)}"
