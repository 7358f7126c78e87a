"""What an operator sees and changes of a gateway while it runs; the console asks here.

Owns: pages of retained messages and of sessions, their removal by an operator.
Must not touch: HTTP, the view's rows.
Invariant: a page is one slice of a scan, so that no request keeps the clients waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from motelog.core.addresses import format_address
from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.message import MQTT_TOPIC, encode_host, encode_properties
from motelog.gateway.clients import Clients
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.deliver.outgoing import message_qos
from motelog.gateway.log.log_port import LogPort, Ticket
from motelog.gateway.mapping.message_properties import client_id_property
from motelog.gateway.mqtt.topics import check_topic_filter
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.subscriptions import NO_LOCAL, RETAIN_AS_PUBLISHED
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.retained_rows import Retained
from motelog.gateway.state.stored import FlightState, StoredFilter

#: Most messages of one page, and most sessions: each is a row to decode.
PAGE_MAX: Final = 1000
SESSIONS_PAGE_MAX: Final = 100
_HOST: Final = encode_host("127.0.0.1", 0)


class Page(NamedTuple):
    """Some messages; ``after`` is what the next page begins behind, None at the end."""

    messages: list[dict[str, Any]]
    after: str | None


class SessionPage(NamedTuple):
    """Some sessions; ``after`` is what the next page begins behind, None at the end."""

    sessions: list[dict[str, Any]]
    after: str | None


class Operator:
    """One gateway as its operator sees it. Methods raise ViewError while the view is not usable."""

    def __init__(
        self,
        log: LogPort,
        retained: RetainedStore,
        clients: Clients,
        delivery: Delivery,
        *,
        clock: Clock,
        after: Callable[[Ticket, Callable[[MotelogError | None], None]], None],
    ) -> None:
        self._log_port = log
        self._retained = retained
        self._clients = clients
        self._delivery = delivery
        self._clock = clock
        self._after = after

    def list_retained(self, topic_filter: str, after: str, limit: int) -> Page:
        """Return a page by topic name; TopicFilterError. It may be empty though more follow."""
        check_topic_filter(topic_filter)
        limit = min(max(limit, 1), PAGE_MAX)
        found = self._retained.scan(topic_filter, after, limit, self._retained.now())
        return Page([_brief(message) for message in found.messages], found.after)

    def get_retained(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Return one message and its payload, None if there is none."""
        message = self._retained.get(name)
        return None if message is None else (_brief(message), message.payload)

    def delete_retained(self, name: str, then: Callable[[MotelogError | None], None]) -> bool:
        """Remove one message; return False if there is none.

        Its subscribers are not told, as nothing is published. ``then`` is called when it is sure,
        or with the reason why it failed.
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

    # --- sessions ------------------------------------------------------------------------

    def list_sessions(self, prefix: str, after: str, limit: int) -> SessionPage:
        """Return a page by client identifier. It may be short though more follow."""
        limit = min(max(limit, 1), SESSIONS_PAGE_MAX)
        names = self._clients.named(prefix, after, limit)
        found = (self._brief_session(name) for name in names)
        sessions = [session for session in found if session is not None]
        return SessionPage(sessions, names[-1] if len(names) == limit else None)

    def _brief_session(self, client_id: str) -> dict[str, Any] | None:
        live = self._clients.live(client_id)
        if live is not None:
            session, connected_ms = live
            return {
                "client_id": client_id,
                "is_connected": True,
                "since_ms": connected_ms,
                "expiry_s": session.expiry_s,
                "expires_ms": None,
                "filters": session.subscriptions_count,
                "inflight": len(session.inflight) if session.has_inflight else 0,
            }
        stored = self._clients.describe(client_id)
        if stored is None:
            return None
        return {
            "client_id": client_id,
            "is_connected": stored.left_ms is None,
            "since_ms": stored.left_ms,
            "expiry_s": stored.expiry_s,
            "expires_ms": stored.expires_ms,
            "filters": len(stored.filters),
            "inflight": len(stored.inflight),
        }

    def get_session(self, client_id: str) -> dict[str, Any] | None:
        """Return what there is to know of one session, None if there is none."""
        brief = self._brief_session(client_id)
        stored = self._clients.describe(client_id)
        if brief is None or stored is None:
            return None
        waiting = self._delivery.waiting(stored.cursors)
        live = self._clients.live(client_id)
        session = None if live is None else live[0]
        connection = None if session is None else session.connection
        will = stored.will
        return brief | {
            "user": stored.owner,
            "version": None if connection is None else connection.version,
            "peer": None if connection is None else _peer(connection),
            "filters": [_filter(one) for one in stored.filters],
            "queues": {
                name: {"cursor": cursor, "messages_waiting": waiting.get(name)}
                for name, cursor in sorted(stored.cursors.items())
                if waiting.get(name) != 0
            },
            "inflight": [
                {
                    "packet_id": flight.packet_id,
                    "queue": flight.queue,
                    "queue_offset": flight.queue_offset,
                    "qos": flight.qos,
                    "state": FlightState(flight.state).name.lower(),
                }
                for flight in stored.inflight
            ],
            "received": [received.packet_id for received in stored.received],
            "dropped": session.particulars.dropped if session and session.has_particulars else 0,
            "will": will
            and {
                "topic": will.topic,
                "payload_bytes": len(will.payload),
                "qos": will.qos,
                "retain": will.retain,
                "delay_s": will.delay_s,
            },
            "will_due_ms": stored.will_due_ms,
        }

    def end_session(self, client_id: str, then: Callable[[MotelogError | None], None]) -> bool:
        """End one session, and its connection; return False if there is none.

        ``then`` is called when it is sure, or with the reason why it failed.
        """
        is_there = self._clients.end_session(client_id, then)
        if is_there:
            self._log_port.settle_soon()
        return is_there


def _peer(connection: Connection) -> str:
    return format_address(*connection.output.peer(connection.number))


def _filter(one: StoredFilter) -> dict[str, Any]:
    options = one.options
    return {
        "filter": one.topic_filter,
        "qos": options & 3,
        "no_local": bool(options & NO_LOCAL),
        "retain_as_published": bool(options & RETAIN_AS_PUBLISHED),
        "identifier": one.identifier or None,
    }


def _brief(message: Retained) -> dict[str, Any]:
    return {
        "topic": message.name,
        "payload_bytes": len(message.payload),
        "qos": message_qos(message.properties),
        "client_id": client_id_property(message.properties),
        "stored_ms": message.store_ms,
        "expires_ms": message.expires_ms,
    }
