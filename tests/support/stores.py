"""Stores in temporary folders: messages to append, everything read back, storages that fail.

Owns: what several of the store's tests need. Must not touch: fixed ports, real time.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.clock import Clock, ManualClock
from motelog.core.message import encode_host
from motelog.core.records.append import AppendMessage, QueueTail, encode_batch
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import (
    DiskUsage,
    InPlaceFile,
    OsStorage,
    Piece,
    ReadFile,
    Region,
    Storage,
)
from motelog.core.store.message_store import MessageStore
from motelog.core.store.quarantine import UnitsAsideError
from motelog.core.store.store_reader import ReadStatus
from motelog.core.threads import ArgumentsT, ResultT, Workers
from tests.support.simulated_disk import SimulatedDisk

BORN_HOST = encode_host("127.0.0.1", 1883)
STORE_HOST = encode_host("127.0.0.1", 10911)
REBUILDS_MAX = 8
VECTOR_NAME = "rocketmq-4.9.8-store-unclean-stop.tar.gz"


def message(
    tail: QueueTail,
    body: bytes = b"body",
    *,
    properties: bytes = b"",
    tags_code: int = 0,
    born_host: bytes = BORN_HOST,
    sys_flag: int = 0,
) -> AppendMessage:
    return (tail, body, properties, tags_code, 1_000, born_host, sys_flag, 0, 0, 0)


def encoded(*messages: AppendMessage, base: int = 0, store_host: bytes = STORE_HOST) -> bytes:
    """Return the records of messages in a row; the first is at physical offset ``base``."""
    target = bytearray(1 << 18)
    index, position = encode_batch(
        target, 0, len(target), base, list(messages), 0, 2_000, store_host, [], None
    )
    assert index == len(messages)
    return bytes(target[:position])


def unit(physical_offset: int, size: int, code: int) -> bytes:
    return struct.pack(">qiq", physical_offset, size, code)


def make_store(
    directory: Path | str,
    *,
    storage: Storage | None = None,
    clock: Clock | None = None,
    is_follower: bool = False,
    **config: Any,
) -> MessageStore:
    """A store with small files on a disk that is never too full, not yet open.

    On a simulated disk it starts no threads, so that the order of events is always the same.
    """
    settings: dict[str, Any] = {
        "commitlog_file_bytes": 16_384,
        "consume_queue_file_units": 16,
        "index_slots": 64,
        "index_entries": 256,
        "disk_used_percent_max": 100,
        "disk_free_bytes_min": 0,
    }
    settings.update(config)
    store = MessageStore(
        StoreConfig(directory=str(directory), **settings),
        store_host=STORE_HOST,
        clock=clock or ManualClock(),
        storage=storage,
        is_follower=is_follower,
    )
    if isinstance(storage, SimulatedDisk):
        store._log.queue._ahead._workers = _Inline()
        store.index._files._worker = _Inline()
    return store


class _Inline(Workers):
    """Runs at once, so that the order of events depends on the seed alone."""

    def __init__(self) -> None:
        pass

    def submit(
        self, function: Callable[[*ArgumentsT], ResultT], *args: *ArgumentsT
    ) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        try:
            future.set_result(function(*args))
        except OSError as exc:
            future.set_exception(exc)
        return future

    def shut_down(self) -> None:
        pass


@contextmanager
def opened(directory: Path | str, **config: Any) -> Iterator[MessageStore]:
    store = make_store(directory, **config)
    store.open()
    try:
        yield store
    finally:
        store.close()


def abandon(store: MessageStore) -> None:
    """Leave the folder as a killed process would: nothing is synced or written any more."""
    store._is_open = False
    store._release()


def when_back(store: MessageStore, read: Callable[[], ResultT]) -> ResultT:
    """Return what ``read`` does once the files that it needs are rebuilt, within a few tries."""
    for _ in range(REBUILDS_MAX):
        try:
            return read()
        except UnitsAsideError:
            assert trio.run(store.quarantine.rebuild)
    return read()


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    """Every message of one queue, in order, over as many reads as it takes."""
    messages: list[StoredMessage] = []
    offset = store.reader.min_offset(topic, queue_id)
    while offset < store.reader.max_offset(topic, queue_id):
        result = when_back(store, partial(store.reader.read, topic, queue_id, offset))
        assert result.status in (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVED)
        assert result.next_offset > offset
        found = decode_messages(result.records)
        assert len(found) == result.count
        messages += found
        offset = result.next_offset
    return messages


def read_bodies(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """The bodies of every queue that has any."""
    bodies = {key: [m.body for m in read_queue(store, *key)] for key in sorted(store.queues())}
    return {key: found for key, found in bodies.items() if found}


def vector_archive() -> Path:
    """The folder that RocketMQ 4.9.8 left behind; skips the test where it is not at hand."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("MOTELOG_VECTORS", root.parent / "shared" / "vectors"))
    archive = folder / VECTOR_NAME
    if not archive.is_file():
        pytest.skip(f"{archive} is not there (MOTELOG_VECTORS names the folder)")
    return archive


