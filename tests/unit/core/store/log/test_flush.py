"""GroupFlusher: one sync for all who wait, an interval for the rest, and the end after an error."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from motelog.core.errors import StoreFencedError
from motelog.core.store.log.flush import Committer, GroupFlusher


class FakeLog:
    """A log whose sync waits until it is let go."""

    def __init__(self, *, interval_ms: int = 1_000_000) -> None:
        self.end = 0
        self.synced: list[tuple[int, int]] = []
        self.go = threading.Event()
        self.go.set()
        self.was_synced = threading.Event()
        self.error: Exception | None = None
        self.failures: list[str] = []
        self.flushed: list[int] = []
        self.flusher = GroupFlusher(
            sync=self.sync,
            end_offset=lambda: self.end,
            on_failure=self.fail,
            on_flushed=self.flushed.append,
            interval_ms=interval_ms,
        )

    def sync(self, begin: int, end: int) -> None:
        assert self.go.wait(10)
        self.synced.append((begin, end))
        self.was_synced.set()
        if self.error is not None:
            raise self.error

    def fail(self, reason: str) -> None:
        self.failures.append(reason)
        self.flusher.fence(reason)


async def test_one_sync_releases_all_who_wait() -> None:
    log = FakeLog()
    log.end = 500
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            async with trio.open_nursery() as waiters:
                for offset in range(1, 501):
                    waiters.start_soon(log.flusher.wait, offset)
            nursery.cancel_scope.cancel()
    assert log.synced == [(0, 500)]
    assert log.flusher.durable_offset == 500
    assert log.flushed == [500]


async def test_who_was_released_together_shares_the_next_sync() -> None:
    log = FakeLog()

    async def publish() -> None:
        for _ in range(5):
            log.end += 1
            await log.flusher.wait(log.end)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            async with trio.open_nursery() as publishers:
                for _ in range(10):
                    publishers.start_soon(publish)
            nursery.cancel_scope.cancel()
    # Only the very first has one of its own: nobody was released with it.
    assert log.synced == [(0, 1), (1, 11), (11, 21), (21, 31), (31, 41), (41, 50)]


async def test_who_gathers_and_is_cancelled_leaves_nobody_waiting() -> None:
    log = FakeLog()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            log.end = 1
            async with trio.open_nursery() as both:
                both.start_soon(log.flusher.wait, 1)
                both.start_soon(log.flusher.wait, 1)
            log.end = 2
            with trio.CancelScope() as scope:
                scope.cancel()
                await log.flusher.wait(2)
            assert scope.cancelled_caught
            await log.flusher.wait(2)
            nursery.cancel_scope.cancel()
    assert log.synced == [(0, 1), (1, 2)]


async def test_who_appends_during_a_sync_waits_for_the_next_one() -> None:
    log = FakeLog()
    log.end = 10
    log.go.clear()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            nursery.start_soon(log.flusher.wait, 10)
            await trio.testing.wait_all_tasks_blocked()
            log.end = 20
            nursery.start_soon(log.flusher.wait, 20)
            await trio.testing.wait_all_tasks_blocked()
            log.go.set()
            await log.flusher.wait(20)
            nursery.cancel_scope.cancel()
    assert log.synced == [(0, 10), (10, 20)]


async def test_who_is_called_needs_no_task_and_hears_of_each_sync() -> None:
    log = FakeLog()
    heard: list[int] = []
    log.flusher.listeners.append(lambda: heard.append(log.flusher.durable_offset))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            for end in (10, 30):
                log.end = end
                log.flusher.want(end)
                while log.flusher.durable_offset < end:
                    await trio.lowlevel.checkpoint()
            assert heard == [10, 30]
            log.end = 40
            log.error = OSError("gone")
            log.flusher.want(40)
    assert heard == [10, 30, 30]
    assert log.flusher.is_fenced


async def test_a_sync_that_ends_after_the_stop_still_counts() -> None:
    log = FakeLog()
    log.end = 10
    log.go.clear()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            await trio.testing.wait_all_tasks_blocked()
            log.flusher.want(10)
            nursery.cancel_scope.cancel()
            log.go.set()
    assert log.synced == [(0, 10)]
    assert log.flusher.durable_offset == 10


async def test_a_few_bytes_are_flushed_after_the_interval() -> None:
    log = FakeLog(interval_ms=5)
    log.end = 3
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            # Nobody calls wait, so only the interval can have done it.
            assert await trio.to_thread.run_sync(log.was_synced.wait, 10)
            nursery.cancel_scope.cancel()
    assert log.synced == [(0, 3)]


async def test_what_is_durable_needs_no_wait() -> None:
    log = FakeLog()
    log.flusher.start_at(7)
    await log.flusher.wait(7)
    assert log.synced == []


async def test_after_an_error_everybody_is_told_and_nothing_is_tried_again() -> None:
    log = FakeLog()
    log.end = 10
    log.error = OSError("gone")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            with pytest.raises(StoreFencedError, match="gone"):
                await log.flusher.wait(10)
    log.error = None
    with pytest.raises(StoreFencedError):
        await log.flusher.wait(5)
    await log.flusher.flush()
    assert log.synced == [(0, 10)]
    assert len(log.failures) == 1
    assert log.flusher.durable_offset == 0


async def test_flush_works_before_run_has_started() -> None:
    log = FakeLog()
    log.end = 10
    await log.flusher.flush()
    assert log.synced == [(0, 10)]
    assert log.flusher.durable_offset == 10
    log.end = 20
    log.error = OSError("gone")
    await log.flusher.flush()
    assert log.failures == ["flushing the log failed: gone"]
    assert log.flusher.durable_offset == 10


async def test_whatever_the_sync_raises_counts_as_not_durable() -> None:
    log = FakeLog()
    log.end = 10
    log.error = ValueError("mmap closed")  # not what a disk raises
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            with pytest.raises(StoreFencedError, match="mmap closed"):
                await log.flusher.wait(10)


async def test_a_flush_while_run_ends_does_not_keep_it_from_ending() -> None:
    log = FakeLog()
    for _ in range(20):
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.flusher.run)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                log.end += 10
                with trio.CancelScope(shield=True), trio.move_on_after(0.001):
                    await log.flusher.flush()
        log.end += 10
        await log.flusher.flush()
        assert log.flusher.durable_offset == log.end


async def test_a_committer_commits_each_interval_until_it_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []
    failures: list[str] = []

    def commit() -> None:
        times.append(round(trio.from_thread.run_sync(trio.current_time) - begun, 3))
        if len(times) == 5:
            raise OSError("no")

    committer = Committer(commit=commit, on_failure=failures.append, interval_ms=200)
    begun = trio.current_time()
    await committer.run()
    assert times == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert failures == ["committing the write buffer failed: no"]


@pytest.mark.parametrize("error", [MemoryError(), SystemError()])
async def test_a_flush_without_memory_is_tried_again_and_fences_nothing(error: Exception) -> None:
    log = FakeLog(interval_ms=1)
    log.error = error
    log.end = 5
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.flusher.run)
            nursery.start_soon(log.flusher.wait, 5)
            for _ in range(3):
                log.was_synced.clear()
                await trio.to_thread.run_sync(log.was_synced.wait, 10)
            assert len(log.synced) >= 3
            assert not log.flusher.is_fenced
            log.error = None
            await log.flusher.wait(5)
            nursery.cancel_scope.cancel()
    assert log.failures == []
    log.error, log.end = error, 6
    with pytest.raises(type(error)):
        await log.flusher.flush()
    assert log.flusher.durable_offset == 5
