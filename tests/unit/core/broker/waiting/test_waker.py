"""The task that calls held requests back, on a clock that jumps to the next deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from motelog.core.broker.waiting.long_poll import BUCKET_MS, HeldRequests
from motelog.core.broker.waiting.waker import Waker


class TrioClock:
    def now_ms(self) -> int:
        return self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def worked_ms(self) -> int:
        return 0


class Run:
    """A waker that runs; what was called back and when."""

    def __init__(self) -> None:
        self.held = HeldRequests(requests_max=100, requests_per_owner_max=100)
        self.waker = Waker(self.held, TrioClock(), wake=self._wake)
        self.outcomes: list[tuple[str, bool, int]] = []
        self.grown: list[str] = []
        self.flushed: list[int] = []
        self._begin = TrioClock().monotonic_ms()

    def now_ms(self) -> int:
        return TrioClock().monotonic_ms() - self._begin

    def hold(self, name: str, after_ms: int) -> None:
        def note(is_over: bool) -> None:
            self.outcomes.append((name, is_over, self.now_ms()))

        self.waker.hold(name, self._begin + self.now_ms() + after_ms, note, owner="c")

    def flush(self) -> None:
        self.flushed.append(len(self.outcomes))

    def _wake(self) -> None:
        while self.grown:
            self.held.wake(self.grown.pop())


@asynccontextmanager
async def running() -> AsyncIterator[Run]:
    async with trio.open_nursery() as nursery:
        run = Run()
        await nursery.start(run.waker.run, run.flush)
        yield run
        nursery.cancel_scope.cancel()


async def test_an_earlier_deadline_ends_the_sleep_until_a_later_one(
    autojump_clock: MockClock,
) -> None:
    async with running() as run:
        run.hold("late", 10_000)
        await trio.sleep(0.5)
        run.hold("early", 1_000)
        await trio.sleep(20)
    (early, late) = run.outcomes
    assert early[:2] == ("early", True)
    assert late[:2] == ("late", True)
    assert 1_500 <= early[2] <= 1_500 + BUCKET_MS
    assert 10_000 <= late[2] <= 10_000 + BUCKET_MS
    assert run.flushed[-1] == 2, "the last answer was not flushed"


async def test_what_is_wanted_is_woken_at_once_and_flushed(autojump_clock: MockClock) -> None:
    async with running() as run:
        run.hold("a", 5_000)
        run.hold("b", 5_000)
        await trio.sleep(1)
        run.grown.append("a")
        run.waker.want()
        await trio.sleep(1)
        assert run.outcomes == [("a", False, 1_000)]
        assert run.flushed[-1] == 1
        assert len(run.held) == 1
