"""Pulls of one queue range with several under way at once, answers in order of offsets.

Owns: what is asked for next. Must not touch: what an answer means (spark.reading), pyspark,
sockets.

An answer may be shorter than asked (brokers limit bytes and count, and say so only by what they
send), so later pulls are guesses. A short answer leaves a hole: it is asked for at once, before
what is already under way behind it, and further pulls ask for somewhat less than came, so that
messages of slightly different sizes do not leave a hole each time.

    asked:   [0, 1024) [1024, 2048)            the answer to the first ends at 700:
    asked:   [700, 1024) [1024, 2048) [2048, 2660)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from bridge.pull import PullResult

# After so many full answers in a row a slightly larger one is tried.
_GROW_AFTER: Final = 16

Submit = Callable[[int, int], "Future[PullResult]"]


@dataclass(frozen=True, slots=True)
class Answer:
    """``result`` of the pull of [begin, end)."""

    begin: int
    end: int
    result: PullResult


class PullAhead:
    """Pulls of [begin, end): ``take`` answers one by one, after each say where to ``go_on``.

    ``submit(offset, count)`` starts a pull. Invariant: what is under way lies in order and without
    gaps from ``position`` on.
    """

    def __init__(self, submit: Submit, begin: int, end: int, *, count_max: int, ahead: int) -> None:
        self._submit = submit
        self._end = end
        self._count_max = count_max
        self._ahead = ahead
        self._count = count_max
        self._full_answers = 0
        self._waiting: deque[tuple[int, int, Future[PullResult]]] = deque()
        self._next = begin
        self.position = begin

    def take(self) -> Answer:
        """Wait for the answer at ``position``; raises what the pull raised, and can go on after."""
        while len(self._waiting) <= self._ahead and self._next < self._end:
            self._waiting.append(self._ask(self._next, min(self._next + self._count, self._end)))
            self._next = self._waiting[-1][1]
        begin, end, future = self._waiting.popleft()
        assert begin == self.position
        try:
            return Answer(begin, end, future.result())
        except BaseException:
            self.restart(begin)
            raise

    def go_on(self, answer: Answer, offset: int) -> None:
        """Continue at ``offset``, up to which ``answer`` has been used."""
        self.position = offset
        if offset == answer.end:
            self._full_answers += 1
            if self._full_answers >= _GROW_AFTER:
                self._full_answers = 0
                self._count = min(self._count + self._count // 8 + 1, self._count_max)
        elif answer.begin < offset < answer.end:
            self._full_answers = 0
            self._count = max(1, (offset - answer.begin) * 7 // 8)
            self._waiting.appendleft(self._ask(offset, answer.end))
        else:
            self.restart(offset)

    def restart(self, offset: int) -> None:
        """Forget what is under way and continue at ``offset``."""
        for _, _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._next = self.position = offset

    @property
    def is_done(self) -> bool:
        return self.position >= self._end

    def _ask(self, begin: int, end: int) -> tuple[int, int, Future[PullResult]]:
        return begin, end, self._submit(begin, end - begin)
