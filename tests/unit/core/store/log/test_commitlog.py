"""CommitLog: blank records, files, and what is read back by physical offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.core.clock import ManualClock
from motelog.core.errors import RecordError
from motelog.core.records.append import QueueTail, measure
from motelog.core.records.decode import decode
from motelog.core.records.layout import MAGIC_BLANK
from motelog.core.store.disk.files import OsRegion, OsStorage, Region
from motelog.core.store.log.commitlog import CommitLog
from tests.support.stores import STORE_HOST, message

SIZE = 4096


def open_log(
    folder: Path,
    clock: ManualClock | None = None,
    *,
    storage: OsStorage | None = None,
    size: int = SIZE,
    touch_bytes: int = 0,
) -> CommitLog:
    log = CommitLog(
        storage or OsStorage(),
        str(folder),
        size,
        touch_bytes=touch_bytes,
        store_host=STORE_HOST,
        clock=clock or ManualClock(),
        mapped_max=2,
    )
    log.queue.load()
    log.start_at(0, 0)
    return log


def append(log: CommitLog, tail: QueueTail, *sizes: int) -> list[tuple[int, int]]:
    messages = [message(tail, b"x" * size) for size in sizes]
    placed: list[tuple[int, int]] = []
    log.make_room(*measure(messages, 0, SIZE)[:2])
    log.end_offset = log.write(messages, [], placed)
    return placed


def test_a_blank_record_fills_the_end_of_a_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    placed = append(log, QueueTail(b"T", 0, 0), 3000, 1000)
    assert placed == [(0, 0), (SIZE, 1)]
    blank = (tmp_path / "0".zfill(20)).read_bytes()[3092:3100]
    assert blank == (SIZE - 3092).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
    log.close()


@pytest.mark.parametrize(("left", "file"), [(8, 0), (7, 1)])
def test_eight_bytes_stay_for_the_blank_record(tmp_path: Path, left: int, file: int) -> None:
    log = open_log(tmp_path)
    tail = QueueTail(b"T", 0, 0)
    first, second = 1000, SIZE - 92 - 1000 - 92 - left
    placed = append(log, tail, first, second)
    assert placed[1][0] == (0 if file else 1092) + file * SIZE
    log.close()


def test_a_batch_may_need_several_files(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    placed = append(log, QueueTail(b"T", 0, 0), *[1900] * 9)
    assert [p[0] for p in placed] == [
        begin for i in range(5) for begin in (i * SIZE, i * SIZE + 1992)
    ][:9]
    for physical_offset, queue_offset in placed:
        (fields,) = decode(log.record_at(physical_offset))
        assert fields[2:4] == (queue_offset, physical_offset)
    log.close()


def test_store_timestamps_do_not_go_back_with_the_clock(tmp_path: Path) -> None:
    clock = ManualClock(10_000)
    log = open_log(tmp_path, clock)
    tail = QueueTail(b"T", 0, 0)
    places = append(log, tail, 1)
    clock.step_wall(-5_000)
    places += append(log, tail, 1)
    clock.step_wall(9_000)
    places += append(log, tail, 1)
    assert [decode(log.record_at(p))[0][8] for p, _ in places] == [10_000, 10_000, 14_000]
    log.close()


def test_only_the_place_of_a_record_gives_a_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    ((first, _), (second, _)) = append(log, QueueTail(b"T", 0, 0), 50, 50)
    assert len(log.record_at(first)) == second
    for wrong in (-1, 1, second - 1, log.end_offset, SIZE, 1 << 62):
        with pytest.raises(RecordError):
            log.record_at(wrong)
    log.close()


def test_records_are_gathered_over_the_ends_of_files(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    tail = QueueTail(b"T", 0, 0)
    append(log, tail, *[1500] * 7)
    units = tail.units(tail.first_offset, tail.pending)
    assert [f[2] for f in decode(log.gather(units))] == list(range(7))
    with pytest.raises(RecordError):
        log.gather(units + (1 << 40).to_bytes(8, "big") + bytes(12))
    log.close()


def test_pages_are_made_ready_ahead_of_the_append(tmp_path: Path) -> None:
    page = 4096
    storage = PreparedStorage()
    log = open_log(tmp_path, storage=storage, size=16 * page, touch_bytes=4 * page)
    tail = QueueTail(b"T", 0, 0)
    for _ in range(80):
        append(log, tail, 1000 - 92)
    assert log.end_offset > 16 * page
    log.close()
    # Two workers, so in any order.
    first, second = (sorted(noted) for noted in storage.prepared[:2])
    # When the file is made; from the first append on; then each time half of that is used up, which
    # nine records of 1000 bytes do.
    assert first[:2] == [(0, 4 * page), (1000, 1000 + 4 * page)]
    steps = [(1000 + 4 * page + n * 9000, 1000 + 4 * page + (n + 1) * 9000) for n in range(5)]
    assert first[2:] == [*steps, (steps[-1][1], 16 * page)]
    assert second[0] == (0, 4 * page)


class PreparedStorage(OsStorage):
    """The real file system; notes which pages of each mapped file were made ready."""

    def __init__(self) -> None:
        self.prepared: list[list[tuple[int, int]]] = []

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        noted: list[tuple[int, int]] = []
        self.prepared.append(noted)

        class Noting(OsRegion):
            def prepare(self, begin: int, end: int) -> None:
                noted.append((begin, end))
                super().prepare(begin, end)

        return Noting(path, size)
