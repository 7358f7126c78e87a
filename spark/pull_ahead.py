"""Pulls of one queue range, several in flight at once, with answers in order of offsets.

Owns: which offsets to request next. Must not touch: the meaning of an answer (spark.reading),
pyspark, sockets.

An answer may be shorter than requested, because brokers limit bytes and count without saying so. So
later pulls are guesses. A short answer leaves a gap. The gap is requested at once, and its answer
is used before those already in flight after it. Further pulls request somewhat less than
the answer had, so that messages of slightly different sizes do not leave a gap each time.

    requested:   [0, 1024) [1024, 2048)            the answer to the first ends at 700:
    requested:   [700, 1024) [1024, 2048) [2048, 2660)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from motelog.bridge.pull import PullResult

# After this many full answers in a row a slightly larger one is tried.
_GROW_AFTER: Final = 16


class Pull(Protocol):
    """A pull in flight. Each method is called at most once."""

    def result(self) -> PullResult: ...
    def cancel(self) -> None: ...


Ask = Callable[[int, int], Pull]


@dataclass(frozen=True, slots=True)
class Answer:
    """``result`` of the pull of [begin, end)."""

    begin: int
    end: int
    result: PullResult


class PullAhead:
    """Pulls [begin, end): ``take`` answers one by one, and after each call ``go_on``.

    ``ask(offset, count)`` starts a pull. Invariant: the pulls in flight are in order and without
    gaps from ``position`` on.
    """

    def __init__(self, ask: Ask, begin: int, end: int, *, count_max: int, ahead: int) -> None:
        self._ask = ask
        self._end = end
        self._count_max = count_max
        self._ahead = ahead
        self._count = count_max
        self._full_answers = 0
        # [begin, end) and the pull, None until it is started.
        self._waiting: deque[tuple[int, int, Pull | None]] = deque()
        self._next = begin
        self.position = begin

    def take(self) -> Answer:
        """Wait for the answer at ``position``; after an error of the pull, ``take`` pulls again."""
        try:
            begin, end, pull = self._first()
            assert begin == self.position
            while len(self._waiting) < self._ahead and self._next < self._end:
                end_next = min(self._next + self._count, self._end)
                pull_next = self._ask(self._next, end_next - self._next)
                self._waiting.append((self._next, end_next, pull_next))
                self._next = end_next
            return Answer(begin, end, pull.result())
        except BaseException:
            self.restart(self.position)
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
            self._waiting.appendleft((offset, answer.end, None))
        else:
            self.restart(offset)

    def restart(self, offset: int) -> None:
        """Cancel the pulls in flight and continue at ``offset``."""
        for _, _, pull in self._waiting:
            if pull is not None:
                pull.cancel()
        self._waiting.clear()
        self._next = self.position = offset

    @property
    def is_done(self) -> bool:
        return self.position >= self._end

    def _first(self) -> tuple[int, int, Pull]:
        """Return the pull at ``position``, started if necessary."""
        if self._waiting:
            begin, end, pull = self._waiting.popleft()
        else:
            begin, end, pull = self._next, min(self._next + self._count, self._end), None
            self._next = end
        return begin, end, self._ask(begin, end - begin) if pull is None else pull
