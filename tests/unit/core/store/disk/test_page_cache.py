"""Reads that may not wait for the disk, on files that say they are not in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from motelog.core.clock import ManualClock
from motelog.core.records.decode import decode_messages
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.disk.page_cache import (
    KNOWN_MS,
    NotInMemoryError,
    Pageable,
    PageIns,
    Places,
    joined,
    read_all,
)
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import make_store, message, opened

COUNT = 300
BODY = bytes(200)


class ColdStorage(OsStorage):
    """Files of which nothing is in memory but the pages that were loaded."""

    def __init__(self) -> None:
        self.loaded: set[tuple[str, int]] = set()
        self.is_lost_at_once = False
        self.asked = 0

    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        self.asked += len(positions)
        return all((path, at // 4096) in self.loaded for at in positions)

    def load(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        if not self.is_lost_at_once:
            self.loaded.update(_pages(path, ranges))


def _pages(path: str, ranges: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    pages = [page for begin, end in ranges for page in range(begin // 4096, -(-end // 4096))]
    return [(path, page) for page in pages]


def missing_of(read: Callable[[], object]) -> Sequence[Pageable]:
    """Return what a read misses; nothing if it is answered."""
    try:
        read()
    except NotInMemoryError as cold:
        return cold.missing
    return ()


def read_at_hand(store: MessageStore, *where: Any, **how: Any) -> Callable[[], object]:
    return partial(store.reader.read, *where, may_wait=False, **how)


def filled(folder: Path) -> None:
    with opened(folder, consume_queue_file_units=100) as store:
        for _ in range(COUNT):
            store.append([message(store.queue_tail("T", i), BODY) for i in range(3)])


async def test_a_read_says_what_it_misses_until_that_is_paged_in(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    store = make_store(tmp_path, storage=storage, consume_queue_file_units=100)
    store.open()
    try:
        kinds = []
        while missing := missing_of(read_at_hand(store, "T", 1, 90, count_max=32)):
            kinds.append(
                {
                    place.where[0].split("/")[-4 if "T" in place.where[0] else -2]
                    for place in missing
                }
            )
            before = len(storage.loaded)
            await store.reader.page_in(missing)
            assert len(storage.loaded) > before
        # The units, in two files, then the records, in several.
        assert kinds == [{"consumequeue"}, {"commitlog"}]
        found = store.reader.read("T", 1, 90, count_max=32, may_wait=False)
        assert [m.queue_offset for m in decode_messages(found.records)] == list(range(90, 122))
        # Every page of the records was asked for.
        pages = {(os.path.basename(path), page) for path, page in storage.loaded}
        for m in decode_messages(found.records):
            file, at = divmod(m.physical_offset, 16_384)
            for page in range(at // 4096, (at + m.stored_bytes - 1) // 4096 + 1):
                assert (f"{file * 16_384:020d}", page) in pages
    finally:
        store.close()


async def test_what_was_appended_since_the_start_is_in_memory(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path, storage=ColdStorage(), consume_queue_file_units=100) as store:
        store.append([message(store.queue_tail("T", 0), b"new")])
        end = store.reader.max_offset("T", 0)
        assert store.reader.read("T", 0, end - 1, may_wait=False).status is ReadStatus.FOUND
        assert missing_of(read_at_hand(store, "T", 0, end - 2))
        # Only as long as it is not more than the memory is assumed to hold.
        store.reader.cached_bytes = 10
        assert missing_of(read_at_hand(store, "T", 0, end - 1))


async def test_a_reader_that_may_wait_is_told_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    storage.is_lost_at_once = True
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
        await store.reader.page_in(missing_of(read_at_hand(store, "T", 0, 0)))
        assert missing_of(read_at_hand(store, "T", 0, 0))
        assert store.reader.read("T", 0, 0).status is ReadStatus.FOUND


async def test_who_has_a_task_of_its_own_reads_when_all_is_in_memory(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
        reader = store.reader
        assert await reader.when_in_memory(partial(reader.units, "U", 0, 0, 50)) == b""
        assert not storage.loaded
        units = await reader.when_in_memory(partial(reader.units, "T", 2, 250, 60))
        assert units == reader.units("T", 2, 250, 50)
        assert {"consumequeue" in path for path, _ in storage.loaded} == {True}
        read = partial(reader.read, "T", 2, 250, count_max=50)
        found = await reader.when_in_memory(read)
        assert {"consumequeue" in path for path, _ in storage.loaded} == {True, False}
        assert (found.status, found.count) == (ReadStatus.FOUND, 50)
        assert found == read(may_wait=False)


async def test_who_cannot_keep_it_in_memory_waits_in_the_end(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    storage.is_lost_at_once = True
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
        waits: list[bool] = []

        def read(*, may_wait: bool) -> ReadStatus:
            waits.append(may_wait)
            return store.reader.read("T", 0, 0, may_wait=may_wait).status

        assert await store.reader.when_in_memory(read) is ReadStatus.FOUND
        assert waits == [False, False, False, True]


async def test_times_of_messages_miss_units_and_then_records(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    wanted = [("T", 0, 10), ("T", 1, 299), ("T", 1, 300), ("T", 2, -1), ("U", 0, 0)]
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:

        def times() -> list[int]:
            return read_all(
                lambda place: store.reader.store_timestamp(*place, may_wait=False), wanted
            )

        for kind in ("consumequeue", "commitlog"):
            missing = missing_of(times)
            storage.loaded.clear()
            await store.reader.page_in(missing)
            assert len(missing) == 2
            assert all(kind in path for path, _ in storage.loaded)
        assert times() == [store.reader.store_timestamp(*place) for place in wanted]
        assert [time_ms > 0 for time_ms in times()] == [True, True, False, False, False]


def test_a_read_may_wait_when_what_was_paged_in_is_missing_again_and_again() -> None:
    def place(begin: int, end: int = 4096) -> Places:
        return Places("file", ((begin, end),))

    page_ins = PageIns()
    # It gets on, however long that takes.
    for begin in range(100):
        page_ins.note([place(begin), place(begin + 1000)])
        assert not page_ins.may_wait
    page_ins.note([place(7, 9999), place(5000)])
    assert not page_ins.may_wait
    page_ins.note([place(5000)])
    assert page_ins.may_wait


async def test_what_was_found_in_memory_is_not_asked_for_again_at_once(tmp_path: Path) -> None:
    filled(tmp_path)
    storage, clock = ColdStorage(), ManualClock()
    with opened(tmp_path, storage=storage, clock=clock, consume_queue_file_units=100) as store:
        await store.reader.when_in_memory(partial(store.reader.read, "T", 0, 0, count_max=20))
        await store.reader.when_in_memory(partial(store.reader.units, "T", 1, 0, 20))
        # The units, and two files of records.
        for wanted, ms in ((0, 0), (0, KNOWN_MS - 1), (3, 1)):
            clock.advance(ms)
            storage.asked = 0
            await store.reader.when_in_memory(partial(store.reader.read, "T", 1, 0, count_max=20))
            assert storage.asked == wanted


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ([], ()),
        ([(0, 10), (10, 20)], ((0, 20),)),
        ([(0, 10), (16_394, 16_400)], ((0, 16_400),)),
        ([(0, 10), (16_395, 16_400)], ((0, 10), (16_395, 16_400))),
        ([(0, 100), (50, 60)], ((0, 100),)),
    ],
)
def test_places_with_little_between_them_are_one(
    ranges: list[tuple[int, int]], wanted: tuple[tuple[int, int], ...]
) -> None:
    assert joined(ranges) == wanted
