"""The stored state of sessions that are in memory, and the records that keep it.

Owns: the state of a session as it is stored. Must not touch: when to store it (``clients``,
``subscribing``), how it is appended and found again (``state``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from motelog.core.errors import MotelogError
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.log.log_port import Then
from motelog.gateway.mqtt.topics import is_shared
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Particulars, Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import FiltersChange, Received, StoredFilter, StoredSession
from motelog.gateway.subscribe.sharing import SharedSubscriptions
from motelog.gateway.turn import Changed

#: A session with more filters is not stored whole at each SUBSCRIBE: the changes are stored.
WHOLE_FILTERS_MAX: Final = 16


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
        if session.has_particulars:
            session.particulars.stores += 1
            session.particulars.has_base = False
        self._journal.collect(self.state(session), lagging=lagging, claim=claim, then=then)

    def store_all(self, stored: Mapping[Session, Changed]) -> None:
        """Store the sessions whose filters a turn has changed; see ``Turn.store``."""
        for session, changed in stored.items():
            if session.connection is None:
                continue
            if session.has_particulars and self._may_add(session, changed.filters):
                self._journal.collect_filters(
                    self._change(session, changed.filters), partial(_call_all, changed.thens)
                )
                continue
            if len(session.filters) > WHOLE_FILTERS_MAX:
                stores = session.particulars.stores + 1  # with the record that follows
                changed.thens.append(partial(self._note_base, session, stores))
            self.store(session, then=partial(_call_all, changed.thens))

    def _may_add(self, session: Session, filters: Iterable[str]) -> bool:
        """Whether the log has a whole record of a session, to which these filters may be added.

        While other gateways live, one of them may have written a record of the session meanwhile,
        unless this gateway has got it by a claim.
        """
        particulars = session.particulars
        return (
            particulars.has_base
            and (particulars.is_claimed or not self._journal.others_live)
            and not any(map(is_shared, filters))
        )

    def _note_base(self, session: Session, stores: int, error: MotelogError | None) -> None:
        """Note that the log has a whole record, unless another one was appended since."""
        particulars = session.particulars
        if error is None and particulars.stores == stores:
            particulars.has_base = True
            particulars.is_claimed = self._journal.is_claimed(session.client_id)

    def _change(self, session: Session, filters: Iterable[str]) -> FiltersChange:
        present = session.filters
        now = [text for text in filters if text in present]
        return FiltersChange(
            self._delivery.progress_of(session),
            tuple([self._filter(session, text, session.particulars) for text in now]),
            tuple([text for text in filters if text not in present]),
            self._delivery.cursors(session, now),
        )

    def leave(self, session: Session) -> None:
        """Put the state of a session whose client has gone into the log."""
        self._journal.collect(self.state(session, left_ms=self._journal.clock.now_ms()))

    def state(self, session: Session, *, left_ms: int | None = None) -> StoredSession:
        """Return the state of a session as the log keeps it."""
        particulars = session.particulars if session.has_particulars else None
        present, filters = session.filters, tuple[StoredFilter, ...]()
        if present:
            filters = tuple([self._filter(session, text, particulars) for text in present])
        if particulars is not None:
            filters += self._shared.filters(session)
        stored = StoredSession(
            session.client_id,
            session.expiry_s,
            left_ms,
            filters,
            self._delivery.cursors(session, present),
            self._delivery.inflight(session),
            owner=session.owner,
            begun_ms=session.begun_ms,
        )
        if particulars is None:
            return stored
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

    def _filter(
        self, session: Session, topic_filter: str, particulars: Particulars | None
    ) -> StoredFilter:
        options = self._subscriptions.options(topic_filter, session)
        assert options is not None, "a session's filters are in the tree"
        if particulars is None:
            return StoredFilter(topic_filter, options)
        since = {queue.name: at for queue, at in particulars.since.get(topic_filter, {}).items()}
        identifier = particulars.identifiers.get(topic_filter, 0)
        return StoredFilter(topic_filter, options, identifier, since)


def _call_all(thens: Sequence[Then], error: MotelogError | None) -> None:
    for then in thens:
        then(error)
