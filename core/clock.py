"""Wall and monotonic time behind one small seam.

Owns: the Clock protocol, the system's clock, a clock that tests move by hand.
Must not touch: anything that waits. Wall time names and dates things and may step in either
direction; intervals and deadlines use the monotonic half.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final, Protocol

# A smaller step is the usual correction of a clock, not a clock that was set.
JUMP_MS: Final = 2_000
JUMPS_MAX: Final = 64


class Clock(Protocol):
    """The source of time for the store and the broker.

    ``worked_ms`` falls far behind ``monotonic_ms`` in a process that waits or cannot run: because
    it is stopped, short of processor time, or in a virtual machine that is.
    """

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may go back when the system's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        ...

    def worked_ms(self) -> int:
        """Milliseconds of processor time that the calling thread has had."""
        ...


class LastingClock(Clock, Protocol):
    """A clock that knows how long ago a date was, even if it has been set since."""

    def jumped_ms(self, date_ms: int) -> int:
        """Return how far the clock is known to have been set forward since ``date_ms``."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def worked_ms(self) -> int:
        return time.thread_time_ns() // 1_000_000

    def jumped_ms(self, date_ms: int) -> int:
        """Return 0: it is not known here."""
        return 0


@dataclass(frozen=True, slots=True)
class Jump:
    """The time that a SteadyClock showed, and how far it then jumped ahead of the passed time.

    With ``is_stop`` it was stopped meanwhile: how much time really passed is unknown, and it may
    continue at an earlier time than it had shown. With ``is_copy`` another clock showed ``at_ms``,
    and this one a time ``size_ms`` later; that includes the jumps noted before.
    """

    at_ms: int
    size_ms: int
    is_stop: bool = False
    is_copy: bool = False


class SteadyClock:
    """A wall clock that never goes back.

    If the wall clock is set back, this one runs at half speed until the wall clock has caught up:
    dates stay in order, and a wait for a time does not take a day. If the wall clock is
    set forward, this one follows and notes how far, so that it knows the least age of a date.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = 0
        self._last_monotonic_ms = clock.monotonic_ms()
        self._jumps: list[Jump] = []

    def now_ms(self) -> int:
        monotonic_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.now_ms()
        passed_ms = monotonic_ms - self._last_monotonic_ms
        ahead_ms = wall_ms - self._last_ms - passed_ms
        if ahead_ms >= JUMP_MS and self._last_ms:
            self._note(Jump(self._last_ms, ahead_ms))
        self._last_ms, self._last_monotonic_ms = (
            max(wall_ms, self._last_ms + passed_ms // 2),
            monotonic_ms - passed_ms % 2,
        )
        return self._last_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def worked_ms(self) -> int:
        return self._clock.worked_ms()

    def not_before(self, now_ms: int) -> None:
        """Show at least this time from now on."""
        last_ms = self.now_ms()
        if now_ms > last_ms:
            self._note(Jump(last_ms, now_ms - last_ms))
            self._last_ms = now_ms

    def age_ms(self, date_ms: int) -> int:
        """Return how much time has passed since ``date_ms`` was shown; never too much.

        It is too little if the clock ran at half speed, and stops in between do not count.
        """
        now_ms, jumped_ms = self.now_ms(), 0
        for jump in self._jumps:
            if jump.at_ms >= date_ms:
                noted_ms = jumped_ms + jump.size_ms
                jumped_ms = max(jumped_ms, jump.size_ms) if jump.is_copy else noted_ms
        return now_ms - date_ms - jumped_ms

    def jumped_ms(self, date_ms: int) -> int:
        """Return how far the clock was set forward since ``date_ms`` was shown, stops aside."""
        self.now_ms()
        jumps = (jump for jump in self._jumps if not jump.is_stop and not jump.is_copy)
        return sum(jump.size_ms for jump in jumps if jump.at_ms >= date_ms)

    @property
    def jumps(self) -> list[Jump]:
        """The jumps that count, oldest first."""
        return list(self._jumps)

    def dated_elsewhere(self, date_ms: int) -> None:
        """Note that the newest date, shown by another clock, arrives now.

        Either clock may be wrong, and nothing tells how long ago that was: it has no age yet.
        Earlier dates keep what was noted, since the other clock may have been set as well. Notes
        are joined unless they differ by more than half, so that a long backlog makes few.
        """
        ahead_ms = self.now_ms() - date_ms
        if ahead_ms < JUMP_MS:
            return
        joined = [jump for jump in self._jumps if jump.is_copy and jump.size_ms <= 2 * ahead_ms]
        if joined:
            self._jumps = [jump for jump in self._jumps if jump not in joined]
        size_ms = max(ahead_ms, *(jump.size_ms for jump in joined), 0)
        self._note(Jump(date_ms, size_ms, is_copy=True))

    def go_on_from(self, noted_ms: int, jumps: list[Jump], *, dated_ms: int) -> None:
        """Take over from a clock that showed ``noted_ms`` when its jumps were noted.

        That clock may have been set, unnoticed, between then and its last date, ``dated_ms``. Or it
        was ahead without dating anything; then this one begins below it.
        """
        self._jumps = [replace(jump, at_ms=min(jump.at_ms, dated_ms)) for jump in jumps]
        self._note(Jump(dated_ms, self.now_ms() - noted_ms, is_stop=True))

    def forget_before(self, date_ms: int) -> None:
        """Forget jumps before a date; no earlier date will be asked for."""
        self._jumps = [jump for jump in self._jumps if jump.at_ms >= date_ms]

    def _note(self, jump: Jump) -> None:
        self._jumps.append(jump)
        if len(self._jumps) > JUMPS_MAX:
            # Dates between the two will seem more recent than they are.
            first, second = self._jumps[:2]
            self._jumps[:2] = [
                Jump(second.at_ms, first.size_ms + second.size_ms, first.is_stop or second.is_stop)
            ]


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._worked_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def worked_ms(self) -> int:
        return self._worked_ms

    def work(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass in which the thread works."""
        self.advance(ms)
        self._worked_ms += ms

    def jumped_ms(self, date_ms: int) -> int:
        """Return 0: it is not known here."""
        return 0

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass on both clocks."""
        self._now_ms += ms
        self._monotonic_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock ``ms`` forward or, if negative, back; the monotonic one stays."""
        self._now_ms += ms
