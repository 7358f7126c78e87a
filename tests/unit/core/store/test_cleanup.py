"""What cleaning removes, when, and what a store looks like after each of its steps."""

from __future__ import annotations

import errno
import math
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.clock import ManualClock, SteadyClock
from motelog.core.store.cleanup import HOUR_MS, Retention
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import (
    RecordingStorage,
    abandon,
    make_store,
    message,
    opened,
    read_bodies,
    read_queue,
)

FILE = 16_384
UNITS = 16
DAY_MS = 24 * HOUR_MS


def at_hour(hour: int) -> ManualClock:
    """A clock that shows this hour, local time."""
    return ManualClock(int(time.mktime((2026, 3, 2, hour, 30, 0, 0, 0, -1))) * 1000)


@asynccontextmanager
async def running(
    folder: Path, clock: ManualClock, storage: RecordingStorage, **config: Any
) -> AsyncIterator[MessageStore]:
    store = make_store(
        folder,
        clock=clock,
        storage=storage,
        cleanup_interval_ms=600_000,
        cleanup_pause_ms=1,
        **config,
    )
    await trio.to_thread.run_sync(store.open)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


def fill(store: MessageStore, files: int, *, queue_id: int = 0) -> None:
    """Append until the log has begun ``files`` files more."""
    tail = store.queue_tail("T", queue_id)
    end = len(store._log.queue.files) + files
    while len(store._log.queue.files) < end:
        store.append([message(tail, b"%d" % tail.next_offset)])
    # Files of a ConsumeQueue can only go once they are there.
    store.unit_flusher.write_now()


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if not path.name.endswith(".tmp"))


