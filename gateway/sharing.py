"""The life of groups: who joins and leaves a shared subscription, and when a group ends.

Owns: the groups that have a member connected, what the log is told of groups.
Must not touch: which member takes a message (``deliver``), what a client may ask for.
Invariants: a group is in memory while a member is connected. It is stored, in the form of a session
under its own name, from the first member on whose session outlives its connection; it ends with the
session of the last member.
Spec: MQTT 5.0 section 4.8.2.

    join -> Group in memory, its filter in the tree
                | the last connection of a member ends
    nobody's session is left: gone    else: one record, a row of the view -> join
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from motelog.core.clock import Clock
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import GatewayError
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.topics import SHARED_PREFIX
from motelog.gateway.sessions.groups import Group, Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK, RETAIN_AS_PUBLISHED, SubscriptionTree
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import StoredFilter, StoredSession
from motelog.gateway.state.view import ViewError

_OPTIONS = QOS_MASK | RETAIN_AS_PUBLISHED


def is_shared(topic_filter: str) -> bool:
    """Whether a legal topic filter is a shared subscription's."""
    return topic_filter.startswith(SHARED_PREFIX)


class SharedSubscriptions:
    """The groups of one gateway; their names are the subscriptions' whole filters."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Receiver],
        delivery: Delivery,
        journal: SessionJournal,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
    ) -> None:
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._shares = delivery.shares
        self._journal = journal
        self._metrics = metrics
        self._clock = clock
        self._groups: dict[str, Group] = {}
        self._last_number = 0
        #: Stored groups that may have lost their last member; at the start that can be any.
        self._in_doubt = dict.fromkeys(journal.names(SHARED_PREFIX))

    # --- members -------------------------------------------------------------------------

    def join(self, session: Session, name: str, options: int, identifier: int) -> None:
        """Make a session a member, or replace the options of one.

        GatewayError if it cannot be found for the moment whether there is such a group.
        """
        group = self._groups.get(name)
        was_stored = group is not None and group.expiry_s > 0
        if group is None:
            group = self._begin(name)
        if session not in group:
            session.particulars.shares[name] = group
            self._metrics.subscriptions_now += 1
        group.join(session, options & _OPTIONS, identifier)
        if group.expiry_s and not was_stored:
            lagging = [queue.name for queue in group.lagging or ()]
            self._journal.save(self._shares.stored(group, left_ms=None), lagging=lagging)
        self._shares.go_on(group)

    def check(self, stored: StoredSession) -> None:
        """Raise ViewError if the groups of a session cannot be found, before it is resumed."""
        for one in stored.filters:
            if is_shared(one.topic_filter):
                self._find(one.topic_filter)

    def resume(self, session: Session, stored: StoredSession) -> StoredSession:
        """Join the groups of a session that was away; return what else it has."""
        for one in stored.filters:
            if is_shared(one.topic_filter):
                self.join(session, one.topic_filter, one.options, one.identifier)
        others = tuple(one for one in stored.filters if not is_shared(one.topic_filter))
        return msgspec.structs.replace(stored, filters=others)

    def leave(self, session: Session, name: str) -> None:
        """End a membership; messages that the client has been sent stay with it."""
        group = session.particulars.shares.pop(name)
        self._metrics.subscriptions_now -= 1
        unacknowledged = self._shares.unacknowledged(group, session)
        group.leave(session)
        if not group.is_served:
            # Should the client not acknowledge them, no group would be here to hear of it.
            for flight in unacknowledged:
                group.give_back(flight)
            self._end(group)
        elif unacknowledged:
            group.parted[session] = None

    def lost(self, session: Session) -> None:
        """Take what a client has not acknowledged, as its connection has ended."""
        self._shares.give_back(session)

    def leave_all(self, session: Session) -> None:
        """End the memberships of a session that goes out of memory."""
        for name in list(session.shares):
            self.leave(session, name)

    def ended(self, stored: StoredSession) -> None:
        """Note that a stored session is no more."""
        self._in_doubt.update(
            (one.topic_filter, None) for one in stored.filters if is_shared(one.topic_filter)
        )

    def filters(self, session: Session) -> tuple[StoredFilter, ...]:
        """Return the shared subscriptions of a session as they are stored."""
        found = []
        for name, group in session.shares.items():
            member = group[session]
            found.append(StoredFilter(name, member.options, member.identifier))
        return tuple(found)

    # --- groups --------------------------------------------------------------------------

    def _begin(self, name: str) -> Group:
        """Put a group into memory: the one that is stored, or a new one."""
        self._last_number += 1
        group = Group(name, self._last_number)
        try:
            stored = self._find(name)
        except ViewError as exc:
            raise GatewayError(
                f"stored groups cannot be found for the moment: {exc}",
                reason_code=ReasonCode.SERVER_BUSY,
            ) from exc
        if stored is None:
            self._shares.subscribe(group)
        else:
            group.expiry_s = stored.expiry_s
            self._shares.resume(group, stored)
        self._subscriptions.add(group.topic_filter, group, 0)
        self._delivery.replan(group.topic_filter)
        self._groups[name] = group
        return group

    def _find(self, name: str) -> StoredSession | None:
        """Return the stored group that still has a member."""
        stored = self._journal.load(name)
        if stored is None or self._journal.has_subscriber(name):
            return stored
        self._journal.end(name)
        return None

    def _end(self, group: Group) -> None:
        """Take a group out of memory, whose last connected member leaves."""
        if group.expiry_s:
            self._journal.save(self._shares.stored(group, left_ms=self._clock.now_ms()))
            self._in_doubt[group.name] = None
        self._subscriptions.remove(group.topic_filter, group)
        self._delivery.replan(group.topic_filter)
        self._shares.unsubscribe(group)
        del self._groups[group.name]

    def tick(self) -> None:
        """End the stored groups that have no member left."""
        with suppress(ViewError):  # then the next tick does it
            for name in list(self._in_doubt):
                if name not in self._groups:
                    self._find(name)
                del self._in_doubt[name]
