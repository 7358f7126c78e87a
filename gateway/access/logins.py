"""Logins: the chain of authenticators, the queue of logins that need a thread, the back-off.

Owns: which authenticator decides, how many logins wait and how long, what is counted.
Must not touch: connections and sessions (``clients`` uses the answer), passwords and tokens.
Invariants: the event loop never hashes. The queue is bounded, and so is each wait: a client that is
not checked in time is told that the server is busy. A login that cannot be checked is refused.

    log_in -> Identity or Denied at once            known password, token, no credentials
        '---> Slow -> wait -> next, work, done -> then(Identity or Denied)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import trio

from motelog.core.clock import Clock
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.threads import run_in_thread
from motelog.gateway.access.back_off import BackOff
from motelog.gateway.access.login import (
    ANONYMOUS,
    Authenticator,
    Credentials,
    Denied,
    Identity,
    Slow,
)
from motelog.gateway.mqtt.packet_types import ReasonCode

logger = logging.getLogger(__name__)

#: How long a login waits for a thread; clients have given up by then.
WAIT_MS_MAX: Final = 15_000

UNCHECKABLE: Final = "logins cannot be checked at the moment"
NOT_HERE: Final = "this authentication method is not offered at this listener"

Then = Callable[[Identity | Denied], None]


class Job(NamedTuple):
    """A login that waits for a thread."""

    shown: Credentials
    slow: Slow
    begun_ms: int
    then: Then


class Logins:
    """The logins of one gateway."""

    def __init__(
        self,
        chain: Sequence[Authenticator],
        *,
        count: Callable[[str, str], None],
        clock: Clock,
        allow_anonymous: bool,
        waiting_max: int,
        threads: int = 1,
    ) -> None:
        """``count`` is called with the authenticator and the outcome of each login."""
        self._chain = {one.name: one for one in chain}
        self._count = count
        self._clock = clock
        self._allow_anonymous = allow_anonymous
        self._waiting_max = waiting_max
        self._threads = threads
        self._back_off = BackOff()
        self._waiting: deque[Job] = deque()
        self._come = Flag()
        self._faults = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        #: Why no client can log in: a file has become unreadable. None while all are readable.
        self.fault: str | None = None

    # --- a login -------------------------------------------------------------------------

    def log_in(self, shown: Credentials, then: Then) -> Identity | Denied | None:
        """Return the client's identity; None if it needs a thread, then ``then`` gets it later."""
        found = self._look(shown)
        if not isinstance(found, Slow):
            return self.judge(shown, found)
        refused = self.refused_untried(shown, found.authenticator)
        if refused is not None:
            return refused
        if len(self._waiting) >= self._waiting_max:
            why = "too many logins are waiting; try again later"
            return self.judge(shown, _busy(found.authenticator, why))
        self._waiting.append(Job(shown, found, self._now_ms(), then))
        self._come.set()
        return None

    def refused_untried(self, shown: Credentials, authenticator: str) -> Denied | None:
        """Return why a login is refused without a check; None if it may be checked."""
        found: Denied | None = None
        wait_ms = self._back_off.wait_ms(shown.host, shown.user_name or "", self._now_ms())
        if self.fault is not None:
            found = _busy("none", UNCHECKABLE)
        elif not shown.may_use(authenticator):
            found = Denied(authenticator, "refused", NOT_HERE, ReasonCode.BAD_AUTHENTICATION_METHOD)
        elif wait_ms:
            found = _backed_off(authenticator, wait_ms)
        if found is not None:
            self.judge(shown, found)
        return found

    def _look(self, shown: Credentials) -> Identity | Denied | Slow:
        if self.fault is not None:
            return _busy("none", UNCHECKABLE)
        for one in self._chain.values():
            found = one.log_in(shown) if shown.may_use(one.name) else None
            if found is not None:
                return found
        if shown.user_name is None and shown.password is None:
            if self._allow_anonymous and shown.may_use(ANONYMOUS):
                return Identity("", ANONYMOUS)
            why = "a user name and a password are required"
            return Denied(ANONYMOUS, "refused", why, ReasonCode.NOT_AUTHORIZED)
        return Denied("none", "wrong", "the user name or password is wrong")

    def judge(self, shown: Credentials, found: Identity | Denied) -> Identity | Denied:
        """Return the outcome of a login, after the back-off; it is counted."""
        user = shown.user_name or ""
        if isinstance(found, Denied):
            if found.outcome == "wrong":
                now_ms = self._now_ms()
                wait_ms = self._back_off.wait_ms(shown.host, user, now_ms)
                if wait_ms:  # a token, or a login that needed no thread
                    found = _backed_off(found.authenticator, wait_ms)
                else:
                    self._back_off.failed(shown.host, user, now_ms)
            self._count(found.authenticator, found.outcome)
        else:
            if found.authenticator != ANONYMOUS:
                self._back_off.succeeded(shown.host, user)
            self._count(found.authenticator, "accepted")
        return found

    def holds(self, identity: Identity) -> bool:
        """Whether a login is still valid: its user exists and has the same password."""
        if identity.authenticator == ANONYMOUS:
            return self._allow_anonymous
        one = self._chain.get(identity.authenticator)
        return one is not None and one.holds(identity)

    # --- logins that need a thread -------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def next(self) -> Job | None:
        """Return the login whose ``slow.work`` is next, to run in any thread."""
        while self._waiting:
            job = self._waiting.popleft()
            if self._now_ms() - job.begun_ms < WAIT_MS_MAX:
                return job
            why = "the login has waited too long; try again later"
            job.then(self.judge(job.shown, _busy(job.slow.authenticator, why)))
        return None

    def done(self, job: Job, result: Any) -> None:
        """Continue a login whose work is done."""
        job.then(self.judge(job.shown, job.slow.decide(result)))

    async def run(self, after: Callable[[], None]) -> None:
        """Do the work in threads until cancelled; call ``after`` after each answer."""
        limiter = trio.CapacityLimiter(self._threads)

        async def serve() -> None:
            while True:
                job = self.next()
                if job is None:
                    await self._come.take()
                    continue
                result = await run_in_thread(job.slow.work, limiter=limiter, abandon_on_cancel=True)
                # A fault with one client must not lock out all others.
                with self._faults.boundary("a login failed client_id=%r", job.shown.client_id):
                    self.done(job, result)
                after()

        async with trio.open_nursery() as nursery:
            for _ in range(self._threads):
                nursery.start_soon(serve)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()


def _backed_off(authenticator: str, wait_ms: int) -> Denied:
    why = f"too many failed logins; try again in {-(-wait_ms // 1000)} s"
    return Denied(authenticator, "backed_off", why, ReasonCode.CONNECTION_RATE_EXCEEDED)


def _busy(authenticator: str, why: str) -> Denied:
    return Denied(authenticator, "busy", why, ReasonCode.SERVER_BUSY)
