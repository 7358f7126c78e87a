"""A disk that fails or is full: the store says so and acknowledges nothing that it cannot keep."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from motelog.core.errors import RecordTooLargeError, StoreError, StoreFencedError, StoreFullError
from motelog.core.store.message_store import MessageStore
from tests.support.stores import (
    RecordingStorage,
    abandon,
    make_store,
    message,
    opened,
    read_bodies,
)

EIO = OSError(errno.EIO, "the disk failed")
ENOSPC = OSError(errno.ENOSPC, "the disk is full")


def append(store: MessageStore, body: bytes = b"body", topic: str = "T") -> int:
    return store.append([message(store.queue_tail(topic, 0), body)])


async def test_a_failed_fdatasync_fences_the_store(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage, flush="sync")
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        first = append(store, b"first")
        await store.wait_durable(first)
        storage.fail_at["sync"] = (0, EIO)
        second = append(store, b"second")
        with pytest.raises(StoreFencedError, match="the disk failed"):
            await store.wait_durable(second)
        assert store.durable_offset == first
        syncs = storage.calls.count(("sync", str(tmp_path / "commitlog" / "0".zfill(20))))
        with pytest.raises(StoreFencedError):
            append(store)
        with pytest.raises(StoreFencedError):
            await store.wait_durable(second)
        await trio.testing.wait_all_tasks_blocked()
        # Never tried again: the kernel may have dropped the pages and would say that all is well.
        assert storage.calls.count(("sync", str(tmp_path / "commitlog" / "0".zfill(20)))) == syncs
        assert store.fence_reason is not None
        # Reads go on.
        assert read_bodies(store) == {("T", 0): [b"first", b"second"]}
        nursery.cancel_scope.cancel()
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as again:
        assert read_bodies(again)[("T", 0)][:1] == [b"first"]


async def test_a_failed_checkpoint_fences_the_store(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    append(store)
    storage.fail_at["sync_files"] = (0, EIO)
    await store.checkpoint()
    with pytest.raises(StoreFencedError):
        append(store)
    abandon(store)


async def test_a_checkpoint_syncs_log_queues_and_directories_before_it_is_written(
    tmp_path: Path,
) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    append(store)
    storage.calls.clear()
    await store.checkpoint()
    names = [(call, str(Path(path).relative_to(tmp_path))) for call, path in storage.calls]
    name = "0".zfill(20)
    assert names == [
        ("write_files", f"consumequeue/T/0/{name}"),
        ("sync", f"commitlog/{name}"),
        ("write", "durable"),
        ("sync_files", f"consumequeue/T/0/{name}"),
        ("sync_files", "consumequeue"),
        ("sync_files", "consumequeue/T"),
        ("sync_files", "consumequeue/T/0"),
        ("replace_file", "queues.json"),
        ("sync_directory", "."),
        ("replace_file", "index.json"),
        ("sync_directory", "."),
        ("replace_file", "clock.json"),
        ("sync_directory", "."),
        ("replace_file", "checkpoint"),
        ("sync_directory", "."),
    ]
    storage.calls.clear()
    await store.checkpoint()
    assert [call for call, _ in storage.calls] == ["replace_file", "sync_directory"] * 2
    store.close()


def test_the_directory_of_a_new_log_file_is_synced_before_it_is_written_to(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    storage.calls.clear()
    while store.end_offset < 16_384:
        append(store, b"x" * 1000)
    made = str(tmp_path / "commitlog" / "16384".zfill(20))
    begin = storage.calls.index(("create_file", made))
    assert storage.calls[begin + 1] == ("sync_directory", str(tmp_path / "commitlog"))
    store.close()


def test_no_space_for_a_log_file_refuses_the_batch_and_not_the_next_one(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    tail = store.queue_tail("T", 0)
    append(store, b"before")
    end = store.end_offset
    storage.fail_at["create_file"] = (0, ENOSPC)
    with pytest.raises(StoreFullError):
        store.append([message(tail, b"x" * 1000) for _ in range(20)])
    assert (store.end_offset, tail.next_offset) == (end, 1)
    store.append([message(tail, b"x" * 1000) for _ in range(20)])
    assert len(read_bodies(store)[("T", 0)]) == 21
    store.close()


def test_units_wait_in_memory_for_room_until_there_are_too_many(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage, consume_queue_memory_bytes_max=200)
    store.open()
    tail = store.queue_tail("T", 0)
    store.append([message(tail) for _ in range(10)])
    storage.fail_at["write_files"] = (0, ENOSPC)
    with pytest.raises(StoreFullError, match="the disk is full"):
        append(store)
    assert (tail.next_offset, len(read_bodies(store)[("T", 0)])) == (10, 10)
    assert store.fence_reason is None
    # There is room again.
    append(store)
    assert (tail.pending, len(read_bodies(store)[("T", 0)])) == (1, 11)
    store.close()
    with opened(tmp_path) as again:
        assert len(read_bodies(again)[("T", 0)]) == 11


async def test_a_checkpoint_waits_for_room_for_units(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    append(store)
    storage.calls.clear()
    storage.fail_at["write_files"] = (0, ENOSPC)
    await store.checkpoint()
    assert [call for call, _ in storage.calls] == ["write_files"]
    append(store)
    await store.checkpoint()
    assert store.fence_reason is None
    assert storage.calls[-2] == ("replace_file", f"{tmp_path}/checkpoint")
    store.close()


@pytest.mark.parametrize("error", [ENOSPC, EIO], ids=["full", "broken"])
def test_units_that_cannot_be_written_at_the_stop_are_made_by_the_next_start(
    tmp_path: Path, error: OSError
) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    append(store)
    storage.fail_at["write_files"] = (0, error)
    store.close()
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): [b"body"]}


async def test_a_disk_that_fails_when_units_are_written_fences_the_store(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    append(store)
    storage.fail_at["write_files"] = (0, EIO)
    await store.checkpoint()
    with pytest.raises(StoreFencedError, match="writing units failed"):
        append(store)
    assert read_bodies(store) == {("T", 0): [b"body"]}
    abandon(store)


def test_a_disk_that_fails_when_room_is_made_fences_the_store(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage)
    store.open()
    storage.fail_at["create_file"] = (0, EIO)
    with pytest.raises(StoreFencedError):
        store.append([message(store.queue_tail("T", 0), b"x" * 1000) for _ in range(20)])
    with pytest.raises(StoreFencedError):
        append(store)
    abandon(store)


async def test_a_nearly_full_disk_refuses_appends_until_there_is_space(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(
        tmp_path,
        storage=storage,
        disk_used_percent_max=90,
        disk_free_bytes_min=1_000_000,
        disk_check_interval_ms=5,
    )
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        append(store, b"kept")
        for used_percent, free_bytes in ((90.5, 1 << 30), (10.0, 999_999)):
            storage.used_percent, storage.free_bytes = used_percent, free_bytes
            await until(lambda: store.full_reason is not None)
            with pytest.raises(StoreFullError):
                append(store)
            assert read_bodies(store)[("T", 0)][0] == b"kept"
            storage.used_percent, storage.free_bytes = 10.0, 1 << 30
            await until(lambda: store.full_reason is None)
            append(store)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110  # the disk's state has no event
            await trio.sleep(0.005)


async def test_a_disk_that_cannot_be_asked_counts_as_full(tmp_path: Path) -> None:
    storage = RecordingStorage()
    storage.fail_at["disk_usage"] = (0, EIO)
    store = make_store(tmp_path, storage=storage)
    store.open()
    with pytest.raises(StoreFullError, match="the disk failed"):
        append(store)
    store.close()


def test_a_batch_with_one_message_too_large_is_refused_as_a_whole(tmp_path: Path) -> None:
    with opened(tmp_path, message_bytes_max=500) as store:
        tail = store.queue_tail("T", 0)
        with pytest.raises(RecordTooLargeError):
            store.append([message(tail), message(tail, b"x" * 501), message(tail)])
        assert (store.end_offset, tail.next_offset, tail.pending) == (0, 0, 0)


def test_a_record_larger_than_a_file_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(RecordTooLargeError, match="16384"):
        append(store, b"x" * 17_000)


def test_no_descriptor_for_a_file_refuses_a_read_and_fences_nothing(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage, consume_queue_files_open_max=2)
    store.open()
    for topic in ("A", "B", "C"):
        append(store, topic=topic)
    store.unit_flusher.write_now()
    storage.fail_at["open_file"] = (0, OSError(errno.EMFILE, "too many open files"))
    with pytest.raises(StoreError, match="too many open files"):
        store.reader.read("A", 0, 0)
    append(store, topic="A")
    assert store.fence_reason is None
    assert read_bodies(store) == {("A", 0): [b"body"] * 2, ("B", 0): [b"body"], ("C", 0): [b"body"]}
    store.close()


def test_a_closed_store_answers_with_an_error(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store)
    with pytest.raises(StoreError, match="not open"):
        append(store)
    with pytest.raises(StoreError, match="not open"):
        store.reader.read("T", 0, 0)
