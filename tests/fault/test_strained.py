"""A store on a machine that is slow, paused, or short of descriptors or memory."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from motelog.core.errors import StoreError, StoreFullError
from motelog.core.store.message_store import MessageStore
from tests.support.ledger import Ledger
from tests.support.slow_disk import SlowDisk
from tests.support.stores import make_store, message, read_bodies

PUBLISHERS = 200
MEGABYTE = 1 << 20


async def test_a_slow_disk_makes_publishers_wait_and_nobody_else(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = make_store(tmp_path, storage=disk, flush="sync", commitlog_file_bytes=MEGABYTE)
    await trio.to_thread.run_sync(store.open)
    released = 0

    async def publish(number: int) -> None:
        nonlocal released
        tail = store.queue_tail("T", number % 4)
        end = store.append([message(tail, b"%d" % number)])
        await store.wait_durable(end)
        released += 1

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            disk.may_sync.clear()
            disk.syncs = 0
            async with trio.open_nursery() as publishers:
                for number in range(PUBLISHERS):
                    publishers.start_soon(publish, number)
                # The event loop goes round, and what waits can be read.
                while disk.syncs == 0 or sum(map(len, read_bodies(store).values())) < PUBLISHERS:  # noqa: ASYNC110  # a disk has no event
                    await trio.sleep(0.001)
                assert released == 0
                disk.may_sync.set()
            assert released == PUBLISHERS
            # All that came during one sync share the next.
            assert disk.syncs <= 3
            nursery.cancel_scope.cancel()


@contextmanager
def limited(what: int, soft: int) -> Iterator[None]:
    before, hard = resource.getrlimit(what)
    resource.setrlimit(what, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (before, hard))


def test_without_descriptors_appends_are_refused_and_nothing_is_fenced(tmp_path: Path) -> None:
    ledger = Ledger(random.Random(1))
    store = make_store(tmp_path, commitlog_file_bytes=8192, commitlog_files_mapped_max=2)
    store.open()
    while store.end_offset < 6 * 8192:
        ledger.append(store, 10)
    # What is full and on the disk is mapped when it is read.
    trio.run(store.checkpoint)
    errors = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    with limited(resource.RLIMIT_NOFILE, highest + 1), all_descriptors_taken():
        for _ in range(30):
            try:
                ledger.append(store, 10, 1_000)
            except StoreFullError as exc:
                errors.append(str(exc))
        with pytest.raises(StoreError, match="Too many open files"):
            ledger.check(store, ledger.appended)
    assert errors
    assert all("Too many open files" in error for error in errors)
    assert store.fence_reason is None
    go_on(store, ledger, tmp_path)


@contextmanager
def all_descriptors_taken() -> Iterator[None]:
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def go_on(store: MessageStore, ledger: Ledger, folder: Path) -> None:
    """Once there is enough of it again, everything does."""
    for _ in range(10):
        ledger.append(store, 10, 1_000)
    ledger.check(store, ledger.appended)
    store.close()
    again = make_store(folder)
    report = again.open()
    assert report.damage == []
    assert ledger.check(again, ledger.appended) == ledger.appended
    again.close()


def test_without_memory_for_a_map_appends_are_refused_and_nothing_is_fenced(
    tmp_path: Path,
) -> None:
    ledger = Ledger(random.Random(1))
    store = make_store(tmp_path, commitlog_file_bytes=64 * MEGABYTE, commitlog_touch_ahead_bytes=0)
    store.open()
    ledger.append(store, 10)
    # As if the file were nearly full: a blank record is between.
    tail = store.queue_tail("a", 0)
    with limited(resource.RLIMIT_AS, address_space() + 40 * MEGABYTE):
        refused = None
        while refused is None and store.end_offset < 70 * MEGABYTE:
            try:
                store.append([message(tail, bytes(4 * MEGABYTE - 200))])
            except StoreFullError as exc:
                refused = exc
    assert refused is not None
    assert "Cannot allocate memory" in str(refused)
    assert store.fence_reason is None
    store.append([message(tail, bytes(4 * MEGABYTE - 200))])
    assert store.end_offset > 64 * MEGABYTE
    store.close()


def address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