class RecordingStorage(OsStorage):
    """The real file system; notes each call, and fails the ones it is told to.

    ``fail_at["sync"] = (2, error)`` lets the third ``sync`` from then on raise ``error``, once.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail_at: dict[str, tuple[int, OSError]] = {}
        self.used_percent = 10.0
        self.free_bytes = 1 << 30

    def note(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        if call in self.fail_at:
            left, error = self.fail_at[call]
            if left:
                self.fail_at[call] = (left - 1, error)
            else:
                del self.fail_at[call]
                raise error

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        self.note("create_file", path)
        super().create_file(path, size, sparse=sparse)

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        self.note("map_file", path)
        region = super().map_file(path, size, is_read_only=is_read_only)
        return _RecordingRegion(region, path, self)

    def replace_file(self, path: str, data: bytes) -> None:
        self.note("replace_file", path)
        super().replace_file(path, data)

    def open_in_place(self, path: str) -> InPlaceFile:
        self.note("open_in_place", path)
        return _RecordingInPlaceFile(super().open_in_place(path), path, self)

    def open_file(self, path: str) -> ReadFile:
        self.note("open_file", path)
        return super().open_file(path)

    def write_files(self, pieces: list[Piece], file_bytes: int) -> None:
        for path, _, _ in pieces:
            self.note("write_files", path)
        super().write_files(pieces, file_bytes)

    def sync_files(self, paths: list[str]) -> None:
        for path in paths:
            self.note("sync_files", path)
        super().sync_files(paths)

    def sync_file(self, path: str) -> None:
        self.note("sync_file", path)
        super().sync_file(path)

    def sync_directory(self, path: str) -> None:
        self.note("sync_directory", path)
        super().sync_directory(path)

    def remove_file(self, path: str) -> None:
        self.note("remove_file", path)
        super().remove_file(path)

    def disk_usage(self, path: str) -> DiskUsage:
        self.note("disk_usage", path)
        return DiskUsage(self.free_bytes, int(self.free_bytes * 100 / (100 - self.used_percent)))


class _RecordingRegion:
    def __init__(self, region: Region, path: str, storage: RecordingStorage) -> None:
        self.view = region.view
        self._region = region
        self._path = path
        self._storage = storage

    def reserve(self, begin: int, end: int) -> None:
        self._storage.note("reserve", self._path)
        self._region.reserve(begin, end)

    def sync(self) -> None:
        self._storage.note("sync", self._path)
        self._region.sync()

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        return self._region.data_ranges(begin)

    def prepare(self, begin: int, end: int) -> None:
        self._region.prepare(begin, end)

    def close(self) -> None:
        self._region.close()


class _RecordingInPlaceFile:
    def __init__(self, file: InPlaceFile, path: str, storage: RecordingStorage) -> None:
        self._file = file
        self._path = path
        self._storage = storage

    def write(self, at: int, data: bytes | memoryview) -> None:
        self._storage.note("write", self._path)
        self._file.write(at, data)

    def sync(self) -> None:
        self._storage.note("sync", self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()
