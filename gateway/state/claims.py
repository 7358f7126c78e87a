"""Claims: among several gateways, this one waits for its turn to have a client identifier.

Owns: the claims of this gateway, which of them are in the log, whose turn has come, time limits.
Must not touch: connections and sessions (``go_on`` of a claim does the work), the rules for the
order of claims (``state.session_rows``).
Invariants: each claim is settled by the record that ``go_on`` writes, or by ``settle``. Until then,
claims of other gateways for the same client identifier wait. A CONNECT whose turn has come
completes before a later claim gets its client identifier. Otherwise rivals that come fast enough
could keep each other out forever.

    want -> commit: one record -> read back -> no holder, no older claim -> go_on -> settled
      |                                        a later claim of another gateway -> handed over then
      |-> too long, refused -> lost
      '-> another want here -> lost if it has no record yet; if it has, the newest waits behind it
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Final

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.gateway.log.log_port import After
from motelog.gateway.state.journal import ENTRIES_MAX, SessionJournal
from motelog.gateway.state.session_rows import ClaimHeard, Heard
from motelog.gateway.state.view import ViewError

#: How long a claim waits. If a gateway has died, the others know within this time.
WAIT_MS_MAX: Final = 10_000
#: How long the newest CONNECT here waits behind an earlier one that does not get its turn.
BEHIND_MS_MAX: Final = 3_000
#: How long a claim whose turn has come waits for topics that others have just created. These are
#: found within a second; a topic that is not found by then has been deleted.
TOPICS_MS_MAX: Final = 4_000
#: How long it waits in total, also for QoS 2 messages that another gateway may be appending.
EARLY_MS_MAX: Final = 8_000


class ClaimKind(Enum):
    """What a client identifier is wanted for."""

    LASTING = auto()
    """For a CONNECT whose session outlives the connection."""
    PASSING = auto()
    """For a CONNECT whose session does not; there may be no record that settles the claim."""
    TO_END = auto()
    """To end its session, wherever its client is connected."""
    AWAY = auto()
    """To expire its session or publish its will while its client is away."""
    PART = auto()
    """To hand out a part of a shared subscription, whenever no other gateway does."""
    MEMBERS = auto()
    """To announce that a shared subscription has members here. It stays until it is dropped.
    ``go_on`` is called whenever other gateways may have made or given up such a claim."""

    @property
    def is_connect(self) -> bool:
        return self in (ClaimKind.LASTING, ClaimKind.PASSING)

    @property
    def may_wait(self) -> bool:
        """Whether it may wait forever, because it takes nothing from its present holder."""
        return self in (ClaimKind.PART, ClaimKind.MEMBERS)


class Claim:
    """One client identifier that this gateway wants.

    ``number`` is that of its record, 0 before the record is appended; ``at`` is the record's queue
    offset, -1 before it is read back. ``go_on`` gets the number of the claim to settle, 0 if there
    is none. ``lost`` gets the reason, None if another has the client identifier or wants it later.
    ``owner`` is the user for whom it is claimed, None if not known. ``behind`` is the claim of a
    CONNECT that came here later, ``later`` the newest claim of another gateway.
    """

    __slots__ = (
        "at",
        "begun_ms",
        "behind",
        "client_id",
        "go_on",
        "is_due",
        "is_open",
        "kind",
        "later",
        "lost",
        "number",
        "owner",
    )

    def __init__(
        self,
        client_id: str,
        begun_ms: int,
        kind: ClaimKind,
        *,
        go_on: Callable[[int], None],
        lost: Callable[[str | None], None],
        owner: str | None = None,
    ) -> None:
        self.client_id = client_id
        self.owner = owner
        self.begun_ms = begun_ms
        self.kind = kind
        self.go_on = go_on
        self.lost = lost
        self.number = 0
        self.at = -1
        self.is_open = True
        #: Whether the turn has come for a PART claim, which may have waited for a long time.
        self.is_due = False
        self.behind: Claim | None = None
        self.later: ClaimHeard | None = None


class Claims:
    """The claims of one gateway."""

    def __init__(
        self,
        journal: SessionJournal,
        *,
        clock: Clock,
        after: After,
        is_at_hand: Callable[[str, int], bool],
        soon: Callable[[], None],
    ) -> None:
        """``is_at_hand`` returns whether the session of a client identifier can be resumed here.

        Its second argument is how many milliseconds the claim has waited.

        ``soon`` makes the owner call ``commit`` soon, so that the claims of several turns share a
        record.
        """
        self._journal = journal
        self._is_at_hand = is_at_hand
        self._soon = soon
        self._clock = clock
        self._after = after
        #: In the order in which they began, except those that have waited behind another.
        self._wanted: dict[str, Claim] = {}
        self.new: list[Claim] = []
        #: Client identifiers of claims that another waits behind; some entries are outdated.
        self._followed: dict[str, None] = {}
        #: Client identifiers of claims whose turn may have come.
        self._ready: dict[str, None] = {}
        #: Those whose turn has come, but whose sessions cannot be resumed yet.
        self._early: dict[str, None] = {}
        #: Claims that no other record settles.
        self.given_up: list[tuple[str, int]] = []
        #: Called if another gateway has claimed a client identifier later than a CONNECT here that
        #: has just got it.
        self.hand_over: Callable[[ClaimHeard], None] = lambda heard: None

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._wanted

    # --- what is wanted ------------------------------------------------------------------

    def want(
        self,
        client_id: str,
        kind: ClaimKind,
        *,
        go_on: Callable[[int], None],
        lost: Callable[[str | None], None],
        owner: str | None = None,
    ) -> Claim:
        """Claim a client identifier with the next ``commit``; an earlier claim here is lost.

        But the claim of a CONNECT waits behind the claim of an earlier CONNECT that has a record.
        """
        begun_ms = self._clock.monotonic_ms()
        claim = Claim(client_id, begun_ms, kind, go_on=go_on, lost=lost, owner=owner)
        known = self._wanted.get(client_id)
        if known is not None and known.number and known.kind.is_connect and kind.is_connect:
            overtaken, known.behind = known.behind, claim
            self._followed[client_id] = None
            if overtaken is not None:
                overtaken.lost(None)
        else:
            self.overtake(client_id)
            self._begin(claim)
        return claim

    def _begin(self, claim: Claim) -> None:
        self._wanted[claim.client_id] = claim
        self.new.append(claim)
        self._journal.awaited.add(claim.client_id)

    def _begin_behind(self, claim: Claim) -> None:
        if claim.behind is not None and claim.client_id not in self._wanted:
            self._begin(claim.behind)

    def overtake(self, client_id: str, why: str | None = None) -> None:
        """End the claims of a client identifier, if there are any, in favour of a later one."""
        claim = self._wanted.get(client_id)
        if claim is not None:
            behind, claim.behind = claim.behind, None
            self._end(claim, why)
            if behind is not None:
                behind.lost(why)

    def drop(self, client_id: str, claim: Claim | None = None) -> None:
        """Forget a claim that is no longer wanted; the first of the client identifier if None."""
        first = self._wanted.get(client_id)
        if first is None:
            return
        if claim is None or claim is first:
            del self._wanted[client_id]
            self._forget(first)
            self.settle(client_id, first.number)
            self._begin_behind(first)
        elif claim is first.behind:
            first.behind = None

    def settle(self, client_id: str, number: int) -> None:
        """Settle a claim that no other record settles; do nothing if ``number`` is 0."""
        if number:
            self.given_up.append((client_id, number))

    def clear(self) -> None:
        """End all claims, as this gateway's run is over."""
        for client_id in list(self._wanted):
            self.overtake(client_id, "this gateway begins a new run")
        self.new.clear()
        self.given_up.clear()

    def commit_soon(self) -> None:
        """Append new claims soon, and together: a record with many costs others the same as one."""
        if self.new or self.given_up:
            self._soon()

    def commit(self) -> None:
        """Append the new claims, and those that were given up."""
        if not (self.new or self.given_up):
            return
        all_new = [claim for claim in self.new if self._is_wanted(claim)]
        all_given_up, self.given_up = self.given_up, []
        self.new = []
        for at in range(0, max(len(all_new), len(all_given_up)), ENTRIES_MAX):
            new = all_new[at : at + ENTRIES_MAX]
            given_up = all_given_up[at : at + ENTRIES_MAX]
            number, ticket = self._journal.claim(
                [c.client_id for c in new if c.kind in (ClaimKind.LASTING, ClaimKind.TO_END)],
                [c.client_id for c in new if c.kind is ClaimKind.PASSING],
                [c.client_id for c in new if c.kind is ClaimKind.AWAY or c.kind.may_wait],
                given_up,
                {c.client_id: c.owner for c in new if c.owner is not None},
            )
            for claim in new:
                claim.number = number
            self._after(ticket, partial(self._appended, new, given_up))

    def _appended(
        self, new: list[Claim], given_up: list[tuple[str, int]], error: MotelogError | None
    ) -> None:
        if error is None:
            return
        for claim in new:
            if self._is_wanted(claim):
                self._end(claim, f"the log refuses a claim: {error}")
        self.given_up += given_up  # the next tick tries again

    def _is_wanted(self, claim: Claim) -> bool:
        return self._wanted.get(claim.client_id) is claim

    def _end(self, claim: Claim, why: str | None) -> None:
        self.drop(claim.client_id)
        claim.lost(why)

    def _forget(self, claim: Claim) -> None:
        self._ready.pop(claim.client_id, None)
        self._early.pop(claim.client_id, None)
        self._journal.awaited.discard(claim.client_id)

    # --- whose turn it is ----------------------------------------------------------------

    def hear(self, heard: Heard) -> None:
        """Handle what was read back, in the order of the log."""
        if heard is None:
            self._ready.update((name, None) for name, one in self._wanted.items() if one.at >= 0)
            return
        client_id = heard.client_id if isinstance(heard, ClaimHeard) else heard
        claim = self._wanted.get(client_id)
        if claim is None:
            return
        if isinstance(heard, str):
            if claim.at >= 0:
                self._ready[client_id] = None
        elif self._journal.is_own(heard):
            if heard.number == claim.number:
                claim.at, claim.is_open = heard.at, heard.is_open
                self._ready[client_id] = None
        elif claim.at >= 0 and heard.takes and claim.kind.is_connect:
            claim.later = heard
        elif claim.at >= 0 and claim.kind is ClaimKind.MEMBERS:
            self._ready[client_id] = None

    def go_on(self, limit: int) -> bool:
        """Let up to ``limit`` claims whose turn has come go on; return whether more may follow."""
        if not self._journal.is_known:
            return False
        ready = list(islice(self._ready, limit))
        self._journal.fetch(ready)
        for client_id in ready:
            if client_id not in self._ready:
                continue  # an earlier claim in this loop has ended it
            del self._ready[client_id]
            claim = self._wanted[client_id]
            if claim.kind is ClaimKind.MEMBERS:
                claim.go_on(claim.number)
                continue
            try:
                is_its_turn = self._journal.may_have(client_id, claim.at)
                is_elsewhere = not is_its_turn and self._journal.is_elsewhere(client_id)
                is_early = is_its_turn and self._is_early(claim)
            except ViewError as exc:
                self._end(claim, f"stored sessions cannot be read at the moment: {exc}")
                continue
            if is_early:
                self._early[client_id] = None
            elif is_its_turn:
                del self._wanted[client_id]
                self._forget(claim)
                claim.go_on(claim.number if claim.is_open else 0)
                if claim.later is not None:
                    self.hand_over(claim.later)
                self._begin_behind(claim)
            elif is_elsewhere and claim.kind is ClaimKind.AWAY:
                self._end(claim, None)
        return bool(self._ready)

    def _is_early(self, claim: Claim) -> bool:
        if claim.kind is ClaimKind.PART:
            if not claim.is_due:
                claim.is_due = True
                self._wait_anew(claim)
        elif not claim.kind.is_connect:
            return False
        waited_ms = self._clock.monotonic_ms() - claim.begun_ms
        return waited_ms < EARLY_MS_MAX and not self._is_at_hand(claim.client_id, waited_ms)

    def _wait_anew(self, claim: Claim) -> None:
        claim.begun_ms = self._clock.monotonic_ms()
        self._wanted[claim.client_id] = self._wanted.pop(claim.client_id)

    def tick(self) -> None:
        """End the claims that have waited too long; check again those that were early."""
        self._ready.update(self._early)
        self._early.clear()
        now_ms = self._clock.monotonic_ms()
        for client_id in list(self._followed):
            first = self._wanted.get(client_id)
            if first is None or first.behind is None:
                del self._followed[client_id]
            elif now_ms - first.begun_ms >= BEHIND_MS_MAX:
                self._end(first, None)
        late = []
        for claim in self._wanted.values():
            if now_ms - claim.begun_ms < WAIT_MS_MAX:
                break
            late.append(claim)
        for claim in late:
            if not self._is_wanted(claim):
                continue
            if not (claim.kind.may_wait and claim.at >= 0):
                self._end(
                    claim,
                    "another gateway has not handed it over in time"
                    if claim.at >= 0
                    else "the log has not returned the claim in time",
                )
            elif self._is_gone(claim):
                self._end(claim, "the log has deleted the record of the claim")
            else:
                self._wait_anew(claim)
        self.commit()

    def _is_gone(self, claim: Claim) -> bool:
        """Whether the view lacks a claim: its record was deleted before the view was rebuilt.

        A claim that waits forever has to check this, as there is no event for it.
        """
        try:
            return self._journal.place_among(claim.client_id) is None
        except ViewError:
            return False
