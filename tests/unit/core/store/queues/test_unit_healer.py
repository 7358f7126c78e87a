"""Units that a disk has changed: they are made anew from the log by whoever reads them first."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from motelog.core.clock import ManualClock
from motelog.core.errors import StoreError
from motelog.core.message import tags_code
from motelog.core.records.layout import UNIT_BYTES
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.message_store import MessageStore
from motelog.core.store.queues import unit_healer
from motelog.core.store.state.checkpoint import StateFiles
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import RecordingStorage, make_store, message, opened, read_bodies

DAY_MS = 86_400_000
CODE = tags_code("red")
FILE_UNITS = 16
LOG: dict[str, Any] = {"commitlog_file_bytes": 4096}  # the next start reads the last file only


def fill(store: MessageStore, count: int, topics: str = "TU") -> None:
    for number in range(count):
        for topic in topics:
            tail = store.queue_tail(topic, 0)
            body = b"%s-%d" % (topic.encode(), number)
            store.append([message(tail, body, properties=b"TAGS\x01red\x02", tags_code=CODE)])


def unit_file(folder: Path, number: int = 0) -> Path:
    return sorted((folder / "consumequeue" / "T" / "0").iterdir())[number]


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def bodies(store: MessageStore, *, tag: int | None = None) -> list[bytes]:
    """Read queue T/0 to its end, a few at a time."""
    found, offset = [], store.reader.min_offset("T", 0)
    codes = None if tag is None else frozenset({tag})
    while offset < store.reader.max_offset("T", 0):
        result = store.reader.read("T", 0, offset, count_max=5, tag_codes=codes)
        found += re.findall(rb"T-\d+", result.records)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


# One unit of the first file, by what it becomes.
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "another place": lambda unit: (
        (int.from_bytes(unit[:8], "big") ^ 64).to_bytes(8, "big") + unit[8:]
    ),
    "a place far away": lambda unit: b"\x40" + unit[1:],
    "another size": lambda unit: unit[:11] + bytes([unit[11] ^ 1]) + unit[12:],
    "no size": lambda unit: unit[:8] + bytes(4) + unit[12:],
    "another tag": lambda unit: unit[:19] + bytes([unit[19] ^ 1]),
    "zeros": lambda unit: bytes(20),
    "a filler": lambda unit: bytes(8) + b"\x7f\xff\xff\xff" + bytes(8),
    "the unit before": lambda unit: b"",
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(("at", "tag"), [(0, None), (7, CODE), (FILE_UNITS, None)])
def test_a_changed_unit_costs_nothing_and_is_mended(
    tmp_path: Path, name: str, at: int, tag: int | None
) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
    path = unit_file(tmp_path, at // FILE_UNITS)
    right = path.read_bytes()
    place = at % FILE_UNITS * UNIT_BYTES
    unit = CHANGES[name](right[place : place + UNIT_BYTES])
    change(path, place, unit or right[place - 20 : place] or right[20:40])
    with opened(tmp_path, **LOG) as store:
        assert bodies(store, tag=tag) == expected
        assert store.healer.repaired_units == 1
        assert path.read_bytes() == right
        assert not any(queue.has_doubtful_file for queue in store._queues.values())
    with opened(tmp_path, **LOG) as store:
        assert bodies(store, tag=tag) == expected
        assert store.healer.repaired_units == 0


def test_many_changed_units_are_mended_as_they_are_read(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = read_bodies(store)
    path = unit_file(tmp_path)
    right = path.read_bytes()
    for at in range(1, FILE_UNITS - 1, 2):
        change(path, at * UNIT_BYTES + at % 20, b"\xa5\x5a\xa5")
    with opened(tmp_path, **LOG) as store:
        assert read_bodies(store) == expected
        assert path.read_bytes() == right


def test_a_unit_that_changes_while_the_store_is_open_is_mended(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        store.unit_flusher.write_now()
        expected = bodies(store)
        change(unit_file(tmp_path), 3 * UNIT_BYTES, bytes(8))
        assert bodies(store) == expected
        change(unit_file(tmp_path), 3 * UNIT_BYTES, bytes(UNIT_BYTES))
        assert store.reader.store_timestamp("T", 0, 3) > 0
        change(unit_file(tmp_path), 3 * UNIT_BYTES + 7, b"\x01")
        assert store.reader.store_timestamp("T", 0, 3) > 0
        assert store.healer.repaired_units == 3


def test_a_unit_without_a_record_is_a_filler_to_readers_and_searched_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
        physical_offset = int.from_bytes(store.reader.units("T", 0, 3, 1)[:8], "big")
    log = tmp_path / "commitlog" / ("0" * 20)
    change(log, physical_offset + 88, b"\xff")
    change(unit_file(tmp_path), 5 * UNIT_BYTES, bytes(UNIT_BYTES))
    before = unit_file(tmp_path).read_bytes()
    with opened(tmp_path, **LOG) as store:
        searches: list[int] = []
        search = store.healer._search

        def count(place: unit_healer.Place, begin: int, end: int) -> bytes | None:
            searches.append(place[2])
            return search(place, begin, end)

        monkeypatch.setattr(store.healer, "_search", count)
        for _ in range(3):
            assert bodies(store) == [*expected[:3], *expected[4:]]
        result = store.reader.read("T", 0, 3, count_max=1)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVED, 4)
    assert sorted(searches) == [3, 5]
    after = unit_file(tmp_path).read_bytes()
    assert (after[:100], after[120:]) == (before[:100], before[120:])
    assert after[100:120] != bytes(20)


def test_a_long_search_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_healer, "SEARCH_BYTES_MAX", 1000)
    monkeypatch.setattr(unit_healer, "RECORDS_PER_STEP", 4)
    with opened(tmp_path, **LOG) as store:
        fill(store, 1)
        fill(store, 200, topics="U")
        fill(store, 1)
        fill(store, 200, topics="U")
        fill(store, 20)
        expected = bodies(store)
    change(unit_file(tmp_path), UNIT_BYTES, bytes(UNIT_BYTES))
    with opened(tmp_path, **LOG) as store:
        tries = 0
        found: list[bytes] = []
        while not found:
            tries += 1
            with suppress(StoreError):
                found = bodies(store)
        assert found == expected
        assert 10 < tries < 100
        assert store.fence_reason is None


@pytest.fixture
def sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[bytes]]:
    """A folder in which units 1 and 2 of T are zeros and far from their neighbours' records."""
    monkeypatch.setattr(unit_healer, "SEARCH_BYTES_MAX", 1_000)
    monkeypatch.setattr(unit_healer, "RECORDS_PER_STEP", 4)
    with opened(tmp_path, **LOG) as store:
        for count in (1, 1, 1, 20):
            fill(store, count)
            fill(store, 200, topics="U")
        expected = bodies(store)
    change(unit_file(tmp_path), UNIT_BYTES, bytes(2 * UNIT_BYTES))
    return tmp_path, expected


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[MessageStore]:
    store = make_store(folder, **LOG)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await trio.testing.wait_all_tasks_blocked()
        yield store
        nursery.cancel_scope.cancel()


