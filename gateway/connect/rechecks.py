"""Whether clients that are connected may go on after a change of logins or rights.

Owns: who is still to be looked at after a change.
Must not touch: what a client may do (``access``), the sessions that it looks at.
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

#: Sessions that are looked at in one go after a change of logins or rights.
RECHECK_COUNT: Final = 1000
NO_LONGER: Final = "the client has no right to this any more"


class Rechecks:
    """``sessions`` has the connected ones by client identifier."""

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
        #: Client identifiers that are still to be looked at after a change.
        self._waiting: list[str] = []

    def begin(self) -> None:
        """Have all sessions looked at: logins or rights have changed."""
        self._waiting = list(self._sessions)

    def look(self) -> bool:
        """Look at some of them; return whether there are more.

        A client is disconnected if it could not log in any more, or if it has lost the right to
        something that it has: a subscription or its will. What it publishes is asked for anew.
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
        """Say why a client cannot go on as it is, None if it can."""
        identity, acl, whose = session.identity, self._access.acl, who(session)
        if identity is None or not self._access.logins.holds(identity):
            return "the client could not log in any more"
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
