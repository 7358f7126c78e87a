"""How gateways divide a group's parts, so that each queue's messages are handed out by one of them.

Owns: the claims to groups and parts, which parts this gateway holds, the records by which it takes
and leaves them. Must not touch: who is a member (``sharing``), which member gets a message.
Spec: MQTT 5.0 section 4.8.2.

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

import msgspec

from motelog.core.errors import MotelogError
from motelog.gateway.deliver.shares import Shares
from motelog.gateway.sessions.groups import Group, Part, part_number
from motelog.gateway.state.claims import ClaimKind, Claims
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import EXPIRY_NEVER, StoredSession
from motelog.gateway.state.view import ViewError


class Dividing:
    """Divides the groups of one gateway with other gateways."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        shares: Shares,
        journal: SessionJournal,
        claims: Claims,
    ) -> None:
        """``groups`` are those with a connected member, by name."""
        self._groups = groups
        self._shares = shares
        self._journal = journal
        self._claims = claims
        #: Groups with members here for which no claim has been made yet.
        self._unclaimed: dict[Group, None] = {}
        #: Groups whose parts the next tick looks at again.
        self._undivided: dict[Group, None] = {}
        #: States of parts that were left and that the log refused, by name.
        self._unleft: dict[str, StoredSession] = {}
        journal.served_alone = self._store_alone

    def begin(self, group: Group) -> None:
        """Claim a group that is in memory now."""
        self._unclaimed[group] = None
        self._claim()

    def end(self, group: Group, left_ms: int) -> bool:
        """Leave the parts of a group that has no connected member; return whether it is stored."""
        for part in group.parts:
            part.is_held |= part.is_taking
        stored = [part for part in group.parts if part.is_stored]
        if stored:
            self._leave([self._shares.states.stored(part, left_ms=left_ms) for part in stored])
        self._unclaimed.pop(group, None)
        self._undivided.pop(group, None)
        for part in group.parts:
            self._claims.drop(part.client_id)
        self._claims.drop(group.name)
        return bool(stored)

    def tick(self) -> None:
        """Claim and divide what could not be before; repeat appends that were refused."""
        with suppress(ViewError):  # then the next tick does it
            again = [one for name, one in self._unleft.items() if self._journal.is_here(name)]
            self._unleft.clear()
            if again:
                self._leave(again)
        self._claim()
        for group in list(self._undivided):
            self._divide(group)

    def save(self, group: Group) -> None:
        """Store a group for the first time: a member's session now outlives its connection."""
        held = [part for part in group.parts if part.is_held]
        if held:
            self._journal.save_all([self._as_held(part) for part in held])
            self._shares.held_changed(group)

    def _as_held(self, part: Part) -> tuple[StoredSession, list[str]]:
        return self._shares.states.stored(part, left_ms=None), self._shares.states.lagging(part)

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

    # --- claims --------------------------------------------------------------------------

    def _claim(self) -> None:
        """Claim the groups whose members here are unknown to other gateways."""
        if not (self._unclaimed and self._journal.others_live and self._journal.is_current):
            return
        for group in self._unclaimed:
            self._claims.want(
                group.name,
                ClaimKind.MEMBERS,
                go_on=partial(self._divide, group),
                lost=partial(self._not_claimed, group),
            )
        self._unclaimed.clear()
        # Not gathered with others: a member gets its SUBACK at once, and until the claim is in the
        # log, a state that is left may end with the group.
        self._claims.commit()

    def _not_claimed(self, group: Group, _: str | None) -> None:
        if self._groups.get(group.name) is group:
            self._unclaimed[group] = None

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
        if surplus and is_last and self._shares.states.flights(group):
            surplus.pop()
            self._undivided[group] = None
        if surplus:
            self._let_go(group, surplus)

    # --- parts ---------------------------------------------------------------------------

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
        own = self._shares.states.begin(part)
        begins = [begin for begin in (of_part(part, one) for one in begins) if begin]
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

        cursors = self._shares.states.cursors(part)
        taken = StoredSession(name, EXPIRY_NEVER, cursors=cursors)
        if stored is not None:
            taken = msgspec.structs.replace(stored, left_ms=None, cursors=cursors)
        self._journal.after(self._journal.save(taken, lagging=cursors, claim=claim), appended)

    def _not_taken(self, part: Part, _: str | None = None) -> None:
        """Have the next tick look at a group again."""
        if self._groups.get(part.group.name) is part.group:
            self._undivided[part.group] = None

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
        self._journal.after(ticket, appended)


def of_part(part: Part, by_queue: Mapping[str, int]) -> dict[str, int]:
    """Return the offsets of the queues that belong to a part."""
    return {name: at for name, at in by_queue.items() if part_number(name) == part.number}
