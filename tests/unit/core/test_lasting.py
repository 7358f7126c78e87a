"""A service that outlives a cancellation, before, while and after it starts."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from motelog.core.lasting import run_again, run_lasting


def limited() -> trio.CancelScope:
    """Return a scope that ends by itself where nothing else ends it, which is a fault."""
    return trio.CancelScope(deadline=trio.current_time() + 10)


class Service:
    """Starts when it may, and notes when it ends."""

    def __init__(self) -> None:
        self.may_start = trio.Event()
        self.has_ended = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            await self.may_start.wait()
            task_status.started()
            await trio.sleep(math.inf)
        finally:
            self.has_ended = True


async def test_a_start_that_is_cancelled_ends(autojump_clock: trio.testing.MockClock) -> None:
    service, scope = Service(), limited()
    with trio.move_on_after(1) as cancelled:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_lasting, service.run, scope)
    assert (cancelled.cancelled_caught, service.has_ended) == (True, True)
    assert not scope.cancel_called


async def test_a_start_in_a_cancelled_scope_ends(autojump_clock: trio.testing.MockClock) -> None:
    service, scope = Service(), limited()
    with trio.CancelScope() as cancelled:
        async with trio.open_nursery() as nursery:
            cancelled.cancel()
            await nursery.start(run_lasting, service.run, scope)
    assert (cancelled.cancelled_caught, service.has_ended) == (True, True)
    assert not scope.cancel_called


async def test_a_start_that_is_cancelled_as_it_succeeds_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    service, scope = Service(), limited()

    async def succeed_and_cancel() -> None:
        await trio.testing.wait_all_tasks_blocked()
        service.may_start.set()  # from now on the service runs to its next wait
        cancelled.cancel()

    async with trio.open_nursery() as outer:
        outer.start_soon(succeed_and_cancel)
        with trio.CancelScope() as cancelled:
            async with trio.open_nursery() as nursery:
                await nursery.start(run_lasting, service.run, scope)
    assert (cancelled.cancelled_caught, service.has_ended) == (True, True)
    assert not scope.cancel_called


async def test_once_started_it_ends_by_its_own_scope(
    autojump_clock: trio.testing.MockClock,
) -> None:
    service, scope = Service(), trio.CancelScope()
    service.may_start.set()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_lasting, service.run, scope)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert not service.has_ended
            scope.cancel()
    assert service.has_ended


async def test_a_service_without_memory_begins_again_and_other_errors_end_it(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[BaseException | None] = [
        MemoryError(),
        BaseExceptionGroup("", [MemoryError(), SystemError()]),
        SystemError(),
        None,
        ExceptionGroup("", [MemoryError(), OSError()]),
    ]

    async def service(which: str) -> None:
        assert which == "this one"
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    await run_again(service, "this one")
    assert len(outcomes) == 1
    with pytest.raises(ExceptionGroup):
        await run_again(service, "this one")
    assert not outcomes
    told = [record for record in caplog.records if "lacks memory" in record.getMessage()]
    assert len(told) == 1
