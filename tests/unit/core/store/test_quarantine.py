"""ConsumeQueue files that a disk has changed: put aside, rebuilt from the log, read again."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
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
from motelog.core.records.scan import collect
from motelog.core.store import quarantine
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.message_store import MessageStore
from motelog.core.store.quarantine import UnitsAsideError
from motelog.core.store.queues import consume_queue
from motelog.core.store.queues.consume_queue import FILLER
from motelog.core.store.state.checkpoint import StateFiles
from motelog.core.store.store_reader import ReadStatus
from motelog.core.topic_names import TIMER_TOPIC
from tests.support.stores import (
    RecordingStorage,
    abandon,
    make_store,
    message,
    opened,
    read_bodies,
    read_queue,
    when_back,
)

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


def bodies(store: MessageStore, *, tag: int | None = None, begin: int = -1) -> list[bytes]:
    """Read queue T/0 to its end, a few at a time; raises what a read raises."""
    found, offset = [], store.reader.min_offset("T", 0) if begin < 0 else begin
    codes = None if tag is None else frozenset({tag})
    while offset < store.reader.max_offset("T", 0):
        result = store.reader.read("T", 0, offset, count_max=5, tag_codes=codes)
        found += re.findall(rb"T-\d+", result.records)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def bodies_when_back(store: MessageStore, *, tag: int | None = None) -> list[bytes]:
    return when_back(store, partial(bodies, store, tag=tag))


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
def test_a_changed_unit_costs_nothing(tmp_path: Path, name: str, at: int, tag: int | None) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
    path = unit_file(tmp_path, at // FILE_UNITS)
    right = path.read_bytes()
    place = at % FILE_UNITS * UNIT_BYTES
    unit = CHANGES[name](right[place : place + UNIT_BYTES])
    change(path, place, unit or right[place - 20 : place] or right[20:40])
    with opened(tmp_path, **LOG) as store:
        with pytest.raises(UnitsAsideError, match=r"T/0 from .* try again later"):
            bodies(store, tag=tag)
        assert bodies_when_back(store, tag=tag) == expected
        assert store.sample()["store_queue_files_rebuilt"] == 1
        assert path.read_bytes() == right
        assert store.sample()["store_queue_files_aside_now"] == 0
    with opened(tmp_path, **LOG) as store:
        assert bodies(store, tag=tag) == expected


def test_a_file_without_a_right_unit_costs_nothing_and_no_other_file(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 60)
        expected = bodies(store)
    right = [unit_file(tmp_path, number).read_bytes() for number in range(4)]
    with opened(tmp_path, **LOG) as store:
        change(unit_file(tmp_path, 1), 0, bytes(FILE_UNITS * UNIT_BYTES))
        change(unit_file(tmp_path, 2), 0, right[0])
        for offset in (FILE_UNITS, 2 * FILE_UNITS):
            with pytest.raises(UnitsAsideError):
                bodies(store, begin=offset)
        # The file before, that behind, what is appended meanwhile.
        assert store.reader.read("T", 0, 0, count_max=FILE_UNITS).count == FILE_UNITS
        fill(store, 1)
        assert bodies(store, begin=3 * FILE_UNITS) == [*expected[3 * FILE_UNITS :], b"T-0"]
        assert store.sample()["store_queue_files_aside_now"] == 2
        assert bodies_when_back(store) == [*expected, b"T-0"]
        assert store.sample()["store_queue_files_aside_now"] == 0
    assert [unit_file(tmp_path, number).read_bytes() for number in range(3)] == right[:3]


def test_a_unit_that_changes_while_the_store_is_open_costs_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        store.unit_flusher.write_now()
        expected = bodies(store)
        read_time = partial(store.reader.store_timestamp, "T", 0, 3)
        change(unit_file(tmp_path), 3 * UNIT_BYTES, bytes(8))
        assert bodies_when_back(store) == expected
        change(unit_file(tmp_path), 3 * UNIT_BYTES, bytes(UNIT_BYTES))
        assert bodies_when_back(store) == expected
        change(unit_file(tmp_path), 3 * UNIT_BYTES + 7, b"\x01")
        with pytest.raises(UnitsAsideError):
            read_time()
        assert when_back(store, read_time) > 0
        assert store.quarantine.rebuilt_files == 3


def test_a_file_that_cannot_be_read_is_compared_when_it_can(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
    change(unit_file(tmp_path), 3 * UNIT_BYTES + 19, b"\xff")
    storage = RecordingStorage()
    with opened(tmp_path, storage=storage, **LOG) as store:
        store._files.close()
        storage.fail_at["open_file"] = (0, OSError(errno.EIO, "bad sector"))
        with pytest.raises(StoreError, match="bad sector"):
            bodies(store, tag=CODE)
        assert bodies_when_back(store, tag=CODE) == expected
        assert store.quarantine.rebuilt_files == 1


def test_a_record_that_is_lost_is_passed_by_and_its_file_stays(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
        physical_offset = int.from_bytes(store.reader.units("T", 0, 3, 1)[:8], "big")
    change(tmp_path / "commitlog" / ("0" * 20), physical_offset + 88, b"\xff")
    before = unit_file(tmp_path).read_bytes()
    with opened(tmp_path, **LOG) as store:
        for _ in range(2):
            assert bodies(store) == [*expected[:3], *expected[4:]]
        result = store.reader.read("T", 0, 3, count_max=1)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVED, 4)
        assert store.reader.store_timestamp("T", 0, 3) == -1
        assert store.quarantine.rebuilt_files == 0
    assert unit_file(tmp_path).read_bytes() == before
    # Where another unit has changed, a filler comes for the one that has no record.
    change(unit_file(tmp_path), 5 * UNIT_BYTES, bytes(UNIT_BYTES))
    with opened(tmp_path, **LOG) as store:
        assert bodies_when_back(store) == [*expected[:3], *expected[4:]]
        assert store.quarantine.rebuilt_files == 1
    assert unit_file(tmp_path).read_bytes() == before[:60] + FILLER + before[80:]


@asynccontextmanager
async def running(folder: Path, **config: Any) -> AsyncIterator[MessageStore]:
    store = make_store(folder, **LOG | config)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await trio.testing.wait_all_tasks_blocked()
        yield store
        nursery.cancel_scope.cancel()


async def read_as_readers_do(store: MessageStore) -> list[bytes]:
    """Read queue T/0 as a reader with a task of its own does."""
    found, offset = [], 0
    with trio.fail_after(10):
        while offset < store.reader.max_offset("T", 0):
            read = partial(store.reader.read, "T", 0, offset)
            result = await store.reader.when_in_memory(read)
            found += re.findall(rb"T-\d+", result.records)
            offset = result.next_offset
    return found


@pytest.fixture
def sparse(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A folder in which units 1 and 2 of T are zeros and far from their neighbours' records."""
    with opened(tmp_path, **LOG) as store:
        for count in (1, 1, 1, 20):
            fill(store, count)
            fill(store, 200, topics="U")
        expected = bodies(store)
    change(unit_file(tmp_path), UNIT_BYTES, bytes(2 * UNIT_BYTES))
    return tmp_path, expected


