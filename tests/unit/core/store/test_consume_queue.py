"""ConsumeQueue files: room, units over file ends, few open at once; and the names of topics."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from core.store.consume_queue import FILLER, ConsumeQueue, OpenRegions, is_topic_name
from core.store.files import OsStorage


def unit(number: int) -> bytes:
    return struct.pack(">qiq", number * 100, 100, number)


def units(begin: int, end: int) -> bytes:
    return b"".join(map(unit, range(begin, end)))


def queue(folder: Path, *, file_units: int = 4, open_max: int = 8) -> ConsumeQueue:
    return ConsumeQueue(OpenRegions(OsStorage(), open_max), str(folder), "T", 0, file_units)


def put(target: ConsumeQueue, begin: int, end: int) -> None:
    target.ensure_room(end)
    target.put(units(begin, end))


def test_units_go_over_the_ends_of_files(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 3)
    put(target, 3, 10)
    assert target.max_offset == 10
    assert target.read(0, 99) == units(0, 10) + bytes(2 * 20)
    assert target.read(2, 5) == units(2, 7)
    assert target.read(99, 1) == b""
    names = sorted(path.name for path in (tmp_path / "T" / "0").iterdir())
    assert names == [f"{i * 80:020d}" for i in range(3)]


def test_room_is_told_to_the_tail(tmp_path: Path) -> None:
    target = queue(tmp_path, file_units=1000)
    target.ensure_room(1)
    assert target.tail.room_end == 16_384 // 20
    target.ensure_room(900)
    assert 900 <= target.tail.room_end <= 1000


def test_a_queue_whose_file_was_closed_meanwhile_goes_on(tmp_path: Path) -> None:
    regions = OpenRegions(OsStorage(), 2)
    queues = [ConsumeQueue(regions, str(tmp_path), "T", i, 4) for i in range(5)]
    for begin in range(0, 9, 3):
        for target in queues:
            put(target, begin, begin + 3)
    for target in queues:
        assert target.read(0, 9) == units(0, 9)
    regions.close()


def test_dirty_files_are_named_once(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 6)
    assert [Path(path).name for path in target.take_dirty_paths()] == ["0" * 20, f"{80:020d}"]
    assert target.take_dirty_paths() == []
    put(target, 6, 7)
    assert [Path(path).name for path in target.take_dirty_paths()] == [f"{80:020d}"]


def test_repair_writes_only_what_differs_and_fills_gaps(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 4)
    assert target.repair(1, units(1, 4)) == 0
    assert target.repair(6, units(6, 7)) == 3
    assert target.read(0, 7) == units(0, 4) + FILLER * 2 + units(6, 7)
    assert target.max_offset == target.tail.next_offset == 7


def test_find_end_looks_through_fillers(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 4)
    target.repair(4, FILLER * 5)
    target.repair(9, units(9, 12))
    assert target.find_end(0) == 0
    assert target.find_end(301) == 9
    assert target.find_end(300) == 3
    assert target.find_end(10_000) == 12


def test_truncate_zeroes_everything_behind(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 10)
    target.truncate(5)
    assert target.read(0, 99) == units(0, 5) + bytes(7 * 20)
    assert target.max_offset == 5
    put(target, 5, 6)
    assert target.read(0, 6) == units(0, 6)


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 10)
    assert queue(tmp_path).load() is None
    folder = tmp_path / "T" / "0"
    (folder / f"{80:020d}").unlink()
    assert "is missing" in (queue(tmp_path).load() or "")
    (folder / f"{0:020d}").write_bytes(b"short")
    assert "expected 80" in (queue(tmp_path).load() or "")
    (folder / "x").touch()
    (folder / f"{0:020d}").unlink()
    assert queue(tmp_path).load() is not None


@pytest.mark.parametrize(
    "name", ["T", "a" * 127, "%RETRY%" + "g" * 248, "%DLQ%g", "a-b_c|d%e", "SCHEDULE_TOPIC_XXXX"]
)
def test_a_topic_name_may_be_a_directory(name: str) -> None:
    assert is_topic_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\0", "a\n", "\u00e4", "a b", "a" * 128, "%RETRY%" + "g" * 249,
     "%RETRY%../x", "a+b"],
)  # fmt: skip
def test_any_other_name_may_not(name: str) -> None:
    assert not is_topic_name(name)
