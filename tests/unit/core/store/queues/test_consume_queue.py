"""ConsumeQueues: units in memory and over file ends, few files open at once; names of topics."""

from __future__ import annotations

import struct
from pathlib import Path

from motelog.core.store.disk.files import OsStorage
from motelog.core.store.queues.consume_queue import FILLER, ConsumeQueue, OpenFiles, Unsynced


def unit(number: int) -> bytes:
    return struct.pack(">qiq", number * 100, 100, number)


def units(begin: int, end: int) -> bytes:
    return b"".join(map(unit, range(begin, end)))


def queue(folder: Path, *, file_units: int = 4, open_max: int = 8) -> ConsumeQueue:
    return ConsumeQueue(OpenFiles(OsStorage(), open_max), str(folder), "T", 0, file_units)


def write(target: ConsumeQueue) -> None:
    pieces, end = target.unwritten()
    target._storage.write_files(pieces, target._file_units * 20)
    target.note_written(end)


def put(target: ConsumeQueue, begin: int, end: int) -> None:
    target.tail.extend(units(begin, end))
    write(target)


def test_units_go_over_the_ends_of_files(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 3)
    put(target, 3, 10)
    assert target.max_offset == 10
    assert target.read_files(0, 99) == units(0, 10) + bytes(2 * 20)
    assert target.read(2, 5) == units(2, 7)
    assert target.read(99, 1) == b""
    names = sorted(path.name for path in (tmp_path / "T" / "0").iterdir())
    assert names == [f"{i * 80:020d}" for i in range(3)]


def test_units_are_read_from_memory_and_from_files_alike(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 6)
    target.tail.extend(units(6, 11))
    assert (target.written_offset, target.max_offset, target.end_on_file) == (6, 11, 8)
    for begin in range(12):
        for count in range(12):
            assert target.read(begin, count) == units(begin, min(begin + count, 11))
    assert target.unit(8) == (800, 100, 8)
    assert target.find_end(701) == 8
    write(target)
    assert (target.written_offset, target.end_on_file) == (11, 12)
    assert target.read(0, 11) == units(0, 11)


def test_what_is_appended_while_units_are_written_stays_in_memory(tmp_path: Path) -> None:
    target = queue(tmp_path)
    target.tail.extend(units(0, 3))
    pieces, end = target.unwritten()
    target.tail.extend(units(3, 5))
    target._storage.write_files(pieces, 80)
    target.note_written(end)
    assert (target.written_offset, target.max_offset) == (3, 5)
    assert target.read(0, 9) == units(0, 5)
    # Somebody else was faster.
    target.note_written(2)
    assert target.written_offset == 3


def test_a_queue_whose_file_was_closed_meanwhile_goes_on(tmp_path: Path) -> None:
    files = OpenFiles(OsStorage(), 2)
    queues = [ConsumeQueue(files, str(tmp_path), "T", i, 4) for i in range(5)]
    for begin in range(0, 9, 3):
        for target in queues:
            put(target, begin, begin + 3)
    for target in queues:
        assert target.read(0, 9) == units(0, 9)
    files.close()


def test_unsynced_files_are_named_once_or_again_when_they_are_put_back(tmp_path: Path) -> None:
    def paths(unsynced: Unsynced) -> list[str]:
        return [Path(path).name for path in target.paths_from(unsynced.offset)]

    target = queue(tmp_path)
    put(target, 0, 6)
    first = target.take_unsynced()
    assert paths(first) == ["0" * 20, f"{80:020d}"]
    assert first.has_new_file
    assert not target.is_unsynced
    put(target, 6, 7)
    second = target.take_unsynced()
    assert paths(second) == [f"{80:020d}"]
    assert not second.has_new_file
    target.put_back_unsynced(first)
    assert target.take_unsynced() == first


def test_find_end_looks_through_fillers(tmp_path: Path) -> None:
    target = queue(tmp_path)
    target.tail.extend(units(0, 4) + FILLER * 5 + units(9, 12))
    write(target)
    assert target.find_end(0) == 0
    assert target.find_end(301) == 9
    assert target.find_end(300) == 3
    assert target.find_end(10_000) == 12
    for guess in range(-1, 15):
        for physical_end in range(0, 1300, 50):
            assert target.find_end(physical_end, guess) == target.find_end(physical_end)


def test_truncate_zeroes_everything_behind(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 10)
    target.set_max_offset(5)
    assert target.truncate()
    assert target.read_files(0, 99) == units(0, 5) + bytes(7 * 20)
    assert target.max_offset == 5
    assert not target.truncate()
    put(target, 5, 6)
    assert target.read(0, 6) == units(0, 6)


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    target = queue(tmp_path)
    put(target, 0, 10)
    assert queue(tmp_path).load() is None
    folder = tmp_path / "T" / "0"
    (folder / f"{80:020d}").unlink()
    assert "is missing" in (queue(tmp_path).load() or "")
    (folder / f"{0:020d}").write_bytes(bytes(81))
    assert "expected 80" in (queue(tmp_path).load() or "")
    (folder / "x").touch()
    (folder / f"{0:020d}").unlink()
    assert queue(tmp_path).load() is not None


def test_a_short_file_gets_its_size_again_and_what_lay_behind_is_not_believed(
    tmp_path: Path,
) -> None:
    put(queue(tmp_path), 0, 10)
    path = tmp_path / "T" / "0" / f"{80:020d}"
    path.write_bytes(path.read_bytes()[:50])
    (tmp_path / "T" / "0" / f"{240:020d}.tmp").touch()
    target = queue(tmp_path)
    assert target.load() is None
    assert (target.max_offset, target.end_on_file) == (6, 12)
    assert target.find_end(1 << 60) == 6
    assert path.stat().st_size == 80
    assert len(list(path.parent.iterdir())) == 3
