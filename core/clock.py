"""Wall and monotonic time behind one small seam.

Owns: the Clock protocol, the system's clock, a clock that tests move by hand.
Must not touch: anything that waits. Wall time names and dates things and may step in either
direction; intervals and deadlines use the monotonic half.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the store and the broker ask for the time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may go back when the system's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class SteadyClock:
    """A wall clock that never goes back.

    Where the wall clock is set back, this one goes on at half speed until that has caught up: what
    is dated by it stays in order, and what waits for a time does not wait for a day.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = 0
        self._last_monotonic_ms = clock.monotonic_ms()

    def now_ms(self) -> int:
        monotonic_ms = self._clock.monotonic_ms()
        passed_ms = monotonic_ms - self._last_monotonic_ms
        self._last_ms, self._last_monotonic_ms = (
            max(self._clock.now_ms(), self._last_ms + passed_ms // 2),
            monotonic_ms - passed_ms % 2,
        )
        return self._last_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def not_before(self, now_ms: int) -> None:
        """Show at least this time from now on."""
        self._last_ms = max(self.now_ms(), now_ms)


class ManualClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass on both clocks."""
        self._now_ms += ms
        self._monotonic_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock ``ms`` on or, if negative, back; the monotonic clock does not move."""
        self._now_ms += ms
