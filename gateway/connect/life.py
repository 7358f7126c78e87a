"""The life of a session in memory: resumed from its stored state, stored when its client leaves.

Owns: what enters memory with a session and leaves with it. Must not touch: connections
(``connections``), whether a client may have a session (``admission``), what is due for a session
whose client has left (``expiry``).
Spec: MQTT 5.0 sections 3.1.2.5, 3.1.2.11 and 4.1.

    CONNECT -> the stored session, or a new one -> Session in memory, filters in the tree
                                                     |  connection ends
    expiry 0: gone        else: one record, a row of the view  <-'      -> expires, or comes back
"""

from __future__ import annotations

from motelog.gateway.access.access import Access
from motelog.gateway.connect.parts import SessionParts
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.wills import Wills
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import resumable, who
from motelog.gateway.state.stored import StoredSession


class Life:
    """Puts the sessions of one gateway into memory, and takes them out."""

    def __init__(
        self,
        sessions: SessionParts,
        exchanges: Exchanges,
        wills: Wills,
        access: Access | None,
    ) -> None:
        """``access`` is None if clients do not log in."""
        self._table = sessions.table
        self._subscriptions = sessions.subscriptions
        self._shared = sessions.shared
        self._delivery = sessions.delivery
        self._journal = sessions.journal
        self._storing = sessions.storing
        self._metrics = sessions.metrics
        self._exchanges = exchanges
        self._wills = wills
        self._access = access
        #: Then filters stay in the tree, which ends too: removing a million would take seconds.
        self.is_shut_down = False

    def resume(self, session: Session, stored: StoredSession) -> None:
        """Put a stored session into memory; ``session`` already has its connection."""
        acl = None if self._access is None else self._access.acl
        if acl is not None:
            whole, stored = stored, resumable(acl, session, stored)
            if len(stored.filters) < len(whole.filters):
                session.particulars.withdrawn = True
                self._metrics.subscriptions_not_allowed += len(whole.filters) - len(stored.filters)
                self._shared.ended(whole)
        if stored.filters:
            stored = self._shared.resume(session, stored)
        for one in stored.filters:
            self._subscriptions.add(one.topic_filter, session, one.options)
            session.add_filter(one.topic_filter)
            if one.identifier:
                session.particulars.identifiers[one.topic_filter] = one.identifier
            self._metrics.subscriptions_now += 1
        for received in stored.received:
            known = received if received.queue else None
            session.particulars.received[received.packet_id] = known
        if stored.received:
            self._exchanges.resumed(session)
        self._delivery.resume(session, stored)
        self._metrics.sessions_resumed += 1

    def leave(self, session: Session) -> None:
        """Remove a session whose client has left from memory: it is stored, or ends."""
        session.detach()
        self._shared.lost(session)
        will = session.particulars.will if session.has_particulars else None
        # When this run is over, other gateways are responsible for the stored sessions.
        is_stored = session.expiry_s > 0
        is_ours = not (is_stored and self._journal.is_over)
        if will is not None and (will.delay_s == 0 or not is_stored) and is_ours:
            session.particulars.will = None
            self._wills.publish(who(session), will)
        if is_stored and is_ours:
            self._storing.leave(session)
        self._metrics.sessions_now -= 1
        self._delivery.forget(session)
        self._metrics.subscriptions_now -= len(session.filters)
        if not self.is_shut_down:
            for topic_filter in session.filters:
                self._subscriptions.remove(topic_filter, session)
            self._delivery.unwatch(session)
        self._shared.leave_all(session)
        self._table.remove(session.client_id)
