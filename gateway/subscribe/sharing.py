"""The life of groups: how sessions join and leave a shared subscription, and when a group ends.

Owns: the groups that have a connected member, when a stored one ends. Must not touch: which parts
this gateway holds (``dividing``), which member gets a message (``deliver``).
Invariants: a group is in memory while a member is connected. It is stored, in the form of a session
under its own name, as soon as it has a member whose session outlives its connection; it ends with
the session of the last member.
Spec: MQTT 5.0 section 4.8.2.

    join -> Group in memory, its filter in the tree
                | the last connection of a member ends
    no member's session is left: gone    else: one record, a row of the view -> join
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain

import msgspec

from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.log.log_port import SETTLED, Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.topics import SHARED_PREFIX, is_shared
from motelog.gateway.sessions.groups import (
    PARTS,
    Group,
    Receiver,
    group_name,
    part_name,
)
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK, RETAIN_AS_PUBLISHED, SubscriptionTree
from motelog.gateway.state.claims import Claims
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import EXPIRY_NEVER, StoredFilter, StoredSession
from motelog.gateway.state.view import ViewError
from motelog.gateway.subscribe.dividing import Dividing, of_part

_OPTIONS = QOS_MASK | RETAIN_AS_PUBLISHED


class SharedSubscriptions:
    """The groups of one gateway; a group's name is the whole filter of the subscription."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Receiver],
        delivery: Delivery,
        journal: SessionJournal,
        claims: Claims,
        metrics: GatewayMetrics,
    ) -> None:
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._shares = delivery.shares
        self._journal = journal
        self._metrics = metrics
        self._groups: dict[str, Group] = {}
        self._last_number = 0
        self._dividing = Dividing(self._groups, self._shares, journal, claims)
        #: Stored groups that may have lost their last member; at the start, any of them.
        self._in_doubt: dict[str, None] = {}
        self._doubt_all()

    # --- members -------------------------------------------------------------------------

    def join(
        self,
        session: Session,
        name: str,
        options: int,
        identifier: int,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Make a session a member, or replace a member's options.

        ``since`` has the offsets at which the group begins if it is not stored; the default is the
        tail. GatewayError if the stored groups cannot be read at the moment.
        """
        group = self._groups.get(name)
        was_stored = group is not None and group.expiry_s > 0
        if group is None:
            group = self._begin(name, since)
        if session not in group:
            session.particulars.shares[name] = group
            self._metrics.subscriptions_now += 1
        group.join(session, options & _OPTIONS, identifier)
        if group.expiry_s and not was_stored:
            self._dividing.save(group)
        self._shares.go_on(group)

    def check(self, stored: StoredSession) -> None:
        """Raise ViewError if a session's groups cannot be read; called before it is resumed."""
        for one in stored.filters:
            if is_shared(one.topic_filter) and one.topic_filter not in self._groups:
                self._find(one.topic_filter)

    def resume(self, session: Session, stored: StoredSession) -> StoredSession:
        """Join the groups of a session that was away; return the session without them."""
        others = tuple([one for one in stored.filters if not is_shared(one.topic_filter)])
        if len(others) == len(stored.filters):
            return stored
        for one in stored.filters:
            if is_shared(one.topic_filter):
                self.join(session, one.topic_filter, one.options, one.identifier, one.since)
        return msgspec.structs.replace(stored, filters=others)

    def leave(self, session: Session, name: str) -> None:
        """End a membership; messages already sent to the client stay with it."""
        group = session.particulars.shares.pop(name)
        self._metrics.subscriptions_now -= 1
        unacknowledged = self._shares.states.unacknowledged(group, session)
        group.leave(session)
        if not len(group):
            # If the client does not acknowledge them, the group is no longer here to take them.
            for flight in unacknowledged:
                group.give_back(flight)
            self._end(group)
        elif unacknowledged:
            group.parted[session] = None

    def lost(self, session: Session) -> None:
        """Take back the unacknowledged messages of a client whose connection has ended."""
        self._shares.give_back(session)

    def leave_all(self, session: Session) -> None:
        """End the memberships of a session that leaves memory."""
        for name in list(session.shares):
            self.leave(session, name)

    def begun(self, client_id: str) -> None:
        """Note that a session is new: no message is a repetition for its client."""
        self._shares.begun(client_id)

    def ended(self, stored: StoredSession) -> None:
        """Note that a stored session has ended."""
        self._in_doubt.update(
            (one.topic_filter, None) for one in stored.filters if is_shared(one.topic_filter)
        )

    def filters(self, session: Session) -> tuple[StoredFilter, ...]:
        """Return the shared subscriptions of a session as they are stored."""
        found = []
        for name, group in session.shares.items():
            member = group[session]
            # Until a part is stored, its members' filters say where it begins.
            since: dict[str, int] = {}
            for part in group.parts:
                since |= {} if part.is_held else self._shares.states.begin(part)
            found.append(StoredFilter(name, member.options, member.identifier, since))
        return tuple(found)

    def describe(self, name: str) -> StoredSession | None:
        """Return a stored group as one session, or one part of it; ViewError."""
        parts = self._stored_parts(name)
        if not parts:
            return None
        cursors: dict[str, int] = {}
        for part in parts:
            cursors |= part.cursors
        left = [part.left_ms for part in parts if part.left_ms is not None]
        return msgspec.structs.replace(
            parts[0],
            client_id=name,
            left_ms=max(left) if len(left) == len(parts) else None,
            cursors=cursors,
            inflight=tuple(chain.from_iterable(part.inflight for part in parts)),
        )

    def end(self, name: str) -> Ticket:
        """End a stored group that has no connected member; ViewError."""
        ticket = SETTLED
        for part in self._stored_parts(name):
            ticket = self._journal.end(part.client_id)
        return ticket

    def _stored_parts(self, name: str) -> list[StoredSession]:
        names = (name, *(part_name(name, number) for number in range(PARTS)))
        return [stored for stored in map(self._journal.load, names) if stored is not None]

    # --- groups --------------------------------------------------------------------------

    def _begin(self, name: str, since: Mapping[str, int] | None) -> Group:
        """Bring a group into memory: the stored one, or a new one."""
        self._last_number += 1
        group = Group(name, self._last_number)
        is_alone = not self._journal.others_live
        try:
            stored = self._find(name) if is_alone else {}
        except ViewError as exc:
            raise GatewayError(
                f"stored groups cannot be read at the moment: {exc}",
                reason_code=ReasonCode.SERVER_BUSY,
            ) from exc
        if stored:
            group.expiry_s = EXPIRY_NEVER
        self._shares.subscribe(group)
        for part in group.parts:
            one = stored.get(part.number)
            begin = of_part(part, since or {})
            if one is None and begin:
                one = StoredSession(part.client_id, 0, None, cursors=begin)
            if one is not None:
                self._shares.resume(part, one)
            if is_alone:
                self._shares.hold(part)
        self._subscriptions.add(group.topic_filter, group, 0)
        self._groups[name] = group
        self._dividing.begin(group)
        return group

    def _find(self, name: str) -> dict[int, StoredSession]:
        """Return the parts of a stored group that still has a member."""
        names = [part_name(name, number) for number in range(PARTS)]
        loaded = [(number, self._journal.load(names[number])) for number in range(PARTS)]
        found = {number: stored for number, stored in loaded if stored is not None}
        if not found or self._journal.has_subscriber(name) or self._is_elsewhere(name):
            return found
        for number in found:
            self._journal.end(names[number], unless=name)
        return {}

    def _is_elsewhere(self, name: str) -> bool:
        """Whether another gateway has members of a group, or a part of it."""
        names = [part_name(name, number) for number in range(PARTS)]
        return any(map(self._journal.is_elsewhere, names)) or any(
            map(self._journal.is_wanted_elsewhere, (name, *names))
        )

    def _end(self, group: Group) -> None:
        """Remove a group from memory when its last connected member leaves."""
        if self._dividing.end(group, self._journal.clock.now_ms()):
            self._in_doubt[group.name] = None
        self._subscriptions.remove(group.topic_filter, group)
        self._shares.unsubscribe(group)
        del self._groups[group.name]

    def run_ended(self) -> None:
        """Check all stored groups again: those of a dead gateway may have no member left."""
        with suppress(ViewError):
            self._doubt_all()

    def _doubt_all(self) -> None:
        names = self._journal.names(SHARED_PREFIX)
        self._in_doubt.update((group_name(name), None) for name in names)

    def tick(self) -> None:
        """End the stored groups that have no member left."""
        with suppress(ViewError):  # then the next tick does it
            for name in list(self._in_doubt):
                # While another gateway has the group, it stays in doubt: that gateway may die.
                if name in self._groups or not self._find(name) or not self._is_elsewhere(name):
                    del self._in_doubt[name]
        self._dividing.tick()
