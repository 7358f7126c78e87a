"""Flags: who is woken when, and that nothing that is set is missed."""

from __future__ import annotations

import trio
import trio.testing

from motelog.core.flag import Flag


async def test_a_wait_ends_while_it_is_set_and_not_once_it_is_cleared(
    autojump_clock: trio.testing.MockClock,
) -> None:
    flag = Flag()
    flag.set()
    await flag.wait()
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()
    with trio.move_on_after(1) as scope:
        await flag.wait()
    assert scope.cancelled_caught


async def test_who_waits_when_it_is_cleared_is_woken_by_the_next_set(
    nursery: trio.Nursery,
) -> None:
    flag = Flag()
    woken: list[str] = []

    async def wait() -> None:
        await flag.wait()
        woken.append("wait")

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    flag.clear()
    flag.set()
    await trio.testing.wait_all_tasks_blocked()
    assert woken == ["wait"]


async def test_take_says_whether_it_was_set_in_time_and_clears_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    flag = Flag()
    assert not await flag.take(within_s=5)
    flag.set()
    flag.set()
    assert await flag.take(within_s=0)
    assert not flag.is_set()
    flag.set()
    assert await flag.take()
    assert not await flag.take(within_s=5)


async def test_what_is_set_while_its_taker_works_is_taken_next(nursery: trio.Nursery) -> None:
    flag = Flag()
    rounds: list[int] = []

    async def work() -> None:
        while True:
            await flag.take()
            rounds.append(len(rounds))
            if len(rounds) == 1:
                flag.set()  # between the end of the wait and the next one

    nursery.start_soon(work)
    await trio.testing.wait_all_tasks_blocked()
    flag.set()
    await trio.testing.wait_all_tasks_blocked()
    assert rounds == [0, 1]
    nursery.cancel_scope.cancel()


async def test_a_cancelled_take_leaves_it_set() -> None:
    flag = Flag()
    flag.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await flag.take()
    assert scope.cancelled_caught
    assert flag.is_set()


async def test_a_pulse_wakes_those_who_wait_and_nobody_later(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    flag = Flag()
    assert flag.pulse() == 0
    for _ in range(2):
        nursery.start_soon(flag.wait)
    await trio.testing.wait_all_tasks_blocked()
    assert flag.pulse() == 2
    assert not await flag.take(within_s=1)
