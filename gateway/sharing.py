"""The life of groups: who joins and leaves a shared subscription, and when a group ends.

Owns: the groups that have a member connected, which of them this gateway holds, what the log is
told of groups.
Must not touch: which member takes a message (``deliver``), what a client may ask for.
Invariants: a group is in memory while a member is connected. It is stored, in the form of a session
under its own name, from the first member on whose session outlives its connection; it ends with the
session of the last member.
Spec: MQTT 5.0 section 4.8.2.

    join -> Group in memory, its filter in the tree
                | the last connection of a member ends
    nobody's session is left: gone    else: one record, a row of the view -> join

While other gateways live, one of them holds a group: it hands the messages out, to its members.
Those with members too have claimed the group and stand by, each in its turn. A group that stands by
lags from the first message for it on. When its turn has come it goes on where the holder has left
it, or where it lags itself if nobody has held it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.gateway.claims import ClaimKind, Claims
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import GatewayError
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.topics import SHARED_PREFIX
from motelog.gateway.sessions.groups import Group, Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK, RETAIN_AS_PUBLISHED, SubscriptionTree
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import EXPIRY_NEVER, StoredFilter, StoredSession
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
        claims: Claims,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        after: Callable[[Ticket, Callable[[MotelogError | None], None]], None],
    ) -> None:
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._shares = delivery.shares
        self._journal = journal
        self._claims = claims
        self._metrics = metrics
        self._clock = clock
        self._after = after
        self._groups: dict[str, Group] = {}
        self._last_number = 0
        #: Those that stand by and are not claimed.
        self._unclaimed: dict[Group, None] = {}
        journal.served_alone = self._store_alone
        #: Stored groups that may have lost their last member; at the start that can be any.
        self._in_doubt = dict.fromkeys(journal.names(SHARED_PREFIX))

    # --- members -------------------------------------------------------------------------

    def join(
        self,
        session: Session,
        name: str,
        options: int,
        identifier: int,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Make a session a member, or replace the options of one.

        ``since`` is where the group begins if it is not stored; by default at the tail.
        GatewayError if it cannot be found for the moment whether there is such a group.
        """
        group = self._groups.get(name)
        was_stored = group is not None and group.is_stored
        if group is None:
            group = self._begin(name, since)
        if session not in group:
            session.particulars.shares[name] = group
            self._metrics.subscriptions_now += 1
        group.join(session, options & _OPTIONS, identifier)
        if group.is_stored and not was_stored:
            self._save(group)
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
                self.join(session, one.topic_filter, one.options, one.identifier, one.since)
        others = tuple(one for one in stored.filters if not is_shared(one.topic_filter))
        return msgspec.structs.replace(stored, filters=others)

    def leave(self, session: Session, name: str) -> None:
        """End a membership; messages that the client has been sent stay with it."""
        group = session.particulars.shares.pop(name)
        self._metrics.subscriptions_now -= 1
        unacknowledged = self._shares.unacknowledged(group, session)
        group.leave(session)
        if not len(group):
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
            # Until somebody has stored the group, its members know where it begins.
            since = {} if group.is_held else self._shares.known_cursors(group)
            found.append(StoredFilter(name, member.options, member.identifier, since))
        return tuple(found)

    # --- groups --------------------------------------------------------------------------

    def _begin(self, name: str, since: Mapping[str, int] | None) -> Group:
        """Put a group into memory: the one that is stored, or a new one."""
        self._last_number += 1
        group = Group(name, self._last_number)
        group.is_held = not self._journal.others_live
        try:
            stored = self._find(name) if group.is_held else None
        except ViewError as exc:
            raise GatewayError(
                f"stored groups cannot be found for the moment: {exc}",
                reason_code=ReasonCode.SERVER_BUSY,
            ) from exc
        if stored is None and since:
            stored = StoredSession(name, 0, self._clock.now_ms(), cursors=dict(since))
        if stored is None:
            self._shares.subscribe(group)
        else:
            group.expiry_s = stored.expiry_s
            self._shares.resume(group, stored)
        self._subscriptions.add(group.topic_filter, group, 0)
        self._delivery.replan(group.topic_filter)
        self._groups[name] = group
        if not group.is_held:
            self._unclaimed[group] = None
            self._claim()
        return group

    def _find(self, name: str) -> StoredSession | None:
        """Return the stored group that still has a member."""
        stored = self._journal.load(name)
        if stored is None or self._journal.has_subscriber(name):
            return stored
        if self._journal.is_wanted(name):
            return stored
        self._journal.end(name)
        return None

    def _end(self, group: Group) -> None:
        """Take a group out of memory, whose last connected member leaves."""
        if group.is_stored:
            self._journal.save(self._shares.stored(group, left_ms=self._clock.now_ms()))
            self._in_doubt[group.name] = None
        elif not group.is_held:
            self._unclaimed.pop(group, None)
            self._claims.drop(group.name)
        self._subscriptions.remove(group.topic_filter, group)
        self._delivery.replan(group.topic_filter)
        self._shares.unsubscribe(group)
        del self._groups[group.name]

    def _save(self, group: Group, claim: int = 0) -> Ticket:
        stored = self._shares.stored(group, left_ms=None)
        return self._journal.save(stored, lagging=_lagging(group), claim=claim)

    # --- other gateways ------------------------------------------------------------------

    def _store_alone(self) -> list[tuple[StoredSession, list[str]]]:
        """Have the groups stored that are not: until now nobody else could serve them."""
        held = [group for group in self._groups.values() if group.is_held]
        alone = [group for group in held if self._journal.load(group.name) is None]
        for group in alone:
            group.expiry_s = EXPIRY_NEVER
        return [(self._shares.stored(group, left_ms=None), _lagging(group)) for group in alone]

    def run_ended(self) -> None:
        """Doubt all stored groups: those of a gateway that has died may have no member left."""
        with suppress(ViewError):
            self._in_doubt.update(dict.fromkeys(self._journal.names(SHARED_PREFIX)))

    def _claim(self) -> None:
        """Claim the groups that stand by, if it is known which of them others hold."""
        if not self._journal.is_current:
            return
        for group in list(self._unclaimed):
            del self._unclaimed[group]
            self._claims.want(
                group.name,
                ClaimKind.GROUP,
                go_on=partial(self._take, group),
                lost=partial(self._stand_by, group),
            )

    def _stand_by(self, group: Group, _: str | None = None) -> None:
        """Have the next tick claim a group."""
        group.is_held = False
        if self._groups.get(group.name) is group:
            self._unclaimed[group] = None

    def _take(self, group: Group, claim: int) -> None:
        """Hand the messages of a group out from now on, as it is this gateway's turn."""
        try:
            stored = self._journal.load(group.name)
            begin = self._journal.begin_of(group.name) if stored is None else {}
        except ViewError:
            self._claims.settle(group.name, claim)
            self._stand_by(group)
            return
        own = self._shares.known_cursors(group)
        if begin and own:
            # Another member has had its SUBACK before, and nobody has served it.
            cursors = {queue: min(at, begin.get(queue, 0)) for queue, at in own.items()}
            stored = StoredSession(group.name, EXPIRY_NEVER, self._clock.now_ms(), cursors=cursors)
        if stored is not None:
            self._shares.unsubscribe(group)
            self._shares.resume(group, stored)
        group.is_held = True
        group.expiry_s = EXPIRY_NEVER

        def appended(error: MotelogError | None) -> None:
            if error is not None:
                self._claims.settle(group.name, claim)
                self._stand_by(group)

        self._after(self._save(group, claim), appended)
        self._shares.go_on(group)

    def tick(self) -> None:
        """End the stored groups that have no member left."""
        with suppress(ViewError):  # then the next tick does it
            for name in list(self._in_doubt):
                if name not in self._groups:
                    self._find(name)
                del self._in_doubt[name]
        self._claim()


def _lagging(group: Group) -> list[str]:
    return [queue.name for queue in group.lagging or ()]