async def test_readers_wait_and_are_woken_while_others_go_on(
    sparse: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "SLICE_BYTES", 200)
    folder, expected = sparse
    turns = appended = 0
    async with running(folder) as store, trio.open_nursery() as nursery:
        steps: list[int] = []

        def note(view: memoryview, at: int, *args: Any) -> Any:
            found = collect(view, at, *args)
            steps.append(found[1] - at)
            return found

        monkeypatch.setattr(quarantine, "collect", note)
        waiting = [trio.Event() for _ in range(3)]

        async def read(done: trio.Event) -> None:
            assert (await read_as_readers_do(store))[: len(expected)] == expected
            done.set()

        for done in waiting:
            nursery.start_soon(read, done)
        await trio.testing.wait_all_tasks_blocked(0)
        while store.quarantine.aside_count:
            # The file is written to and grows meanwhile, other queues are read.
            fill(store, 1)
            appended += 1
            await store.unit_flusher.write()
            assert store.reader.read("U", 0, turns, may_wait=True).count
            turns += 1
            await trio.lowlevel.checkpoint()
        with trio.fail_after(10):
            for done in waiting:
                await done.wait()
        assert turns > 20
        assert len(steps) > 20
        assert max(steps) < 2_000
        assert store.quarantine.rebuilt_files == 1
        assert bodies(store) == expected + [b"T-0"] * appended
        nursery.cancel_scope.cancel()
    with opened(folder, **LOG) as store:
        assert bodies(store) == expected + [b"T-0"] * appended


