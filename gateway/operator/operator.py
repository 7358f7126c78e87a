"""What an operator can see and change in a running gateway; the console calls it.

Owns: pages of retained messages, clients and sessions, their removal by an operator, the traces.
Must not touch: HTTP, the view's rows.
Invariant: a page is one slice of a scan, so that no request makes clients wait.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

from msgspec.structs import asdict

from motelog.core.addresses import format_address
from motelog.core.clock import Clock
from motelog.core.message import MQTT_TOPIC, encode_host, encode_properties
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.deliver.outgoing import message_qos
from motelog.gateway.log.log_port import After, LogPort, Then
from motelog.gateway.mapping.message_properties import client_id_property
from motelog.gateway.mqtt.topics import check_topic_filter
from motelog.gateway.operator.answers import (
    Client,
    ClientEntry,
    ClientPage,
    Flight,
    GatewayNode,
    GatewayNodes,
    MessageReceivers,
    RetainedEntry,
    RetainedMessage,
    RetainedPage,
    SessionEntry,
    SessionPage,
    SessionQueue,
    Subscription,
    Trace,
    Will,
)
from motelog.gateway.operator.answers import Session as SessionAnswer
from motelog.gateway.operator.receivers import Receivers
from motelog.gateway.operator.sessions import OperatorSessions
from motelog.gateway.operator.traces import Traces
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import NO_LOCAL, RETAIN_AS_PUBLISHED
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.retained_rows import Retained
from motelog.gateway.state.stored import FlightState, StoredFilter, StoredWill

#: Most messages and sessions in one page: each is a row to decode. Clients are in memory.
PAGE_MAX: Final = 1000
SESSIONS_PAGE_MAX: Final = 100
CLIENTS_PAGE_MAX: Final = 1000
_HOST: Final = encode_host("127.0.0.1", 0)
#: By protocol level.
PROTOCOLS: Final[dict[int, Literal["3.1", "3.1.1", "5.0"]]] = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class Operator:
    """One gateway as its operator sees it; ``listeners`` are the names of its listeners.

    Methods raise ViewError while the view cannot be used.
    """

    def __init__(
        self,
        log: LogPort,
        retained: RetainedStore,
        sessions: OperatorSessions,
        delivery: Delivery,
        *,
        listeners: Sequence[str],
        clock: Clock,
        after: After,
    ) -> None:
        self._log_port = log
        self._retained = retained
        self._sessions = sessions
        self._delivery = delivery
        self._listeners = listeners
        self._clock = clock
        self._after = after
        self._traces = Traces(sessions, clock=clock)
        self._receivers = Receivers(log, sessions, delivery)

    def tick(self) -> None:
        """End the traces that are due; called each second."""
        self._traces.tick()

    def list_retained(self, topic_filter: str, after: str, limit: int) -> RetainedPage:
        """Return a page by topic name; TopicFilterError. It may be empty though more follow."""
        check_topic_filter(topic_filter)
        limit = min(max(limit, 1), PAGE_MAX)
        found = self._retained.scan(topic_filter, after, limit, self._retained.now())
        entries = [_retained(message) for message in found.messages]
        return RetainedPage(messages=entries, after=found.after)

    def get_retained(self, name: str) -> RetainedMessage | None:
        """Return the message of a topic name, None if there is none."""
        message = self._retained.get(name)
        if message is None:
            return None
        return RetainedMessage(**asdict(_retained(message)), payload=message.payload)

    def delete_retained(self, name: str, then: Then) -> bool:
        """Remove one message; return False if there is none.

        Subscribers get no message about it, as nothing is published. ``then`` is called when the
        removal is in the log, or with the error.
        """
        if self._retained.get(name) is None:
            return False
        text = encode_properties({MQTT_TOPIC: name})
        now_ms = self._clock.now_ms()
        written = self._retained.write(name, (None, b"", text, 0, now_ms, _HOST, 0, 0, 0, 0))
        written.ticket = self._log_port.append([written.record])
        self._log_port.settle_soon()
        self._after(written.ticket, then)
        return True

    def list_gateways(self) -> GatewayNodes:
        """Return this gateway, and the others that are alive according to the log."""
        found = [
            GatewayNode(name=name, seen_ms=seen_ms, is_here=is_here)
            for name, seen_ms, is_here in self._sessions.gateways()
        ]
        return GatewayNodes(gateways=sorted(found, key=lambda one: one.name))

    def list_receivers(
        self, name: str, topic: str, queue_names: Collection[str], queue_offset: int, client_id: str
    ) -> MessageReceivers | None:
        """Return the receivers of a message that are connected here, or one session.

        One session if ``client_id`` is set; None if there is no such session. ``name`` is the MQTT
        topic name of the message, ``queue_names`` are the possible names of its queue of ``topic``.
        """
        place = name, topic, queue_names, queue_offset
        if client_id:
            return self._receivers.of_client(client_id, *place)
        return self._receivers.of_message(*place)

    # --- clients -------------------------------------------------------------------------

    def list_clients(self, prefix: str, after: str, limit: int) -> ClientPage:
        """Return a page of the clients that are connected here, by client identifier."""
        limit = min(max(limit, 1), CLIENTS_PAGE_MAX)
        names = self._sessions.connected(prefix, after, limit)
        found = (self._sessions.live(name) for name in names)
        clients = [self._client(*live) for live in found if live is not None]
        return ClientPage(clients=clients, after=names[-1] if len(names) == limit else None)

    def get_client(self, client_id: str) -> Client | None:
        """Return all details of a client, None if it is not connected here."""
        live = self._sessions.live(client_id)
        session = self.get_session(client_id)
        if live is None or session is None:
            return None
        connection = live[1]
        return Client(
            **asdict(self._client(*live)),
            inflight_max=live[0].inflight_max,
            packet_bytes_max=connection.packet_bytes_max,
            topic_alias_max=connection.topic_alias_max,
            output_bytes=connection.output.output_bytes(connection.number),
            session=session,
        )

    def _client(self, session: Session, connection: Connection) -> ClientEntry:
        connected = self._sessions.connected_of(connection)
        return ClientEntry(
            client_id=session.client_id,
            user=session.owner,
            protocol=PROTOCOLS[connection.version],
            listener=self._listeners[connection.output.listener(connection.number)],
            peer=_peer(connection),
            since_ms=connected.at_ms,
            keep_alive_s=connected.keep_alive_s,
            filters=session.subscriptions_count,
            inflight=len(session.inflight) if session.has_inflight else 0,
        )

    def kick(self, client_id: str) -> bool:
        """Disconnect a client; return False if it is not connected here. Its session stays."""
        is_there = self._sessions.kick(client_id)
        if is_there:
            self._log_port.settle_soon()
        return is_there

    def start_trace(self, client_id: str, seconds: int, packets: int) -> Trace | None:
        """Trace a client for a time; None if it is not connected here. TraceRefusedError."""
        return self._traces.start(client_id, seconds, packets)

    def read_trace(self, trace: str, after: int) -> Trace | None:
        """Return packets of a trace after number ``after``; None if there is no such trace."""
        return self._traces.read(trace, after)

    def end_trace(self, trace: str) -> bool:
        """End a trace; return False if there is none. Its packets are kept for a while."""
        return self._traces.end(trace)

    # --- sessions ------------------------------------------------------------------------

    def list_sessions(self, prefix: str, after: str, limit: int) -> SessionPage:
        """Return a page of sessions by client identifier. It may be short though more follow."""
        limit = min(max(limit, 1), SESSIONS_PAGE_MAX)
        names = self._sessions.named(prefix, after, limit)
        found = (self._session_entry(name) for name in names)
        sessions = [session for session in found if session is not None]
        return SessionPage(sessions=sessions, after=names[-1] if len(names) == limit else None)

    def _session_entry(self, client_id: str) -> SessionEntry | None:
        live = self._sessions.live(client_id)
        if live is not None:
            session, connection = live
            return SessionEntry(
                client_id=client_id,
                is_connected=True,
                since_ms=self._sessions.connected_of(connection).at_ms,
                expiry_s=session.expiry_s,
                expires_ms=None,
                filters=session.subscriptions_count,
                inflight=len(session.inflight) if session.has_inflight else 0,
            )
        stored = self._sessions.describe(client_id)
        if stored is None:
            return None
        return SessionEntry(
            client_id=client_id,
            is_connected=stored.left_ms is None,
            since_ms=stored.left_ms,
            expiry_s=stored.expiry_s,
            expires_ms=stored.expires_ms,
            filters=len(stored.filters),
            inflight=len(stored.inflight),
        )

    def get_session(self, client_id: str) -> SessionAnswer | None:
        """Return all details of a session, None if there is none."""
        entry = self._session_entry(client_id)
        stored = self._sessions.describe(client_id)
        if entry is None or stored is None:
            return None
        waiting = self._delivery.waiting(stored.cursors)
        live = self._sessions.live(client_id)
        session, connection = (None, None) if live is None else live
        return SessionAnswer(
            client_id=client_id,
            is_connected=entry.is_connected,
            since_ms=entry.since_ms,
            expiry_s=entry.expiry_s,
            expires_ms=entry.expires_ms,
            user=stored.owner,
            version=None if connection is None else connection.version,
            peer=None if connection is None else _peer(connection),
            filters=[_subscription(one) for one in stored.filters],
            queues={
                name: SessionQueue(cursor=cursor, messages_waiting=waiting.get(name))
                for name, cursor in sorted(stored.cursors.items())
                if waiting.get(name) != 0
            },
            inflight=[
                Flight(
                    packet_id=flight.packet_id,
                    queue=flight.queue,
                    queue_offset=flight.queue_offset,
                    qos=flight.qos,
                    state="sent" if flight.state == FlightState.SENT else "released",
                )
                for flight in stored.inflight
            ],
            received=[received.packet_id for received in stored.received],
            dropped=dict(_dropped(session)),
            will=None if stored.will is None else _will(stored.will),
            will_due_ms=stored.will_due_ms,
        )

    def end_session(self, client_id: str, then: Then) -> bool:
        """End a session, and its connection; return False if there is no such session.

        ``then`` is called when the end is in the log, or with the error.
        """
        is_there = self._sessions.end(client_id, then)
        if is_there:
            self._log_port.settle_soon()
        return is_there

    def end_away_session(self, client_id: str, then: Then) -> bool:
        """Like ``end_session``, but also return False if the client is connected anywhere."""
        stored = self._sessions.describe(client_id)
        is_live = self._sessions.live(client_id) is not None
        if is_live or stored is None or stored.left_ms is None:
            return False
        return self.end_session(client_id, then)


def _peer(connection: Connection) -> str:
    return format_address(*connection.output.peer(connection.number))


def _dropped(session: Session | None) -> dict[str, int]:
    return {} if session is None or not session.has_particulars else session.particulars.dropped


def _subscription(one: StoredFilter) -> Subscription:
    options = one.options
    return Subscription(
        filter=one.topic_filter,
        qos=options & 3,
        no_local=bool(options & NO_LOCAL),
        retain_as_published=bool(options & RETAIN_AS_PUBLISHED),
        identifier=one.identifier or None,
    )


def _will(will: StoredWill) -> Will:
    return Will(
        topic=will.topic,
        payload_bytes=len(will.payload),
        qos=will.qos,
        retain=will.retain,
        delay_s=will.delay_s,
    )


def _retained(message: Retained) -> RetainedEntry:
    return RetainedEntry(
        topic=message.name,
        payload_bytes=len(message.payload),
        qos=message_qos(message.properties),
        client_id=client_id_property(message.properties),
        stored_ms=message.store_ms,
        expires_ms=message.expires_ms,
    )
