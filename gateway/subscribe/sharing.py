"""The life of groups: how sessions join and leave a shared subscription, and when a group ends.

Owns: the groups that have a connected member, which parts of them this gateway holds, the records
of groups in the log.
Must not touch: which member gets a message (``deliver``), what a client may ask for.
Invariants: a group is in memory while a member is connected. It is stored, in the form of a session
under its own name, as soon as it has a member whose session outlives its connection; it ends with
the session of the last member.
Spec: MQTT 5.0 section 4.8.2.

    join -> Group in memory, its filter in the tree
                | the last connection of a member ends
    no member's session is left: gone    else: one record, a row of the view -> join

While other gateways live, those with members divide the parts of a group, each of which has some of
its queues. A standing claim to the group's name says that a gateway has members; the order of these
claims determines which gateway each part belongs to. A gateway that holds a part belonging to
another releases it. The gateway to which it belongs claims it, and continues where the other left
off.

    claims of the group     x, y                       x, y, z
    part 0 1 2 3 4 5 6 7    x y x y x y x y            x y z x y z x y
    part 2 at x             handed out ... left at 40
    part 2 at z                                 claimed, goes on from 40

A part that is not held stands by at the first message for it: it continues there if no gateway has
held it. When a part goes, its messages in flight stay: they are stored with another part that is
held here. So a gateway never releases its last part while messages are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

import msgspec

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import GatewayError
from motelog.gateway.log.log_port import SETTLED, After, Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.topics import SHARED_PREFIX
from motelog.gateway.sessions.groups import (
    PARTS,
    Group,
    Part,
    Receiver,
    group_name,
    part_name,
    part_number,
)
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK, RETAIN_AS_PUBLISHED, SubscriptionTree
from motelog.gateway.state.claims import ClaimKind, Claims
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import EXPIRY_NEVER, StoredFilter, StoredSession
from motelog.gateway.state.view import ViewError

_OPTIONS = QOS_MASK | RETAIN_AS_PUBLISHED


def is_shared(topic_filter: str) -> bool:
    """Whether a legal topic filter is that of a shared subscription."""
    return topic_filter.startswith(SHARED_PREFIX)


class SharedSubscriptions:
    """The groups of one gateway; a group's name is the whole filter of the subscription."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Receiver],
        delivery: Delivery,
        journal: SessionJournal,
        claims: Claims,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        after: After,
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
        #: Groups with members here for which no claim has been made yet.
        self._untold: dict[Group, None] = {}
        #: Groups whose parts the next tick looks at again.
        self._undivided: dict[Group, None] = {}
        #: States of parts that were left and that the log refused, by name.
        self._unleft: dict[str, StoredSession] = {}
        journal.served_alone = self._store_alone
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
        tail. GatewayError if the stored groups cannot be read for the moment.
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
            self._save(group)
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
        unacknowledged = self._shares.unacknowledged(group, session)
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
                since |= {} if part.is_held else self._shares.begin(part)
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
                f"stored groups cannot be found for the moment: {exc}",
                reason_code=ReasonCode.SERVER_BUSY,
            ) from exc
        if stored:
            group.expiry_s = EXPIRY_NEVER
        self._shares.subscribe(group)
        for part in group.parts:
            one = stored.get(part.number)
            begin = _of_part(part, since or {})
            if one is None and begin:
                one = StoredSession(part.client_id, 0, None, cursors=begin)
            if one is not None:
                self._shares.resume(part, one)
            if is_alone:
                self._shares.hold(part)
        self._subscriptions.add(group.topic_filter, group, 0)
        self._groups[name] = group
        self._untold[group] = None
        self._tell()
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
        left_ms = self._clock.now_ms()
        for part in group.parts:
            part.is_held |= part.is_taking
        stored = [part for part in group.parts if part.is_stored]
        if stored:
            self._leave([self._shares.stored(part, left_ms=left_ms) for part in stored])
            self._in_doubt[group.name] = None
        self._untold.pop(group, None)
        self._undivided.pop(group, None)
        for part in group.parts:
            self._claims.drop(part.client_id)
        self._claims.drop(group.name)
        self._subscriptions.remove(group.topic_filter, group)
        self._shares.unsubscribe(group)
        del self._groups[group.name]

    def _save(self, group: Group) -> None:
        """Store a group for the first time: a member's session now outlives its connection."""
        held = [part for part in group.parts if part.is_held]
        if held:
            self._journal.save_all([self._as_held(part) for part in held])
            self._shares.held_changed(group)

    def _as_held(self, part: Part) -> tuple[StoredSession, list[str]]:
        return self._shares.stored(part, left_ms=None), self._shares.lagging(part)

    # --- other gateways ------------------------------------------------------------------

    def _store_alone(self) -> list[tuple[StoredSession, list[str]]]:
        """Return the parts not stored yet: until now no other gateway could serve their groups."""
        alone = []
        for group in self._groups.values():
            for part in group.parts:
                if part.is_held and self._journal.load(part.client_id) is None:
                    group.expiry_s = EXPIRY_NEVER
                    alone.append(self._as_held(part))
                    self._shares.held_changed(group)
        return alone

    def run_ended(self) -> None:
        """Check all stored groups again: those of a dead gateway may have no member left."""
        with suppress(ViewError):
            self._doubt_all()

    def _doubt_all(self) -> None:
        names = self._journal.names(SHARED_PREFIX)
        self._in_doubt.update((group_name(name), None) for name in names)

    def _tell(self) -> None:
        """Claim the groups whose members here are not known to other gateways yet."""
        if not (self._untold and self._journal.others_live and self._journal.is_current):
            return
        for group in self._untold:
            self._claims.want(
                group.name,
                ClaimKind.MEMBERS,
                go_on=partial(self._divide, group),
                lost=partial(self._not_told, group),
            )
        self._untold.clear()
        # Not gathered with others: a member gets its SUBACK at once, and until the claim is in the
        # log, a state that is left may end with the group.
        self._claims.commit()

    def _not_told(self, group: Group, _: str | None) -> None:
        if self._groups.get(group.name) is group:
            self._untold[group] = None

    def _divide(self, group: Group, _: int = 0) -> None:
        """Claim the parts that belong to this gateway, and release those that do not."""
        self._undivided.pop(group, None)
        if self._groups.get(group.name) is not group:
            return
        try:
            place = self._journal.place_among(group.name)
        except ViewError:
            self._undivided[group] = None
            return
        if place is None:
            return  # the claim has not been read back
        which, count = place
        surplus = []
        for part in group.parts:
            if part.number % count != which:
                if part.is_held:
                    surplus.append(part)
                else:
                    self._claims.drop(part.client_id)
            elif not (part.is_held or part.is_taking or part.client_id in self._claims):
                self._claims.want(
                    part.client_id,
                    ClaimKind.PART,
                    go_on=partial(self._take, part),
                    lost=partial(self._not_taken, part),
                )
        is_last = not any(part.is_held and part not in surplus for part in group.parts)
        if surplus and is_last and self._shares.flights(group):
            surplus.pop()
            self._undivided[group] = None
        if surplus:
            self._let_go(group, surplus)

    def _let_go(self, group: Group, parts: list[Part]) -> None:
        """Let other gateways continue with some parts; their messages in flight stay here."""
        left = [self._shares.stand_by(part) for part in parts]
        kept = next((part for part in group.parts if part.is_held), None)
        # Written first, so that a reader knows where a part's flights are when it reads that the
        # part was left.
        states = [] if kept is None else [self._as_held(kept)]
        self._leave(left, states)

    def _leave(
        self, left: list[StoredSession], kept: Sequence[tuple[StoredSession, list[str]]] = ()
    ) -> None:
        def appended(error: MotelogError | None) -> None:
            if error is not None:
                self._unleft.update((one.client_id, one) for one in left)

        ticket = self._journal.save_all([*kept, *((one, ()) for one in left)])
        self._after(ticket, appended)

    def _not_taken(self, part: Part, _: str | None = None) -> None:
        """Have the next tick look at a group again."""
        if self._groups.get(part.group.name) is part.group:
            self._undivided[part.group] = None

    def _take(self, part: Part, claim: int) -> None:
        """Hand out a part once the log says that this gateway does; its claim's turn has come."""
        group, name = part.group, part.client_id
        try:
            stored = self._journal.load(name)
            begins = [] if stored else self._journal.begins_of(group.name)
        except ViewError:
            self._claims.settle(name, claim)
            self._not_taken(part)
            return
        own = self._shares.begin(part)
        begins = [begin for begin in (_of_part(part, one) for one in begins) if begin]
        if begins and own:
            # Other members got their SUBACK earlier, and no gateway has served them. A queue that a
            # member does not know was created later.
            cursors = {
                name: min([at, *(b.get(name, 0) for b in begins)]) for name, at in own.items()
            }
            stored = StoredSession(name, EXPIRY_NEVER, None, cursors=cursors)
        if stored is not None:
            self._shares.resume(part, stored)
        group.expiry_s = EXPIRY_NEVER
        self._unleft.pop(name, None)
        part.is_taking = True

        def appended(error: MotelogError | None) -> None:
            if error is not None:
                self._claims.settle(name, claim)
            if self._groups.get(group.name) is not group:
                return
            part.is_taking = False
            if error is None:
                self._shares.hold(part)
                self._divide(group)
            else:
                self._shares.stand_by(part)
                self._not_taken(part)

        cursors = self._shares.cursors(part)
        taken = StoredSession(name, EXPIRY_NEVER, cursors=cursors)
        if stored is not None:
            taken = msgspec.structs.replace(stored, left_ms=None, cursors=cursors)
        self._after(self._journal.save(taken, lagging=cursors, claim=claim), appended)

    def tick(self) -> None:
        """End the stored groups that have no member left; repeat appends that were refused."""
        with suppress(ViewError):  # then the next tick does it
            for name in list(self._in_doubt):
                # While another gateway has the group, it stays in doubt: that gateway may die.
                if name in self._groups or not self._find(name) or not self._is_elsewhere(name):
                    del self._in_doubt[name]
            again = [one for name, one in self._unleft.items() if self._journal.is_here(name)]
            self._unleft.clear()
            if again:
                self._leave(again)
        self._tell()
        for group in list(self._undivided):
            self._divide(group)


def _of_part(part: Part, by_queue: Mapping[str, int]) -> dict[str, int]:
    return {name: at for name, at in by_queue.items() if part_number(name) == part.number}
