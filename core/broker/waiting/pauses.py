"""The times in which the broker's thread did not run, as far as its clocks show.

Owns: Pauses. Must not touch: which requests are refused (flow_control).

A process is stopped, its container has used up its quota, the host runs others, a page of its code
has to be read: then the clock continues but the thread gets no processor time. A pause is the time
between two points in the code that the thread passes often, minus the time that it worked. A wait
for requests counts as one too, because no request waits meanwhile. An append does not: it may block
on the disk, and requests do wait for that.
Concurrency: state changes on the broker's thread.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from motelog.core.clock import Clock

#: A shorter time is not a pause.
PAUSE_MS: Final = 10
# Older ones are forgotten: a container with half a processor pauses ten times a second.
_PAUSES_MAX: Final = 128


class Pauses:
    """The last pauses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: deque[tuple[int, int]] = deque(maxlen=_PAUSES_MAX)
        self._seen_ms = clock.monotonic_ms()
        self._worked_ms = clock.worked_ms()

    def note(self) -> int:
        """Note that the thread runs, and a pause if there was one; return the monotonic time."""
        now_ms = self._clock.monotonic_ms()
        seen_ms, worked_ms = self._seen_ms, self._worked_ms
        if now_ms == seen_ms:
            return now_ms
        self._seen_ms, self._worked_ms = now_ms, self._clock.worked_ms()
        begin_ms = seen_ms + self._worked_ms - worked_ms
        if now_ms - begin_ms >= PAUSE_MS:
            self._pauses.append((begin_ms, now_ms))
        return now_ms

    def leave_out(self, now_ms: int) -> None:
        """Note that the thread runs at the monotonic time ``now_ms``, without a pause before."""
        self._seen_ms, self._worked_ms = now_ms, self._clock.worked_ms()

    def within(self, ms: int) -> int:
        """Return how long the thread paused in the last ``ms`` milliseconds."""
        since_ms = self._clock.monotonic_ms() - ms
        paused_ms = 0
        for begin_ms, end_ms in reversed(self._pauses):
            if end_ms <= since_ms:
                break
            paused_ms += end_ms - max(begin_ms, since_ms)
        return paused_ms
