"""Checks whether connected clients may stay connected after a change of logins or rights.

Owns: which clients are still to be checked after a change.
Must not touch: what a client may do (``access``), the sessions that it checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from motelog.gateway.access.access import Access
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import judged, who
from motelog.gateway.sessions.subscriptions import QOS_MASK, SubscriptionTree
from motelog.gateway.turn import Turn

#: Sessions that one call checks after a change of logins or rights.
RECHECK_COUNT: Final = 1000
NO_LONGER: Final = "the client no longer has a right to this"


class Rechecks:
    """Checks the clients of one gateway.

    ``sessions`` are those of connected clients, by client identifier.
    """

    def __init__(
        self,
        turn: Turn,
        access: Access,
        sessions: Mapping[str, Session],
        subscriptions: SubscriptionTree[Receiver],
    ) -> None:
        self._turn = turn
        self._access = access
        self._sessions = sessions
        self._subscriptions = subscriptions
        #: Client identifiers that are still to be checked after a change.
        self._waiting: list[str] = []

    def begin(self) -> None:
        """Begin a check of all sessions, because logins or rights have changed."""
        self._waiting = list(self._sessions)

    def look(self) -> bool:
        """Check some of the sessions; return whether there are more.

        A client is disconnected if it could no longer log in, or if it has lost the right to a
        subscription or to its will. Its rights to publish are looked up again at its next publish.
        """
        names = self._waiting[-RECHECK_COUNT:]
        del self._waiting[-RECHECK_COUNT:]
        for client_id in names:
            session = self._sessions.get(client_id)
            if session is None or session.connection is None:
                continue
            connection = session.connection
            connection.forget_publishable()
            why = self._lost(session)
            if why is not None:
                self._turn.end(connection, ReasonCode.NOT_AUTHORIZED, why)
        return bool(self._waiting)

    def _lost(self, session: Session) -> str | None:
        """Return why a client must be disconnected, None if it may stay."""
        identity, acl, whose = session.identity, self._access.acl, who(session)
        if identity is None or not self._access.logins.holds(identity):
            return "the client could no longer log in"
        if acl is None:
            return None
        if session.has_particulars and session.particulars.will is not None:
            will = session.particulars.will
            if acl.publish_qos(whose, will.topic) < will.qos:
                return NO_LONGER
        for topic_filter in session.filters:
            options = self._subscriptions.options(topic_filter, session) or 0
            if acl.subscribe_qos(whose, topic_filter) < options & QOS_MASK:
                return NO_LONGER
        for name, group in session.shares.items():
            qos = group[session].options & QOS_MASK
            if acl.subscribe_qos(whose, judged(name)) < qos:
                return NO_LONGER
        return None
