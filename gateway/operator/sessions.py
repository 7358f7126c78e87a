"""Sessions as an operator sees and ends them, connected or away.

Owns: the end of a session that an operator requests. Must not touch: pages and answers
(``operator``), how a connection ends (``connections``).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from motelog.core.errors import MotelogError
from motelog.gateway.connect.connections import Connections
from motelog.gateway.connect.expiry import Expiry
from motelog.gateway.connect.parts import SessionParts
from motelog.gateway.log.log_port import SETTLED, After, Then
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.topics import is_shared
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.claims import ClaimKind
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import ViewError


class SessionInUseError(GatewayError):
    """A session cannot be ended here: another gateway serves it, or it is a group in use."""

    def __init__(self, client_id: str) -> None:
        super().__init__(
            f"{client_id!r} is connected to another gateway, or is a shared subscription in use"
        )


class OperatorSessions:
    """The sessions of one gateway, and those that are stored in the log."""

    def __init__(
        self,
        sessions: SessionParts,
        connections: Connections,
        expiry: Expiry,
        after: After,
    ) -> None:
        self._table = sessions.table
        self._subscriptions = sessions.subscriptions
        self._shared = sessions.shared
        self._journal = sessions.journal
        self._claims = sessions.claims
        self._storing = sessions.storing
        self._connections = connections
        self._expiry = expiry
        self._after = after
        self.connected = self._table.named
        self.connected_of = self._table.connected
        self.gateways = self._journal.gateways

    def live(self, client_id: str) -> tuple[Session, Connection] | None:
        """Return the session of a connected client, and its connection; None if there is none."""
        return self._table.live(client_id)

    def named(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return client identifiers of sessions, connected or away, in order; ViewError."""
        connected = self.connected(prefix, after, limit)
        return sorted({*self._journal.named(prefix, after, limit), *connected})[:limit]

    def wanting(self, name: str) -> Collection[Receiver]:
        """Return the sessions connected here, and the groups, whose filters match a topic name."""
        return self._subscriptions.match(name)

    def describe(self, client_id: str) -> StoredSession | None:
        """Return a whole session, connected or away, in its stored form; ViewError."""
        if is_shared(client_id):
            return self._shared.describe(client_id)
        session = self._table.by_client_id.get(client_id)
        return self._journal.load(client_id) if session is None else self._storing.state(session)

    def kick(self, client_id: str) -> bool:
        """Disconnect a client; return False if it is not connected here. Its session stays."""
        live = self.live(client_id)
        if live is None:
            return False
        code = ReasonCode.ADMINISTRATIVE_ACTION
        self._connections.end(live[1], code, "an operator has disconnected the client")
        return True

    def end(self, client_id: str, then: Then) -> bool:
        """End a session, and its connection; return False if there is no such session.

        Its will is published. ``then`` is called when the end is in the log, or with the error.
        ViewError; SessionInUseError if another gateway serves it, or if it is a shared subscription
        in use.
        """
        live = self.live(client_id)
        if live is None:
            return self._end_stored(client_id, then)
        session, connection = live
        was_stored = session.expiry_s > 0
        session.expiry_s = 0
        code = ReasonCode.ADMINISTRATIVE_ACTION
        self._connections.end(connection, code, "an operator has ended the session")
        ticket = self._journal.end(client_id) if was_stored else SETTLED
        self._after(ticket, then)
        return True

    def _end_stored(self, client_id: str, then: Then) -> bool:
        """End a session that is not connected here; another gateway may have to release it."""
        stored = self.describe(client_id)
        if stored is None:
            return False
        if self._journal.others_live and not is_shared(client_id):
            go_on = partial(self._end_in_turn, client_id, then)
            lost = partial(_lost, then)
            self._claims.want(client_id, ClaimKind.TO_END, go_on=go_on, lost=lost)
            self._claims.commit()
            return True
        if stored.left_ms is None:
            raise SessionInUseError(client_id)
        if is_shared(client_id):
            ticket = self._shared.end(client_id)
        else:
            ticket = self._expiry.discard(stored)
        self._after(ticket, then)
        return True

    def _end_in_turn(self, client_id: str, then: Then, claim: int) -> None:
        """End a session after this gateway's claim of it has been granted."""
        try:
            stored = self._journal.load(client_id)
        except ViewError as exc:
            self._claims.settle(client_id, claim)
            then(exc)
            return
        if stored is None:
            self._claims.settle(client_id, claim)
            then(None)
            return

        def ended(error: MotelogError | None) -> None:
            if error is not None:
                self._claims.settle(client_id, claim)
            then(error)

        self._after(self._expiry.discard(stored, claim), ended)


def _lost(then: Then, why: str | None) -> None:
    then(GatewayError(why or "its client has connected meanwhile"))
