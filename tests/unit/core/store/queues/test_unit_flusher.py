"""Units: which are written when, what is synced how, and that reads find them all the while."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.store.disk.files import FileSystem, OsFileSystem, Piece
from motelog.core.store.message_store import MessageStore
from tests.support.stores import (
    RecordingStorage,
    abandon,
    make_store,
    message,
    opened,
    read_bodies,
)

UNITS_OF_TWO_PAGES = -(-8192 // 20)


def fill(store: MessageStore, queue_id: int, count: int) -> None:
    tail = store.queue_tail("T", queue_id)
    store.append([message(tail, b"%d" % i) for i in range(count)])


def written(store: MessageStore) -> dict[int, int]:
    """Return queue id -> how many units are on file."""
    store.unit_flusher._check()
    return {key[1]: queue.written_offset for key, queue in store._queues.items()}


def big_store(folder: Path, storage: RecordingStorage, **config: Any) -> MessageStore:
    store = make_store(
        folder,
        storage=storage,
        commitlog_file_bytes=1 << 20,
        consume_queue_file_units=300,
        **config,
    )
    store.open()
    return store


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110  # a thread is at work
            await trio.sleep(0.002)


async def test_queues_with_two_pages_are_written_each_interval(tmp_path: Path) -> None:
    store = big_store(tmp_path, RecordingStorage(), consume_queue_flush_interval_ms=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.unit_flusher.run)
        fill(store, 1, UNITS_OF_TWO_PAGES - 1)
        fill(store, 0, UNITS_OF_TWO_PAGES)
        await until(lambda: written(store) == {0: UNITS_OF_TWO_PAGES, 1: 0})
        await trio.sleep(0.02)
        assert written(store)[1] == 0
        fill(store, 1, 1)
        await until(lambda: written(store)[1] == UNITS_OF_TWO_PAGES)
        nursery.cancel_scope.cancel()
    expected = [b"%d" % i for i in range(UNITS_OF_TWO_PAGES)]
    assert read_bodies(store) == {("T", 0): expected, ("T", 1): [*expected[:-1], b"0"]}
    store.close()


async def test_half_of_what_memory_holds_is_written_at_once(tmp_path: Path) -> None:
    store = big_store(tmp_path, RecordingStorage(), consume_queue_memory_bytes_max=2000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.unit_flusher.run)
        fill(store, 0, 50)
        await trio.sleep(0.02)
        assert written(store) == {0: 0}
        fill(store, 1, 1)
        await until(lambda: written(store) == {0: 50, 1: 1})
        nursery.cancel_scope.cancel()
    # When nobody else writes units, the append does.
    fill(store, 0, 90)
    fill(store, 0, 20)
    assert written(store) == {0: 140, 1: 1}
    store.close()


async def test_a_full_disk_is_tried_again_and_a_broken_one_fences(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = big_store(tmp_path, storage, consume_queue_flush_interval_ms=2)
    storage.fail_at["write_files"] = (0, OSError(errno.ENOSPC, "full"))
    fill(store, 0, 600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.unit_flusher.run)
        await until(lambda: written(store) == {0: 600})
        assert store.fence_reason is None
        storage.fail_at["write_files"] = (0, OSError(errno.EIO, "broken"))
        fill(store, 0, 600)
        await until(lambda: "broken" in (store.fence_reason or ""))
        nursery.cancel_scope.cancel()
    assert len(read_bodies(store)[("T", 0)]) == 1200
    abandon(store)


async def test_an_append_that_writes_units_waits_for_the_worker_that_does(tmp_path: Path) -> None:
    storage = _SlowStorage()
    store = big_store(tmp_path, storage, consume_queue_memory_bytes_max=2000)
    fill(store, 0, 90)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.unit_flusher.write)
        await until(storage.is_writing.is_set)
        # There is no room for 20 more: before the append these 90 must be on file.
        fill(store, 0, 20)
    assert (storage.calls_at_once_max, written(store)) == (1, {0: 90})
    fill(store, 0, 100)
    store.close()
    with opened(tmp_path, commitlog_file_bytes=1 << 20, consume_queue_file_units=300) as again:
        assert len(read_bodies(again)[("T", 0)]) == 210


class _SlowStorage(RecordingStorage):
    """Takes its time to write files, and counts how many threads do so at once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = threading.Event()
        self.calls_at_once_max = 0
        self._calls_now = 0

    def write_files(self, pieces: list[Piece], file_bytes: int) -> None:
        self._calls_now += 1
        self.calls_at_once_max = max(self.calls_at_once_max, self._calls_now)
        self.is_writing.set()
        # Not a deadline: time for another thread to come in, if nothing keeps it out.
        threading.Event().wait(0.05)
        super().write_files(pieces, file_bytes)
        self._calls_now -= 1


@pytest.mark.parametrize("queues", [64, 65])
async def test_many_files_are_synced_as_one_file_system(
    tmp_path: Path, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[FileSystem] = []
    monkeypatch.setattr(OsFileSystem, "sync", lambda self: synced.append(self))
    storage = RecordingStorage()
    store = big_store(tmp_path, storage)
    for queue_id in range(queues):
        fill(store, queue_id, 1)
    storage.calls.clear()
    await store.checkpoint()
    each = [path for call, path in storage.calls if call == "sync_files"]
    assert (len(each) >= 64, len(synced)) == (queues == 64, int(queues == 65))
    # What could not be noted because there was no room is synced again with what is new.
    fill(store, 0, 1)
    storage.fail_at["replace_file"] = (0, OSError(errno.ENOSPC, "full"))
    await store.checkpoint()
    fill(store, 1, 1)
    storage.calls.clear()
    await store.checkpoint()
    each = [Path(path).parts[-2] for call, path in storage.calls if call == "sync_files"]
    assert each == ["0", "1"]
    assert store.fence_reason is None
    store.close()


def test_a_store_of_many_queues_comes_back_after_either_stop(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            store.append([message(store.queue_tail("T", i), b"%d" % i) for i in range(700)])
    with opened(tmp_path) as store:
        expected = read_bodies(store)
        assert len(expected) == 700
        store.append([message(store.queue_tail("T", i), b"more") for i in range(700)])
        for bodies in expected.values():
            bodies.append(b"more")
    store = make_store(tmp_path)
    store.open()
    store.append([message(store.queue_tail("T", i), b"late") for i in range(700)])
    abandon(store)
    with opened(tmp_path) as store:
        assert read_bodies(store) == {key: [*found, b"late"] for key, found in expected.items()}
