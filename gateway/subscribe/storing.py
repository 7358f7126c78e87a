"""The stored state of sessions that are in memory, and the records that keep it.

Owns: the state of a session as it is stored. Must not touch: when to store it (``clients``,
``subscribing``), how it is appended and found again (``state``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from motelog.core.errors import MotelogError
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.log.log_port import Then
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import Received, StoredFilter, StoredSession
from motelog.gateway.subscribe.sharing import SharedSubscriptions


class Storing:
    """Stores the sessions of one gateway."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Receiver],
        shared: SharedSubscriptions,
        delivery: Delivery,
        journal: SessionJournal,
    ) -> None:
        self._subscriptions = subscriptions
        self._shared = shared
        self._delivery = delivery
        self._journal = journal

    def store(self, session: Session, *, claim: int = 0, then: Then | None = None) -> None:
        """Put the state of a connected session into the log, with the rest of the turn.

        ``claim`` is the number of the claim that this settles, 0 if there is none. ``then`` is
        called with None when the state is in the log, or with the error.
        """
        lagging = [queue.name for queue in session.lagging] if session.lagging else ()
        self._journal.collect(self.state(session), lagging=lagging, claim=claim, then=then)

    def store_all(self, changed: Mapping[Session, Sequence[Then]]) -> None:
        """Store the sessions that a turn has changed; see ``Turn.store``."""
        for session, thens in changed.items():
            if session.connection is not None:
                self.store(session, then=partial(_call_all, thens))

    def leave(self, session: Session) -> None:
        """Put the state of a session whose client has gone into the log."""
        self._journal.collect(self.state(session, left_ms=self._journal.clock.now_ms()))

    def state(self, session: Session, *, left_ms: int | None = None) -> StoredSession:
        """Return the state of a session as the log keeps it."""
        filters: tuple[StoredFilter, ...] = ()
        if session.filters:
            filters = tuple([self._filter(session, text) for text in session.filters])
        if session.has_particulars:
            filters += self._shared.filters(session)
        stored = StoredSession(
            session.client_id,
            session.expiry_s,
            left_ms,
            filters,
            self._delivery.cursors(session),
            self._delivery.inflight(session),
            owner=session.owner,
            begun_ms=session.begun_ms,
        )
        if not session.has_particulars:
            return stored
        particulars = session.particulars
        return msgspec.structs.replace(
            stored,
            received=tuple(
                known or Received(packet_id, "", 0)
                for packet_id, known in particulars.received.items()
            ),
            delivered=tuple((queue.name, at) for queue, at in particulars.delivered),
            will=particulars.will,
            replays=self._delivery.replays(session),
        )

    def _filter(self, session: Session, topic_filter: str) -> StoredFilter:
        options = self._subscriptions.options(topic_filter, session)
        assert options is not None, "a session's filters are in the tree"
        if not session.has_particulars:
            return StoredFilter(topic_filter, options)
        particulars = session.particulars
        since = {queue.name: at for queue, at in particulars.since.get(topic_filter, {}).items()}
        identifier = particulars.identifiers.get(topic_filter, 0)
        return StoredFilter(topic_filter, options, identifier, since)


def _call_all(thens: Sequence[Then], error: MotelogError | None) -> None:
    for then in thens:
        then(error)
