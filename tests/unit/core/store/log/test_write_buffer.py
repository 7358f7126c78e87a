"""Write-buffer mode: what is appended, committed and flushed, and the buffers themselves."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.errors import StoreFencedError, StoreFullError
from motelog.core.store.disk.files import PinnedMemory
from motelog.core.store.log import write_buffer
from motelog.core.store.log.write_buffer import BufferPool
from motelog.core.store.message_store import MessageStore
from tests.support.stores import (
    RecordingStorage,
    abandon,
    make_store,
    message,
    opened,
    read_bodies,
)

FILE_BYTES = 16_384


def open_buffered(
    folder: Path, storage: RecordingStorage | None = None, **more: Any
) -> MessageStore:
    store = make_store(folder, storage=storage, write_buffer=True, **more)
    store.open()
    return store


def append(store: MessageStore, *bodies: bytes) -> int:
    tail = store.queue_tail("T", 0)
    return store.append([message(tail, body) for body in bodies])


def log_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()))


def test_it_is_refused_with_sync_flush(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="write_buffer needs flush"):
        make_store(tmp_path, write_buffer=True, flush="sync")


def test_the_promise_names_what_a_kill_may_take(tmp_path: Path) -> None:
    store = make_store(tmp_path, write_buffer=True, write_buffer_commit_ms=150)
    assert store.config.promise == (
        "acknowledged when in this process's memory, in the page cache within 150 ms, "
        "on the disk within 500 ms"
    )


def test_records_are_read_at_once_and_in_the_file_when_committed(tmp_path: Path) -> None:
    store = open_buffered(tmp_path)
    end = append(store, b"one")
    assert read_bodies(store) == {("T", 0): [b"one"]}
    assert (store.committed_offset, store.end_offset) == (0, end)
    assert not any(log_bytes(tmp_path))
    store._log.commit()
    assert store.committed_offset == end
    assert b"one" in log_bytes(tmp_path)
    store.close()


async def test_the_positions_follow_each_other(tmp_path: Path) -> None:
    store = open_buffered(tmp_path)
    first = append(store, b"one")
    await store._flusher.flush()
    second = append(store, b"two")
    store._log.commit()
    third = append(store, b"three")
    sample = store.sample()
    assert sample["store_wrote_offset_now"] == third
    assert sample["store_committed_offset_now"] == second
    assert sample["store_flushed_offset_now"] == first
    store.close()


async def test_the_running_store_commits_by_itself(tmp_path: Path) -> None:
    store = open_buffered(tmp_path, write_buffer_commit_ms=1, flush_interval_ms=1_000_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        end = append(store, b"one")
        with trio.fail_after(10):
            while store.committed_offset < end:  # noqa: ASYNC110  # a position has no event
                await trio.sleep(0.001)
        assert store.durable_offset == 0
        nursery.cancel_scope.cancel()
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): [b"one"]}


def test_a_kill_takes_what_was_not_committed_and_nothing_else(tmp_path: Path) -> None:
    store = open_buffered(tmp_path)
    bodies = [b"%d" % number * 500 for number in range(60)]
    for body in bodies:
        append(store, body)
        if body == bodies[44]:
            store._log.commit()
    abandon(store)
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): bodies[:45]}
        assert not again._log.queue.files[-1].is_buffered


async def test_full_files_give_their_buffers_to_the_next_ones(tmp_path: Path) -> None:
    store = open_buffered(tmp_path, write_buffer_files_max=2)
    bodies = [b"%03d" % number * 400 for number in range(100)]
    for body in bodies:
        append(store, body)
        await store._flusher.flush()
    files = store._log.queue.files
    assert len(files) > 6
    # The one that is appended to and perhaps the next one; the others are ordinary files.
    assert [file.is_buffered for file in files] == [False] * (len(files) - 1) + [True]
    assert files[0].view.readonly
    assert read_bodies(store) == {("T", 0): bodies}
    store.close()
    # Of an older file nothing came along into a newer one: behind each end there are zeros.
    raw = (tmp_path / "commitlog" / f"{files[-1].begin:020d}").read_bytes()
    assert not any(raw[store.end_offset - files[-1].begin :])
    blank = raw_end_of_records(tmp_path / "commitlog" / f"{FILE_BYTES:020d}")
    assert not any(blank)
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): bodies}


def raw_end_of_records(path: Path) -> bytes:
    """What a full file holds behind the head of its blank record."""
    raw = path.read_bytes()
    at = 0
    while raw[at + 4 : at + 8] != bytes.fromhex("cbd43194"):
        at += int.from_bytes(raw[at : at + 4], "big")
    return raw[at + 8 :]


def test_without_a_free_buffer_the_next_file_is_mapped(tmp_path: Path) -> None:
    store = open_buffered(tmp_path, write_buffer_files_max=1)
    bodies = [b"%03d" % number * 400 for number in range(40)]
    for body in bodies:
        append(store, body)
    assert [file.is_buffered for file in store._log.queue.files][:2] == [True, False]
    assert read_bodies(store) == {("T", 0): bodies}
    store.close()
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): bodies}


def test_a_buffer_whose_file_cannot_be_opened_is_free_again(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = open_buffered(tmp_path, storage)
    body = b"b" * (FILE_BYTES // 3)
    # The file made ahead finds no descriptor, and neither does the append that needs it.
    for _ in range(2):
        storage.fail_at["open_in_place"] = (0, OSError(errno.EMFILE, "no descriptors"))
        with suppress(StoreFullError):
            append(store, body, body)
    assert not storage.fail_at
    append(store, body, body)
    store._log.queue._check()
    store.close()


def test_a_file_begun_by_an_earlier_start_goes_on_in_a_buffer(tmp_path: Path) -> None:
    with opened(tmp_path) as plain:
        append(plain, b"mapped")
    store = open_buffered(tmp_path)
    assert read_bodies(store) == {("T", 0): [b"mapped"]}
    append(store, b"buffered")
    assert read_bodies(store) == {("T", 0): [b"mapped", b"buffered"]}
    abandon(store)
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): [b"mapped"]}


async def test_a_failed_commit_fences_the_store(tmp_path: Path) -> None:
    storage = RecordingStorage()
    store = open_buffered(tmp_path, storage, write_buffer_commit_ms=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        storage.fail_at["write"] = (0, OSError(errno.EIO, "the disk failed"))
        append(store, b"one")
        with trio.fail_after(10):
            while store.fence_reason is None:  # noqa: ASYNC110  # a fence has no event
                await trio.sleep(0.001)
        assert "committing the write buffer failed" in store.fence_reason
        with pytest.raises(StoreFencedError):
            append(store, b"two")
        assert read_bodies(store) == {("T", 0): [b"one"]}
        nursery.cancel_scope.cancel()
    # What was appended before goes along all the same.
    with opened(tmp_path) as again:
        assert read_bodies(again) == {("T", 0): [b"one"]}


def test_a_pool_lends_as_many_buffers_as_it_may_and_takes_them_again() -> None:
    pool = BufferPool(2)
    first, second = pool.take(4096), pool.take(4096)
    assert first is not None
    assert second is not None
    assert pool.take(4096) is None
    pool.give_back(first)
    assert pool.take(4096) is first
    pool.lose()
    assert pool.take(4096) is not None
    assert pool.take(4096) is None


UNPINNED = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from motelog.core.store.disk.files import PinnedMemory
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.geteuid() == 0:
    os.setuid(65534)  # who may lock without a limit
memory = PinnedMemory(1 << 20)
view = memory.view()
view[-1] = 7
print(memory.pin_error, len(view), view[-1])
"""


def test_without_the_right_to_pin_there_is_memory_all_the_same() -> None:
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", UNPINNED, str(root)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["Cannot", "allocate", "memory", "1048576", "7"]


def test_memory_that_cannot_be_pinned_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unpinned(PinnedMemory):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.pin_error = "Cannot allocate memory"

    monkeypatch.setattr(write_buffer, "PinnedMemory", Unpinned)
    pool = BufferPool(2)
    with caplog.at_level(logging.WARNING):
        assert pool.take(4096) is not None
        assert pool.take(4096) is not None
    assert [record.message for record in caplog.records] == [
        "write buffers are not pinned and may be swapped out; raise RLIMIT_MEMLOCK bytes=4096 "
        "reason=Cannot allocate memory"
    ]
