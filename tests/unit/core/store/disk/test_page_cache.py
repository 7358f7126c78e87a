"""Reads that may not wait for the disk, on files that say they are not in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from motelog.core.clock import ManualClock
from motelog.core.records.record import decode_messages
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.disk.page_cache import KNOWN_MS, joined
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


def filled(folder: Path) -> None:
    with opened(folder, consume_queue_file_units=100) as store:
        for _ in range(COUNT):
            store.append([message(store.queue_tail("T", i), BODY) for i in range(3)])


async def test_a_read_says_what_it_lacks_until_that_is_loaded(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    store = make_store(tmp_path, storage=storage, consume_queue_file_units=100)
    store.open()
    try:
        found = store.reader.read("T", 1, 90, count_max=32, may_wait=False)
        kinds = []
        while found.status is ReadStatus.COLD:
            assert (found.next_offset, found.count, found.records) == (90, 0, b"")
            kinds.append(
                {place.path.split("/")[-4 if "T" in place.path else -2] for place in found.lacking}
            )
            before = len(storage.loaded)
            await store.reader.load(found.lacking)
            assert len(storage.loaded) > before
            found = store.reader.read("T", 1, 90, count_max=32, may_wait=False)
        # The units, in two files, then the records, in several.
        assert kinds == [{"consumequeue"}, {"commitlog"}]
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
        assert store.reader.read("T", 0, end - 2, may_wait=False).status is ReadStatus.COLD
        # As long as it is not more than memory is taken to hold.
        store.reader.cached_bytes = 10
        assert store.reader.read("T", 0, end - 1, may_wait=False).status is ReadStatus.COLD


async def test_a_reader_that_may_wait_is_told_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    storage.is_lost_at_once = True
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
        lacking = store.reader.read("T", 0, 0, may_wait=False).lacking
        await store.reader.load(lacking)
        assert store.reader.read("T", 0, 0, may_wait=False).status is ReadStatus.COLD
        assert store.reader.read("T", 0, 0).status is ReadStatus.FOUND


async def test_records_that_doubtful_units_are_compared_with_are_loaded_first(
    tmp_path: Path,
) -> None:
    filled(tmp_path)
    path = tmp_path / "consumequeue" / "T" / "1" / ("0" * 20)
    right = path.read_bytes()
    changes = (b"\0" * 20, b"\xff" * 20, b"\x7f" * 20, bytes(11) + b"\x05" + bytes(8))
    # The first unit that is read, and one behind it.
    for at, garbage in product((200, 400), changes):
        path.write_bytes(right[:at] + garbage + right[at + 20 :])
        storage = ColdStorage()
        with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
            kinds = []
            found = store.reader.read("T", 1, 10, count_max=32, may_wait=False)
            while found.status is ReadStatus.COLD:
                kinds.append({"consumequeue" in place.path for place in found.lacking})
                assert store.healer.repaired_units == 0
                await store.reader.load(found.lacking)
                found = store.reader.read("T", 1, 10, count_max=32, may_wait=False)
            assert kinds[:2] == [{True}, {False}]
            assert (found.status, found.count) == (ReadStatus.FOUND, 32)
            assert store.healer.repaired_units == 1
        assert path.read_bytes() == right


async def test_units_and_their_records_are_loaded(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
        reader = store.reader
        await reader.load_records(b"")
        assert await reader.load_units("U", 0, 0, 50) == b""
        assert not storage.loaded
        units = await reader.load_units("T", 2, 250, 60)
        assert units == reader.units("T", 2, 250, 50)
        assert {"consumequeue" in path for path, _ in storage.loaded} == {True}
        await reader.load_records(units)
        assert {"consumequeue" in path for path, _ in storage.loaded} == {True, False}
        found = reader.read("T", 2, 250, count_max=50, may_wait=False)
        assert (found.status, found.count) == (ReadStatus.FOUND, 50)


async def test_times_of_messages_lack_units_and_then_records(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = ColdStorage()
    wanted = [("T", 0, 10), ("T", 1, 299), ("T", 1, 300), ("T", 2, -1), ("U", 0, 0)]
    with opened(tmp_path, storage=storage, consume_queue_file_units=100) as store:
        for kind in ("consumequeue", "commitlog"):
            lacking = store.reader.lacking_timestamps(wanted)
            storage.loaded.clear()
            await store.reader.load(lacking)
            assert len(lacking) == 2
            assert all(kind in path for path, _ in storage.loaded)
        assert not store.reader.lacking_timestamps(wanted)


async def test_what_was_found_in_memory_is_not_asked_for_again_at_once(tmp_path: Path) -> None:
    filled(tmp_path)
    storage, clock = ColdStorage(), ManualClock()
    with opened(tmp_path, storage=storage, clock=clock, consume_queue_file_units=100) as store:
        await store.reader.load_records(store.reader.units("T", 0, 0, 20))
        for wanted, ms in ((2, 0), (0, KNOWN_MS - 1), (2, 1)):
            clock.advance(ms)
            storage.asked = 0
            await store.reader.load_records(store.reader.units("T", 1, 0, 20))
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