async def test_what_fails_is_tried_again(
    sparse: tuple[Path, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(quarantine, "RETRY_S", 0.001)
    folder, expected = sparse
    storage = RecordingStorage()
    async with running(folder, storage=storage) as store:
        storage.fail_at["write_files"] = (0, OSError(errno.ENOSPC, "no space"))
        units = store.quarantine._units
        fails = [OSError(errno.EIO, "bad page"), StoreError("not mapped")]

        async def fail(*args: Any) -> bytes:
            if fails:
                raise fails.pop()
            return await units(*args)

        monkeypatch.setattr(store.quarantine, "_units", fail)
        assert await read_as_readers_do(store) == expected
        assert (fails, storage.fail_at) == ([], {})
        assert store.fence_reason is None
    reasons = [
        text.partition("reason=")[2]
        for text in caplog.messages
        if "rebuilding a ConsumeQueue file failed" in text
    ]
    assert [reason.partition("] ")[2] or reason for reason in reasons] == [
        "not mapped",
        "bad page",
        "no space",
    ]


async def test_a_file_that_is_removed_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Then the search for the queue's begin does not meet the file.
    monkeypatch.setattr(consume_queue, "BLOCK_UNITS", 4)
    with opened(tmp_path, **LOG) as store:
        fill(store, 60)
        expected = bodies(store)
    path = unit_file(tmp_path)
    change(path, 0, bytes(40))
    with opened(tmp_path, **LOG) as store:
        with pytest.raises(UnitsAsideError):
            bodies(store)
        units = store.quarantine._units

        async def find_and_clean(*args: Any) -> bytes:
            found = await units(*args)
            for _ in range(3):
                store._log.queue.drop_first(store._log.queue.files[0])
            await store.cleaner.remove_derived()
            return found

        monkeypatch.setattr(store.quarantine, "_units", find_and_clean)
        assert await store.quarantine.rebuild()
        assert not path.exists()
        assert bodies(store) == expected[store.reader.min_offset("T", 0) :]


def test_a_queue_with_due_times_gets_them_again(tmp_path: Path) -> None:
    with opened(tmp_path, **LOG) as store:
        tail = store.queue_tail(TIMER_TOPIC, 0)
        for number in range(20):
            text = b"TIMER_OUT_MS\x01%d\x02" % (5_000 + number)
            code = 5_000 + number
            store.append([message(tail, b"x", properties=text, tags_code=code)])
    path = next((tmp_path / "consumequeue" / TIMER_TOPIC / "0").iterdir())
    right = path.read_bytes()
    with opened(tmp_path, **LOG) as store:
        change(path, 60, bytes(60))
        assert len(read_queue(store, TIMER_TOPIC, 0)) == 20
        assert store.quarantine.rebuilt_files == 1
    assert path.read_bytes() == right


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_crash_meanwhile_is_made_up_for_by_the_next_start(tmp_path: Path, is_torn: bool) -> None:
    """The checksum in queues.json is that of what was written: the file is still put aside."""
    with opened(tmp_path, **LOG) as store:
        fill(store, 40)
        expected = bodies(store)
    path = unit_file(tmp_path)
    right = path.read_bytes()
    change(path, UNIT_BYTES, bytes(10 * UNIT_BYTES))
    store = make_store(tmp_path, **LOG)
    store.open()
    with pytest.raises(UnitsAsideError):
        bodies(store)
    if is_torn:
        change(path, 0, right[: 4 * UNIT_BYTES + 7])
    trio.run(store.checkpoint)
    abandon(store)
    with opened(tmp_path, **LOG) as store:
        with pytest.raises(UnitsAsideError):
            bodies(store)
        assert bodies_when_back(store) == expected
        assert path.read_bytes() == right


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
        try:
            store.reader.min_offset("T", 0)
            bodies(store)
        except UnitsAsideError:
            assert await store.quarantine.rebuild()
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
    right = unit_file(tmp_path).read_bytes()
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
            assert unit_file(tmp_path).read_bytes() == right


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
        assert bodies_when_back(store, tag=CODE) == expected
        assert store.quarantine.rebuilt_files == 1
    # Before anybody has read them, too, where a unit leads nowhere.
    for name in ("queues.json", "queues.json.bak"):
        (tmp_path / name).unlink(missing_ok=True)
    change(unit_file(tmp_path), 3 * UNIT_BYTES, b"\x40")
    with opened(tmp_path, **LOG) as store:
        assert bodies_when_back(store) == [*expected, b"T-40"]
        assert store.quarantine.rebuilt_files == 1