async def searched(store: MessageStore) -> None:
    """Return when the store looks for nothing any more."""
    with trio.fail_after(10):
        while store.healer._sought:  # noqa: ASYNC110  # no event
            await trio.sleep(0.001)


async def test_a_long_search_goes_on_while_nobody_reads(
    sparse: tuple[Path, list[bytes]],
) -> None:
    folder, expected = sparse
    async with running(folder) as store:
        for repaired in range(2):
            for _ in range(3):
                with pytest.raises(StoreError, match="is being looked for: try again"):
                    bodies(store)
            assert store.healer.repaired_units == repaired
            await searched(store)
        assert bodies(store) == expected
        assert store.healer.repaired_units == 2
        assert not store.healer._searched


async def test_a_long_search_that_finds_nothing_ends_in_a_filler(
    sparse: tuple[Path, list[bytes]],
) -> None:
    folder, expected = sparse
    files = sorted((folder / "commitlog").iterdir())
    hits = [(file, hit.start()) for file in files for hit in re.finditer(b"T-0", file.read_bytes())]
    change(*hits[1], b"X")
    async with running(folder) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="try again"):
                bodies(store)
            await searched(store)
        assert bodies(store) == [expected[0], *expected[2:]]


async def test_a_search_that_fails_is_begun_again_by_the_next_read(
    sparse: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = sparse
    async with running(folder) as store:
        look = store.healer._look
        fails = [OSError(errno.EIO, "bad page"), StoreError("not mapped")]

        def fail(place: unit_healer.Place, at: int, end: int) -> tuple[bytes | None, int]:
            # The read's own search goes on; it is the first to look.
            if fails and store.healer._sought:
                raise fails.pop()
            return look(place, at, end)

        monkeypatch.setattr(store.healer, "_look", fail)
        found: list[bytes] = []
        tries = 0
        while not found:
            tries += 1
            with suppress(StoreError):
                found = bodies(store)
            await searched(store)
        assert (found, fails) == (expected, [])
        assert tries == 5
        assert store.fence_reason is None


def test_a_unit_that_cannot_be_written_is_right_for_readers(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
    change(unit_file(tmp_path), 2 * UNIT_BYTES, b"\xff")
    storage = RecordingStorage()
    store = make_store(tmp_path, storage=storage, **LOG)
    store.open()
    storage.fail_at["write_files"] = (0, OSError(errno.EROFS, "read-only"))
    assert bodies(store) == expected
    assert bodies(store) == expected
    assert unit_file(tmp_path).read_bytes()[40] == 0
    store.close()


def test_after_cleaning_a_changed_unit_hides_no_message(tmp_path: Path) -> None:
    clock = ManualClock()
    store = make_store(
        tmp_path, clock=clock, commitlog_file_bytes=4096, cleanup_hours=(*range(24),)
    )
    store.open()
    fill(store, 60)
    store.close()
    original = tmp_path.with_name("original")
    shutil.copytree(tmp_path, original)

    async def clean(folder: Path) -> tuple[int, list[bytes]]:
        store = make_store(
            folder, clock=clock, commitlog_file_bytes=4096, cleanup_hours=(*range(24),)
        )
        store.open()
        store._log.queue.drop_first(store._log.queue.files[0])
        store._log.queue.drop_first(store._log.queue.files[0])
        await store.cleaner.remove_derived()
        found = store.reader.min_offset("T", 0), bodies(store)
        store.close()
        return found

    low, expected = trio.run(clean, original)
    assert 10 < low < 50
    for number in (0, *range(low - 2, low + 2), 59):
        folder = tmp_path.with_name("changed")
        shutil.copytree(tmp_path, folder)
        path = unit_file(folder, number // FILE_UNITS)
        place = number % FILE_UNITS * UNIT_BYTES
        for data in (bytes(8), b"\x7f"):
            change(path, place, data)
            assert trio.run(clean, folder)[1][-len(expected) :] == expected, number
            shutil.rmtree(folder)
            shutil.copytree(tmp_path, folder)
        shutil.rmtree(folder)


def test_a_table_with_other_checksums_costs_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = read_bodies(store)
    state = StateFiles(OsStorage(), str(tmp_path))
    table = state.read_queues()
    assert table is not None
    assert [len(crcs) for crcs in table.crcs] == [3, 3]
    tables: list[list[list[int]]] = [
        [[1, 2, 3]] * 2,
        [[]] * 2,
        [[5]] * 2,
        [[7] * 9] * 2,
        [[1]],
        [[-1, 4, -1]] * 2,
    ]
    for crcs in tables:
        state.write_queues(msgspec.structs.replace(table, crcs=crcs))
        with opened(tmp_path, **LOG) as store:
            assert read_bodies(store) == expected
            assert store.healer.repaired_units == 0


def test_files_of_somebody_else_get_their_checksums_when_they_are_read(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
    for name in ("queues.json", "queues.json.bak"):
        (tmp_path / name).unlink(missing_ok=True)
    with opened(tmp_path, **LOG) as store:
        assert bodies(store) == expected
        store.append([message(store.queue_tail("T", 0), b"T-40")])
    change(unit_file(tmp_path), 3 * UNIT_BYTES + 19, b"\xff")
    with opened(tmp_path, **LOG) as store:
        assert bodies(store, tag=CODE) == expected
        assert store.healer.repaired_units == 1
