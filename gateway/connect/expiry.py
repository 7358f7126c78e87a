"""The end of sessions whose clients have gone: they expire, are discarded, their wills come due.

Owns: when that happens, and the claims that come first while other gateways live.
Must not touch: sessions of connected clients (``life``), records of sessions (``state``).
Spec: MQTT 5.0 sections 3.1.2.4, 3.1.2.5 and 4.1.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from motelog.gateway.access.rights import Who
from motelog.gateway.connect.parts import SessionParts
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.publish.wills import Wills
from motelog.gateway.sessions.connect_rules import Accepted
from motelog.gateway.state.claims import ClaimKind
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import ViewError

#: Rows of the view that one tick reads, so that many sessions that end together cause no stall.
DUE_MAX: Final = 100


class Expiry:
    """Ends the stored sessions of one gateway; the ``tick`` of one gateway does this for all."""

    def __init__(self, sessions: SessionParts, wills: Wills) -> None:
        self._table = sessions.table
        self._journal = sessions.journal
        self._claims = sessions.claims
        self._shared = sessions.shared
        self._metrics = sessions.metrics
        self._wills = wills
        # The number of claimed sessions whose expiry or will is due; whether more may be due.
        self._claimed = 0
        self._is_more_due = False

    def has_expired(self, stored: StoredSession, now_ms: int) -> bool:
        """Whether a session has ended, though no tick has found it yet."""
        return stored.left_ms is not None and self._journal.has_come(
            stored, stored.expires_ms, now_ms
        )

    def is_anothers(self, accepted: Accepted) -> bool:
        """Whether the session is known to belong to another user; if not, a claim finds out."""
        if accepted.owner is None:
            return False
        live = self._table.by_client_id.get(accepted.client_id)
        if live is not None:
            return not accepted.may_have(live.owner)
        now_ms = self._journal.clock.now_ms()
        with suppress(ViewError):
            stored = self._journal.load(accepted.client_id)
            if stored is not None and not accepted.may_have(stored.owner):
                return not self.has_expired(stored, now_ms)
        return False

    def what_is_left(
        self, accepted: Accepted, stored: StoredSession, now_ms: int, *, is_expired: bool
    ) -> StoredSession | None:
        """Return the stored session with which a client continues, None if it gets a new one."""
        if accepted.clean_start or is_expired:  # [MQTT-3.1.2-4]
            self.discard(stored)
            return None
        if stored.will and self._journal.has_come(stored, stored.will_due_ms, now_ms):
            # There was no tick since it was due, for example after a crash.
            self._wills.publish(_who_left(stored), stored.will)
        return stored

    def discard(self, stored: StoredSession, claim: int = 0) -> Ticket:
        """End a stored session; its will is due now at the latest. [MQTT-3.1.2-8]

        ``claim`` is the number of the claim that this settles, 0 if there is none.
        """
        if stored.will is not None:
            self._wills.publish(_who_left(stored), stored.will)
        ticket = self._journal.end(stored.client_id, claim=claim)
        self._shared.ended(stored)
        return ticket

    def tick(self) -> bool:
        """End sessions and publish wills that are due; return whether more is due already.

        While other gateways live, each session is claimed first.
        """
        due = self._journal.due(self._journal.clock.now_ms(), DUE_MAX)
        is_more = len(due) == DUE_MAX
        if not self._journal.others_live:
            for stored in due:
                self._end_one(stored, 0)
            return is_more
        self._is_more_due = is_more
        for stored in due:
            client_id = stored.client_id
            if client_id not in self._claims:
                self._claimed += 1
                go_on = partial(self._end_in_turn, client_id)
                self._claims.want(client_id, ClaimKind.AWAY, go_on=go_on, lost=self._lost)
        self._claims.commit()
        return False

    def go_on(self) -> None:
        """Claim the next sessions that are due, once all claimed ones are done."""
        if self._is_more_due and not self._claimed:
            self.tick()

    def _end_one(self, stored: StoredSession, claim: int) -> bool:
        """End one session or publish its will, if this is due; return whether it was."""
        now_ms = self._journal.clock.now_ms()
        if self._journal.has_come(stored, stored.expires_ms, now_ms):
            self._metrics.sessions_expired += 1
            self.discard(stored, claim)
        elif stored.will and self._journal.has_come(stored, stored.will_due_ms, now_ms):
            self._wills.publish(_who_left(stored), stored.will)
            self._journal.save(msgspec.structs.replace(stored, will=None), claim=claim)
        else:
            return False
        return True

    def _end_in_turn(self, client_id: str, claim: int) -> None:
        self._claimed -= 1
        stored = None
        with suppress(ViewError):  # then the next tick tries again
            stored = self._journal.load(client_id)
        if stored is None or not self._end_one(stored, claim):
            self._claims.settle(client_id, claim)

    def _lost(self, _: str | None) -> None:
        self._claimed -= 1  # the work is still due, or the gateway that has the session does it


def _who_left(stored: StoredSession) -> Who:
    certificate_name = "" if stored.will is None else stored.will.certificate_name
    return Who(stored.owner or "", stored.client_id, certificate_name=certificate_name)