async def test_expired_files_go_at_the_hour_and_the_newest_stays(tmp_path: Path) -> None:
    clock = at_hour(4)
    async with running(tmp_path, clock, RecordingStorage()) as store:
        fill(store, 3)
        assert await store.cleaner.clean() == 0
        clock.advance(3 * DAY_MS)
        assert await store.cleaner.clean() == 0, "72 h exactly"
        clock.advance(HOUR_MS // 10)
        assert await store.cleaner.clean() == 3
        assert len(names(tmp_path / "commitlog")) == 1
        assert store.begin_offset == 3 * FILE
        low, high = store.reader.min_offset("T", 0), store.reader.max_offset("T", 0)
        assert 0 < low < high
        assert [m.body for m in read_queue(store, "T", 0)] == [b"%d" % i for i in range(low, high)]
        assert store.reader.read("T", 0, 0).status is ReadStatus.OFFSET_TOO_SMALL
        first = names(tmp_path / "consumequeue/T/0")[0] // 20
        assert first <= low < first + UNITS


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_checkpoint_that_has_room_speaks_of_what_is_removed(
    tmp_path: Path, has_room: bool
) -> None:
    clock, storage = at_hour(4), RecordingStorage()
    async with running(tmp_path, clock, storage, checkpoint_interval_ms=600_000) as store:
        fill(store, 3)
        clock.advance(4 * DAY_MS)
        storage.calls.clear()
        if not has_room:
            storage.fail_at["sync_files"] = (0, OSError(errno.EMFILE, "no descriptors"))
        assert await store.cleaner.clean() == 3
        wanted = ("replace_file", "remove_file")
        calls = [
            "checkpoint" if path.endswith("/checkpoint") else "removal"
            for call, path in storage.calls
            if call in wanted and ("/commitlog/" in path or path.endswith("/checkpoint"))
        ]
        # One for all of them, or one is tried again with the next file.
        before = ["checkpoint"] if has_room else ["removal", "checkpoint"]
        assert calls == before + ["removal"] * (4 - len(before))
        assert store.fence_reason is None


async def test_at_another_hour_only_a_fuller_disk_removes_expired_files(tmp_path: Path) -> None:
    clock, storage = at_hour(11), RecordingStorage()
    async with running(tmp_path, clock, storage) as store:
        fill(store, 2)
        clock.advance(3 * DAY_MS + 1)
        storage.used_percent = 75.0
        assert await store.cleaner.clean() == 0
        storage.used_percent = 75.1
        assert await store.cleaner.clean() == 2


async def test_a_nearly_full_disk_removes_the_oldest_until_it_is_not(tmp_path: Path) -> None:
    clock, storage = at_hour(11), RecordingStorage()
    async with running(tmp_path, clock, storage) as store:
        fill(store, 5)
        storage.used_percent = 85.0
        assert await store.cleaner.clean() == 0
        storage.used_percent = 86.0

        async def relieve(begin: int, end: int) -> None:
            if begin == FILE:
                storage.used_percent = 80.0

        store.cleaner.before_removal.append(relieve)
        assert await store.cleaner.clean() == 2
        assert store.begin_offset == 2 * FILE


async def test_it_tells_when_the_disk_will_not_keep_messages_for_as_long_as_wanted(
    tmp_path: Path,
) -> None:
    clock, storage = at_hour(11), RecordingStorage()
    async with running(tmp_path, clock, storage, retention_hours=10) as store:
        fill(store, 2)

        def left_s(put_bytes_per_s: float) -> float:
            usage = storage.disk_usage(str(tmp_path))
            return store.cleaner.retention_left_s(usage, put_bytes_per_s)

        storage.used_percent = 75.0
        total_bytes = storage.disk_usage(str(tmp_path)).total_bytes
        room_bytes = total_bytes // 10  # up to 85 %, where the oldest go
        log_bytes = store.end_offset - store.begin_offset
        just_fits = (room_bytes + log_bytes) / 36_000
        assert left_s(0) == left_s(0.99 * just_fits) == math.inf
        assert left_s(2 * just_fits) == pytest.approx(room_bytes / (2 * just_fits), rel=0.01)
        storage.used_percent = 86.0
        assert left_s(0) == 0, "they go now"


async def test_a_round_removes_no_more_than_configured(tmp_path: Path) -> None:
    clock = at_hour(4)
    async with running(tmp_path, clock, RecordingStorage(), cleanup_files_max=2) as store:
        fill(store, 5)
        clock.advance(4 * DAY_MS)
        assert [await store.cleaner.clean() for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("step_days", [1, -1, 400])
def test_setting_the_clock_expires_nothing_early(step_days: int) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    retention = Retention(steady, clock, 72)
    stored_ms = steady.now_ms()
    clock.advance(2 * DAY_MS)
    assert not retention.is_expired(stored_ms)
    clock.step_wall(step_days * DAY_MS)
    assert not retention.is_expired(stored_ms)
    clock.advance(DAY_MS - 1)
    assert not retention.is_expired(stored_ms)
    # At most as late as the clock went back.
    clock.advance(DAY_MS + 2)
    assert retention.is_expired(stored_ms)


async def test_a_clock_set_back_leaves_the_log_in_order(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, RecordingStorage()) as store:
        stamps: list[int] = []
        for step in (0, -DAY_MS, 0, DAY_MS, 0):
            clock.advance(1_000)
            clock.step_wall(step)
            store.append([message(store.queue_tail("T", 0))])
            stamps.append(store.reader.store_timestamp("T", 0, len(stamps)))
        assert stamps == sorted(set(stamps))


async def test_what_a_listener_saves_is_on_disk_before_the_file_goes(tmp_path: Path) -> None:
    clock, storage = at_hour(4), RecordingStorage()
    async with running(tmp_path, clock, storage, disk_used_percent_max=50) as store:
        fill(store, 2)
        clock.advance(4 * DAY_MS)
        storage.used_percent = 60.0
        await trio.to_thread.run_sync(store.disk_watch.check)
        seen = []

        async def save(begin: int, end: int) -> None:
            seen.append((begin, end))
            # Also while everything else is refused.
            store.append([message(store.queue_tail("kept", 0), b"live")], even_if_full=True)

        store.cleaner.before_removal.append(save)
        storage.calls.clear()
        assert await store.cleaner.clean() == 2
        assert seen == [(0, FILE), (FILE, 2 * FILE)]
        calls = [(name, path.split("/")[-1]) for name, path in storage.calls]
        removed = calls.index(("remove_file", f"{0:020d}"))
        assert ("sync", f"{2 * FILE:020d}") in calls[:removed]
        assert calls[removed + 1] == ("sync_directory", "commitlog")
        assert [m.body for m in read_queue(store, "kept", 0)] == [b"live", b"live"]


async def test_a_file_that_cannot_be_removed_stays_readable_and_blocks_the_next(
    tmp_path: Path,
) -> None:
    clock, storage = at_hour(4), RecordingStorage()
    async with running(tmp_path, clock, storage) as store:
        fill(store, 3)
        clock.advance(4 * DAY_MS)
        storage.fail_at["remove_file"] = (1, OSError(5, "I/O error"))
        with pytest.raises(OSError, match="I/O error"):
            await store.cleaner.clean()
        assert store.begin_offset == FILE
        assert names(tmp_path / "commitlog")[0] == FILE
        read_queue(store, "T", 0)
        assert await store.cleaner.clean() == 2


async def test_a_reader_keeps_its_view_of_a_removed_file(tmp_path: Path) -> None:
    clock = at_hour(4)
    async with running(tmp_path, clock, RecordingStorage()) as store:
        fill(store, 2)
        view = store._log.queue.files[0].view
        before = bytes(view)
        clock.advance(4 * DAY_MS)
        assert await store.cleaner.clean() == 2
        assert bytes(view) == before


async def test_checkpoint_and_cleaning_do_not_meet(tmp_path: Path) -> None:
    clock = at_hour(4)
    async with running(tmp_path, clock, RecordingStorage(), checkpoint_interval_ms=1) as store:
        for _ in range(6):
            fill(store, 2, queue_id=0)
            fill(store, 1, queue_id=1)
            clock.advance(4 * DAY_MS)
            assert await store.cleaner.clean() == 3
            await store.checkpoint()
        assert store.fence_reason is None


@pytest.mark.parametrize("gone", ["commitlog", "consumequeue", "middle of consumequeue"])
@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_folder_opens_after_each_step(tmp_path: Path, gone: str, clean_stop: bool) -> None:
    store = make_store(tmp_path)
    store.open()
    fill(store, 4)
    for queue_id in (1, 2):
        fill(store, 1, queue_id=queue_id)
    every = read_bodies(store)
    if clean_stop:
        store.close()
    else:
        abandon(store)
    units = sorted((tmp_path / "consumequeue/T/0").iterdir())
    assert len(units) > 3
    if gone == "commitlog":
        for name in sorted((tmp_path / "commitlog").iterdir())[:2]:
            name.unlink()
    elif gone == "consumequeue":
        for path in units[:2]:
            path.unlink()
    else:
        units[1].unlink()
    for _ in range(2):
        with opened(tmp_path) as again:
            found = read_bodies(again)
            for key, bodies in every.items():
                lost = len(bodies) - len(found[key])
                assert found[key] == bodies[lost:]
                assert again.reader.max_offset(*key) == len(bodies)
            if gone != "commitlog":
                assert found[("T", 1)] == every[("T", 1)]


async def test_a_start_removes_the_units_that_a_crash_left(tmp_path: Path) -> None:
    clock = at_hour(4)
    with opened(tmp_path, clock=clock) as store:
        fill(store, 4)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    (tmp_path / "commitlog" / f"{FILE:020d}").unlink()
    async with running(tmp_path, clock, RecordingStorage()) as store:
        low = store.reader.min_offset("T", 0)
        with trio.fail_after(5):
            while names(tmp_path / "consumequeue/T/0")[0] // 20 + UNITS <= low:  # noqa: ASYNC110
                await trio.sleep(0.001)


async def test_a_queue_that_lost_everything_goes_on_counting(tmp_path: Path) -> None:
    clock = at_hour(4)
    async with running(tmp_path, clock, RecordingStorage()) as store:
        store.append([message(store.queue_tail("idle", 0)) for _ in range(40)])
        fill(store, 2)
        clock.advance(4 * DAY_MS)
        assert await store.cleaner.clean() == 2
        assert (store.reader.min_offset("idle", 0), store.reader.max_offset("idle", 0)) == (40, 40)
        assert store.reader.read("idle", 0, 40).status is ReadStatus.OFFSET_OVERFLOW_ONE
        assert len(names(tmp_path / "consumequeue/idle/0")) == 1
    with opened(tmp_path) as again:
        assert (again.reader.min_offset("idle", 0), again.reader.max_offset("idle", 0)) == (40, 40)
        again.append([message(again.queue_tail("idle", 0), b"new")])
        assert [m.queue_offset for m in read_queue(again, "idle", 0)] == [40]


async def test_index_files_follow(tmp_path: Path) -> None:
    clock = at_hour(4)
    sizes = {"index_slots": 16, "index_entries": 8}
    async with running(tmp_path, clock, RecordingStorage(), **sizes) as store:
        tail = store.queue_tail("T", 0)
        while len(store._log.queue.files) < 3:
            clock.advance(1)
            number = tail.next_offset
            store.append([message(tail, b"%d" % number, properties=b"KEYS\x01k%d\x02" % number)])
        await store.checkpoint()
        await store.checkpoint()
        before = len(list((tmp_path / "index").iterdir()))
        clock.advance(4 * DAY_MS)
        assert await store.cleaner.clean() == 2
        after = len(list((tmp_path / "index").iterdir()))
        assert 0 < after < before / 2
        low, high = store.reader.min_offset("T", 0), store.reader.max_offset("T", 0)
        for number, count in ((0, 0), (low, 1), (high - 1, 1)):
            key = f"k{number}"
            found = store.reader.query("T", key, begin_ms=0, end_ms=clock.now_ms())
            assert len(found.records) == count


@pytest.mark.parametrize("count", [40, 48])
async def test_a_queue_without_records_and_files_goes_on_counting(
    tmp_path: Path, count: int
) -> None:
    clock = at_hour(4)
    async with running(tmp_path, clock, RecordingStorage()) as store:
        store.append([message(store.queue_tail("idle", 0)) for _ in range(count)])
        fill(store, 2)
        clock.advance(4 * DAY_MS)
        assert await store.cleaner.clean() == 2
    shutil.rmtree(tmp_path / "consumequeue")
    for _ in range(2):
        with opened(tmp_path) as store:
            assert (store.reader.min_offset("idle", 0), store.reader.max_offset("idle", 0)) == (
                count,
                count,
            )
    with opened(tmp_path) as store:
        store.append([message(store.queue_tail("idle", 0), b"new")])
        assert [m.queue_offset for m in read_queue(store, "idle", 0)] == [count]
    with opened(tmp_path) as store:
        assert [m.queue_offset for m in read_queue(store, "idle", 0)] == [count]
