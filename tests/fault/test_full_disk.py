"""A disk that is really full: a small tmpfs and a small ext4, filled to the last block.

Appends are refused and say why, nothing dies of SIGBUS or is fenced, reads go on; once there is
space the store goes on by itself. Skipped where mounting is not permitted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.errors import StoreFullError
from motelog.core.state_file import StateFile
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.message_store import MessageStore
from motelog.core.store.state.checkpoint import StateFiles
from tests.support.ledger import Ledger
from tests.support.loop_disk import NotPermittedError, fill_disk, loop_disk, small_tmpfs
from tests.support.stores import make_store

DISK_BYTES = 64 << 20
FILE_BYTES = 1 << 20
DEADLINE_S = 60
on_ext4 = pytest.mark.parametrize("disk", ["ext4"], indirect=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    try:
        if request.param == "tmpfs":
            with small_tmpfs(tmp_path, DISK_BYTES) as root:
                yield root
        else:
            with loop_disk(tmp_path, DISK_BYTES) as mounted:
                yield mounted.root
    except NotPermittedError as exc:
        pytest.skip(f"no small {request.param} here: {exc}")


def free(filler: Path) -> None:
    filler.unlink()


def small_store(root: Path, **config: Any) -> MessageStore:
    settings: dict[str, Any] = {
        "commitlog_file_bytes": FILE_BYTES,
        "consume_queue_file_units": 200,
        "index_slots": 1_000,
        "index_entries": 4_000,
        "disk_check_interval_ms": 5,
        "checkpoint_interval_ms": 20,
    }
    return make_store(root / "store", **{**settings, **config})


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # a disk has no event for its state
            await trio.sleep(0.005)


def accepts(store: MessageStore, ledger: Ledger, count: int = 5) -> bool:
    try:
        ledger.append(store, count, 20)
    except StoreFullError:
        return False
    return True


def check_after_restart(root: Path, ledger: Ledger) -> None:
    store = small_store(root)
    report = store.open()
    assert report.damage == []
    assert ledger.check(store, ledger.appended) == ledger.appended
    ledger.check_keys(store, ledger.appended)
    store.close()


async def test_before_the_disk_is_full_appends_are_refused_until_there_is_space(disk: Path) -> None:
    ledger = Ledger(random.Random(1))
    store = small_store(disk, disk_used_percent_max=90)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        ledger.append(store, 50)
        filler = fill_disk(disk, leave_bytes=DISK_BYTES // 20)
        await until(lambda: store.full_reason is not None)
        with pytest.raises(StoreFullError, match=r"disk 9\d\.\d % full, limit 90 %; "):
            ledger.append(store, 1)
        ledger.check(store, ledger.appended)
        await store.wait_durable(store.end_offset)
        filler.unlink()
        await until(lambda: store.full_reason is None)
        ledger.append(store, 50)
        await store.wait_durable(store.end_offset)
        nursery.cancel_scope.cancel()
    check_after_restart(disk, ledger)


async def test_a_log_file_that_does_not_fit_refuses_what_would_need_it(disk: Path) -> None:
    ledger = Ledger(random.Random(2))
    store = small_store(disk)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        ledger.append(store, 50)
        filler = fill_disk(disk)
        refused = None
        while refused is None and store.end_offset < 4 * FILE_BYTES:
            try:
                ledger.append(store, 20, 4_000)
            except StoreFullError as exc:
                refused = exc
            await trio.lowlevel.checkpoint()
        assert refused is not None
        assert "No space left" in str(refused)
        await go_on(store, ledger, filler)
        nursery.cancel_scope.cancel()
    check_after_restart(disk, ledger)


async def go_on(store: MessageStore, ledger: Ledger, filler: Path) -> None:
    """Reads go on while the disk is full; then there is space, and everything does."""
    assert store.fence_reason is None
    ledger.check(store, ledger.appended)
    free(filler)
    await until(lambda: accepts(store, ledger))
    for _ in range(20):
        ledger.append(store, 20, 4_000)
        await trio.lowlevel.checkpoint()
    await store.wait_durable(store.end_offset)
    await store.checkpoint()
    assert store.fence_reason is None
    ledger.check(store, ledger.appended)


@pytest.mark.parametrize("memory_bytes", [2_000, 1 << 20])
async def test_units_that_do_not_fit_wait_in_memory_until_that_is_full(
    disk: Path, memory_bytes: int
) -> None:
    ledger = Ledger(random.Random(3))
    config = {
        "consume_queue_memory_bytes_max": memory_bytes,
        "consume_queue_flush_interval_ms": 5,
    }
    store = small_store(disk, **config)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        ledger.append(store, 50)
        await store.checkpoint()
        filler = fill_disk(disk)
        # Far more units than the queues' files have room for, and far less than the log's.
        refused = 0
        for number in range(60):
            refused += not accepts(store, ledger, 20)
            if number % 10 == 0:
                await store.checkpoint()
        assert (refused > 0) == (memory_bytes == 2_000)
        await go_on(store, ledger, filler)
        nursery.cancel_scope.cancel()
    check_after_restart(disk, ledger)


@on_ext4
async def test_an_index_file_that_does_not_fit_is_made_up_for(disk: Path) -> None:
    ledger = Ledger(random.Random(4))
    store = small_store(disk, index_slots=64, index_entries=256)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        ledger.append(store, 50)
        filler = fill_disk(disk)
        for _ in range(40):
            accepts(store, ledger)
            await trio.lowlevel.checkpoint()
        await store.checkpoint()
        assert store.index.indexed_offset < store.end_offset
        await go_on(store, ledger, filler)
        ledger.check_keys(store, ledger.appended)
        nursery.cancel_scope.cancel()


@on_ext4
async def test_a_state_file_that_does_not_fit_is_written_later(disk: Path) -> None:
    ledger = Ledger(random.Random(5))
    store = small_store(disk, checkpoint_interval_ms=1 << 40)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        ledger.append(store, 50)
        await store.checkpoint()
        # The first one that is not replaced but new, and with it its directory.
        filler = fill_disk(disk)
        state_file = StateFile(str(disk / "store" / "config" / "new.json"), holds="nothing")
        with pytest.raises(OSError, match="No space left"):
            state_file.save({"value": 1})
        known = StateFiles(OsStorage(), str(disk / "store"))
        noted = []
        for _ in range(3):
            store._clock.not_before(store.now_ms() + 5_000)
            ledger.append(store, 1)
            await store.checkpoint()
            assert store.fence_reason is None
            # Whether there was room or not: the new one, or the one before.
            noted.append(known.read_checkpoint().physic_ms)
        assert noted == sorted(noted)
        assert noted[0] > 0
        filler.unlink()
        await store.checkpoint()
        assert known.read_checkpoint().physic_ms == store.now_ms()
        state_file.save({"value": 1})
        nursery.cancel_scope.cancel()
    check_after_restart(disk, ledger)


@on_ext4
@pytest.mark.parametrize("was_clean", [True, False])
def test_a_start_on_a_full_disk_says_so_and_changes_nothing(disk: Path, was_clean: bool) -> None:
    ledger = Ledger(random.Random(6))
    store = small_store(disk)
    store.open()
    for _ in range(10):
        ledger.append(store, 20)
    store.close()
    if not was_clean:
        (disk / "store" / "abort").touch()
    filler = fill_disk(disk)
    for _ in range(2):
        with pytest.raises(StoreFullError, match="no room to open"):
            small_store(disk).open()
    filler.unlink()
    check_after_restart(disk, ledger)


@on_ext4
def test_a_new_store_on_a_full_disk_is_refused(disk: Path) -> None:
    filler = fill_disk(disk)
    with pytest.raises(StoreFullError, match="no room to open"):
        small_store(disk).open()
    filler.unlink()
    check_after_restart(disk, Ledger(random.Random(7)))
