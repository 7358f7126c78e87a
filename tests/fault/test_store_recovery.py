"""What a start makes of a folder that a crash, a bad disk or a careless hand has changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.clock import ManualClock
from motelog.core.errors import StoreDamagedError, StoreLockedError
from motelog.core.records.layout import FILLER_SIZE
from motelog.core.records.scan import collect
from motelog.core.store.message_store import MessageStore
from motelog.core.store.start import recovery
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import abandon, make_store, message, opened, read_bodies

TOPIC = "telemetry"
PROPERTIES = b"k\x01v\x02"


def fill(store: MessageStore, count: int, *, queues: int = 2, begin: int = 0) -> list[bytes]:
    """Append ``count`` messages, in turn to each queue; return their bodies."""
    bodies = [b"%06d-" % i + b"x" * (i % 50) for i in range(begin, begin + count)]
    for i, body in enumerate(bodies):
        # The last byte of a record is not zero, so that every cut of it shows.
        tail = store.queue_tail(TOPIC, (begin + i) % queues)
        store.append([message(tail, body, properties=PROPERTIES)])
    return bodies


def crashed(directory: Path, count: int, *, durable_count: int = 0) -> tuple[list[bytes], int]:
    """A folder as a killed process leaves it; return the bodies in it and where its log ends.

    ``durable_count`` of the messages have been flushed, and their units are on file.
    """
    store = make_store(directory)
    store.open()
    bodies = fill(store, durable_count)
    trio.run(store._flusher.flush)
    store.unit_flusher.write_now()
    bodies += fill(store, count - durable_count, begin=durable_count)
    end = store.end_offset
    abandon(store)
    return bodies, end


def crash_before_a_checkpoint(folder: Path) -> None:
    """Make of a folder that was stopped cleanly one whose next start reads the whole log."""
    (folder / "abort").touch()
    for name in ("checkpoint", "checkpoint.bak"):
        (folder / name).unlink()


def queue_path(directory: Path, queue_id: int, begin: int = 0) -> Path:
    return directory / "consumequeue" / TOPIC / str(queue_id) / f"{begin:020d}"


def log_path(directory: Path, begin: int = 0) -> Path:
    return directory / "commitlog" / f"{begin:020d}"


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_after_a_crash_everything_in_the_page_cache_is_there(tmp_path: Path) -> None:
    bodies, end = crashed(tmp_path, 300)
    store = make_store(tmp_path)
    report = store.open()
    assert not report.was_clean
    assert (report.records, report.end_offset, report.cut_bytes) == (300, end, 0)
    assert report.damage == []
    assert report.repaired_queues == report.rebuilt_queues == []
    assert read_bodies(store) == {(TOPIC, 0): bodies[::2], (TOPIC, 1): bodies[1::2]}
    store.close()


def test_a_torn_tail_is_cut_at_every_byte_of_the_last_record(tmp_path: Path) -> None:
    bodies, end = crashed(tmp_path / "whole", 5)
    last_bytes = 91 + len(bodies[-1]) + len(TOPIC) + len(PROPERTIES)
    for torn in range(last_bytes):
        folder = tmp_path / str(torn)
        shutil.copytree(tmp_path / "whole", folder)
        begin = end - last_bytes
        overwrite(log_path(folder), begin + torn, bytes(last_bytes - torn))
        store = make_store(folder)
        report = store.open()
        assert report.damage == []
        assert report.end_offset == begin
        assert read_bodies(store) == {(TOPIC, 0): bodies[:4:2], (TOPIC, 1): bodies[1:4:2]}
        # The place and the queue offset of the torn record are given to the next one.
        placed: list[tuple[int, int]] = []
        store.append([message(store.queue_tail(TOPIC, 0), b"next")], placed)
        assert placed == [(begin, 2)]
        store.close()
        with opened(folder) as again:
            assert read_bodies(again)[(TOPIC, 0)] == [*bodies[:4:2], b"next"]
        shutil.rmtree(folder)


@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize("at", [0, 4, 8, 12, 20, 28, 84, 91, 95], ids="byte{}".format)
def test_a_bad_record_is_reported_and_the_ones_behind_it_stay(
    tmp_path: Path, at: int, was_clean: bool
) -> None:
    placed: list[tuple[int, int]] = []
    with opened(tmp_path) as store:
        fill(store, 3)
        store.append([message(store.queue_tail(TOPIC, 1), b"victim")], placed)
        fill(store, 4, begin=4)
        expected = read_bodies(store)
    if not was_clean:
        crash_before_a_checkpoint(tmp_path)
    victim = placed[0][0]
    overwrite(
        log_path(tmp_path),
        victim + at,
        bytes([log_path(tmp_path).read_bytes()[victim + at] ^ 0x81]),
    )
    expected[(TOPIC, 1)].remove(b"victim")
    store = make_store(tmp_path)
    report = store.open()
    (damage,) = report.damage
    assert damage.path == str(log_path(tmp_path))
    assert (damage.offset_bytes, damage.physical_offset) == (victim, victim)
    assert damage.size == 91 + len(TOPIC) + len(b"victim")
    assert read_bodies(store) == expected
    # Its queue offset is not given to another message.
    assert store.reader.max_offset(TOPIC, 1) == 4
    result = store.reader.read(TOPIC, 1, 1, count_max=1)
    assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVED, 2)
    store.close()
    with opened(tmp_path) as again:
        assert read_bodies(again) == expected


def test_a_bad_last_record_of_a_queue_keeps_its_offset_used(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 4)
        placed: list[tuple[int, int]] = []
        store.append([message(store.queue_tail("other", 0), b"victim")], placed)
        fill(store, 2, begin=4)
    overwrite(log_path(tmp_path), placed[0][0] + 90, b"V")
    crash_before_a_checkpoint(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "other")
    with opened(tmp_path) as store:
        assert store.reader.max_offset("other", 0) == 1
        result = store.reader.read("other", 0, 0)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVED, 1)


def test_a_damaged_blank_record_does_not_hide_the_next_file(tmp_path: Path) -> None:
    bodies, _ = crashed(tmp_path, 300, durable_count=300)
    data = log_path(tmp_path).read_bytes()
    blank = data.rindex(b"\xcb\xd4\x31\x94") - 4
    overwrite(log_path(tmp_path), blank + 5, b"\x00")
    store = make_store(tmp_path)
    report = store.open()
    assert [(d.offset_bytes, d.size) for d in report.damage] == [(blank, 16_384 - blank)]
    assert read_bodies(store) == {(TOPIC, 0): bodies[::2], (TOPIC, 1): bodies[1::2]}
    store.close()


def bytes_of(bodies: list[bytes]) -> int:
    """The size of the records of these messages."""
    return sum(91 + len(body) + len(TOPIC) + len(PROPERTIES) for body in bodies)


def test_a_hole_behind_the_durable_offset_ends_the_log(tmp_path: Path) -> None:
    """A power cut may have kept a later page of the log and lost an earlier one."""
    bodies, end = crashed(tmp_path, 300, durable_count=10)
    hole = bytes_of(bodies[:20])
    overwrite(log_path(tmp_path), hole, bytes(100))
    store = make_store(tmp_path)
    report = store.open()
    assert report.damage == []
    assert (report.end_offset, report.given_up_records) == (hole, 279)
    assert report.given_up_bytes == bytes_of(bodies[21:])
    assert read_bodies(store) == {(TOPIC, 0): bodies[:20:2], (TOPIC, 1): bodies[1:20:2]}
    # What is given up is kept: the rest of the first file, and the others as they were.
    *later, cut = report.moved_aside
    assert cut == str(tmp_path / "damaged" / f"{hole:020d}.cut")
    kept = b"".join(Path(name).read_bytes() for name in report.moved_aside)
    assert all(body in kept for body in bodies[21:])
    assert len(later) == -(-end // 16_384) - 1
    store.close()


def test_a_hole_below_the_durable_offset_is_damage(tmp_path: Path) -> None:
    bodies, _ = crashed(tmp_path, 40, durable_count=30)
    hole = bytes_of(bodies[:20])
    overwrite(log_path(tmp_path), hole, bytes(100))
    store = make_store(tmp_path)
    report = store.open()
    assert [(d.physical_offset, d.size) for d in report.damage] == [(hole, bytes_of([bodies[20]]))]
    assert report.given_up_records == 0
    del bodies[20]
    found = read_bodies(store)
    assert sorted(found[(TOPIC, 0)] + found[(TOPIC, 1)]) == sorted(bodies)
    store.close()


def test_damage_up_to_the_durable_offset_does_not_keep_a_hole_behind_it(tmp_path: Path) -> None:
    bodies, _ = crashed(tmp_path, 40, durable_count=30)
    begin, end = bytes_of(bodies[:28]), bytes_of(bodies[:32])
    overwrite(log_path(tmp_path), begin, bytes(end - begin))
    store = make_store(tmp_path)
    report = store.open()
    (damage,) = report.damage
    assert (damage.physical_offset, damage.size) == (begin, bytes_of(bodies[28:30]))
    assert (report.end_offset, report.given_up_records) == (begin, 8)
    assert read_bodies(store) == {(TOPIC, 0): bodies[:28:2], (TOPIC, 1): bodies[1:28:2]}
    # The queue offsets that were on the disk stay used.
    assert [store.reader.max_offset(TOPIC, queue_id) for queue_id in (0, 1)] == [15, 15]
    store.close()


@pytest.mark.parametrize("damaged_slots", [(0,), (1,), (0, 1)])
def test_a_damaged_durable_file_costs_nothing(
    tmp_path: Path, damaged_slots: tuple[int, ...]
) -> None:
    bodies, end = crashed(tmp_path, 40, durable_count=30)
    for slot in damaged_slots:
        overwrite(tmp_path / "durable", slot * 512 + 9, b"\xff")
    store = make_store(tmp_path)
    report = store.open()
    assert (report.damage, report.end_offset, report.records) == ([], end, 40)
    assert read_bodies(store) == {(TOPIC, 0): bodies[::2], (TOPIC, 1): bodies[1::2]}
    store.close()


def test_what_is_kept_aside_is_not_replaced_by_a_later_start(tmp_path: Path) -> None:
    bodies, _ = crashed(tmp_path, 40)
    for number in range(1, 3):
        overwrite(log_path(tmp_path), bytes_of(bodies[:20]), bytes(100))
        store = make_store(tmp_path)
        report = store.open()
        assert report.given_up_records == 19
        assert len(list((tmp_path / "damaged").iterdir())) == number
        fill(store, 20, begin=20)
        abandon(store)


def test_a_log_that_was_longer_when_it_was_closed_is_reported(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        bodies = fill(store, 6, queues=1)
        end = store.end_offset
    last_bytes = 91 + len(bodies[-1]) + len(TOPIC) + len(PROPERTIES)
    overwrite(log_path(tmp_path), end - last_bytes + 4, b"\x00")
    store = make_store(tmp_path)
    report = store.open()
    assert [(d.physical_offset, d.size) for d in report.damage] == [(end - last_bytes, last_bytes)]
    assert len(report.moved_aside) == 1
    assert Path(report.moved_aside[0]).read_bytes()[91 - 4 : 91] != b""
    assert read_bodies(store) == {(TOPIC, 0): bodies[:-1]}
    assert store.reader.max_offset(TOPIC, 0) == 6
    store.close()


def test_bytes_in_files_behind_the_end_are_kept_aside(tmp_path: Path) -> None:
    crashed(tmp_path, 10)
    log_path(tmp_path, 16_384).write_bytes(b"no record at all".ljust(16_384, b"\0"))
    store = make_store(tmp_path)
    report = store.open()
    assert report.moved_aside == [str(tmp_path / "damaged" / f"{16_384:020d}")]
    assert report.records == 10
    store.close()


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("count", [0, 20])
def test_files_made_ahead_that_are_there_after_a_clean_stop_are_not_the_logs_end(
    tmp_path: Path, count: int, ahead: int
) -> None:
    with opened(tmp_path) as store:
        bodies = fill(store, count, queues=1)
        end = store.end_offset
    for number in range(1, ahead + 1):
        log_path(tmp_path, number * 16_384).write_bytes(bytes(16_384))
    store = make_store(tmp_path)
    report = store.open()
    assert (report.was_clean, report.end_offset, report.damage) == (True, end, [])
    bodies += fill(store, 20, queues=1, begin=count)
    assert read_bodies(store) == {(TOPIC, 0): bodies}
    abandon(store)
    # What a crash leaves then is no damage either.
    store = make_store(tmp_path)
    assert store.open().damage == []
    assert read_bodies(store) == {(TOPIC, 0): bodies}
    store.close()


def delete(folder: Path) -> None:
    shutil.rmtree(folder / "consumequeue")


def delete_one(folder: Path) -> None:
    shutil.rmtree(folder / "consumequeue" / TOPIC / "1")


def delete_first_file(folder: Path) -> None:
    queue_path(folder, 1).unlink()


def delete_last_file(folder: Path) -> None:
    sorted((folder / "consumequeue" / TOPIC / "1").iterdir())[-1].unlink()


def shorten(folder: Path) -> None:
    with queue_path(folder, 1).open("r+b") as file:
        file.truncate(100)


def lengthen(folder: Path) -> None:
    with queue_path(folder, 1).open("ab") as file:
        file.write(b"more")


def zero(folder: Path) -> None:
    for path in (folder / "consumequeue" / TOPIC / "1").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def add_units(folder: Path) -> None:
    path = sorted((folder / "consumequeue" / TOPIC / "1").iterdir())[-1]
    unit = bytes(5) + b"\x7f\x00\x00" + b"\x00\x00\x00\x60" + bytes(8)
    data = path.read_bytes().rstrip(b"\0")
    used = -(-len(data) // 20) * 20
    overwrite(path, used, unit * (16 - used // 20))


def swap(folder: Path) -> None:
    root = folder / "consumequeue" / TOPIC
    (root / "0").rename(root / "2")
    (root / "1").rename(root / "0")
    (root / "2").rename(root / "1")


def scribble(folder: Path) -> None:
    for path in (folder / "consumequeue" / TOPIC / "0").iterdir():
        path.write_bytes(b"\xa5" * path.stat().st_size)


def strange_file(folder: Path) -> None:
    (folder / "consumequeue" / TOPIC / "1" / "notes.txt").write_text("hello")


CHANGES = [
    delete, delete_one, delete_first_file, delete_last_file, shorten, lengthen, zero, add_units,
    swap, scribble, strange_file,
]  # fmt: skip


@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_consume_queues_are_made_anew_from_the_log(
    tmp_path: Path, change: Callable[[Path], None], was_clean: bool
) -> None:
    with opened(tmp_path) as store:
        fill(store, 230)
        expected = read_bodies(store)
    if not was_clean:
        (tmp_path / "abort").touch()
    change(tmp_path)
    store = make_store(tmp_path)
    report = store.open()
    assert report.was_clean is was_clean
    assert report.damage == []
    assert report.rebuilt_queues or report.repaired_queues
    assert read_bodies(store) == expected
    more = fill(store, 40, begin=230)
    expected = {(TOPIC, i): expected[(TOPIC, i)] + more[i::2] for i in range(2)}
    assert read_bodies(store) == expected
    store.close()
    with opened(tmp_path) as again:
        assert read_bodies(again) == expected


def test_a_stale_copy_of_a_queue_is_brought_up_to_date(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 100)
    shutil.copytree(tmp_path / "consumequeue", tmp_path / "old")
    with opened(tmp_path) as store:
        fill(store, 300, begin=100)
        expected = read_bodies(store)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "old").rename(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        assert read_bodies(store) == expected


def test_a_commitlog_file_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    crashed(tmp_path, 300)
    with log_path(tmp_path, 16_384).open("r+b") as file:
        file.truncate(5_000)
    with pytest.raises(StoreDamagedError, match="has 5000 bytes") as caught:
        make_store(tmp_path).open()
    assert caught.value.path == str(log_path(tmp_path, 16_384))
    # Refusing is not opening: the lock is free again.
    with pytest.raises(StoreDamagedError):
        make_store(tmp_path).open()


def test_a_missing_commitlog_file_is_named(tmp_path: Path) -> None:
    crashed(tmp_path, 500)
    log_path(tmp_path, 16_384).unlink()
    with pytest.raises(StoreDamagedError, match="the file before it ends at 16384"):
        make_store(tmp_path).open()


def test_a_strange_name_among_the_commitlog_files_is_named(tmp_path: Path) -> None:
    crashed(tmp_path, 5)
    (tmp_path / "commitlog" / "notes.txt").write_text("hello")
    with pytest.raises(StoreDamagedError, match=r"notes\.txt"):
        make_store(tmp_path).open()


def test_a_half_made_file_is_removed(tmp_path: Path) -> None:
    crashed(tmp_path, 5)
    half = tmp_path / "commitlog" / f"{16_384:020d}.tmp"
    half.write_bytes(b"half")
    with opened(tmp_path) as store:
        assert len(read_bodies(store)) == 2
    assert not half.exists()


@pytest.mark.parametrize("name", ["checkpoint", "queues.json"])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 4096, b"12345678\n{}\n"])
def test_small_files_that_say_nothing_cost_nothing_but_time(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    crashed(tmp_path, 200)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with opened(tmp_path) as store:
        assert sum(map(len, read_bodies(store).values())) == 200


def test_a_folder_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreLockedError):
        make_store(tmp_path).open()


def test_a_record_with_an_impossible_queue_offset_stays_out_of_its_queue(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 10, queues=1)
        expected = read_bodies(store)[(TOPIC, 0)]
    at = 91 + len(expected[0]) + len(TOPIC) + len(PROPERTIES)
    overwrite(log_path(tmp_path), at + 20, (1 << 40).to_bytes(8, "big"))
    crash_before_a_checkpoint(tmp_path)
    store = make_store(tmp_path)
    report = store.open()
    assert [d.physical_offset for d in report.damage] == [at]
    assert "queue offset" in report.damage[0].reason
    assert read_bodies(store) == {(TOPIC, 0): [expected[0], *expected[2:]]}
    unit = queue_path(tmp_path, 0).read_bytes()[20:40]
    assert unit == bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
    store.close()


def test_lost_units_of_removed_records_end_no_search(tmp_path: Path) -> None:
    clock = ManualClock()
    settings: dict[str, Any] = {"commitlog_file_bytes": 4096, "cleanup_pause_ms": 1}
    settings |= {"cleanup_hours": tuple(range(24)), "cleanup_files_max": 20, "clock": clock}
    folder = tmp_path / "folder"
    store = make_store(folder, **settings)
    store.open()
    bodies = fill(store, 90, queues=1)
    store.unit_flusher.write_now()
    trio.run(store._flusher.flush)
    # Without room for a checkpoint cleaning goes beyond the last one, and a crash comes before it
    # gets to the ConsumeQueues.
    clock.advance(80 * 3_600_000)
    store.cleaner.before_removal.clear()
    store.cleaner.after_removal.clear()
    store._queues.clear()
    assert trio.run(store.cleaner.clean) == 2
    abandon(store)
    with opened(shutil.copytree(folder, tmp_path / "whole"), **settings) as store:
        first = store.reader.min_offset(TOPIC, 0)
    assert first >= 3 * 16
    # Of the units nothing was synced: those of any file may be lost.
    for lost in range(1, first // 16):
        place = Path(shutil.copytree(folder, tmp_path / str(lost)))
        queue_path(place, 0, 16 * 20 * lost).write_bytes(bytes(16 * 20))
        # The second start reads from a checkpoint behind the log's begin.
        for _ in range(2):
            store = make_store(place, **settings)
            store.open()
            assert store.reader.min_offset(TOPIC, 0) == first
            assert read_bodies(store)[TOPIC, 0] == bodies[first:]
            assert store.reader.max_offset(TOPIC, 0) == len(bodies)
            trio.run(store.checkpoint)
            abandon(store)


def test_start_takes_few_records_with_keys_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, commitlog_file_bytes=1 << 21, consume_queue_file_units=10_000)
    store.open()
    tail = store.queue_tail(TOPIC, 0)
    for number in range(0, 9_000, 1_000):
        keyed = [b"KEYS\x01%d\x02" % (number + i) for i in range(1_000)]
        store.append([message(tail, b"x", properties=one) for one in keyed])
    abandon(store)
    steps: list[int] = []

    def noted(*arguments: Any) -> Any:
        found = collect(*arguments)
        steps.append(len(arguments[7] or ()))
        return found

    monkeypatch.setattr(recovery, "collect", noted)
    again = make_store(tmp_path, commitlog_file_bytes=1 << 21, consume_queue_file_units=10_000)
    assert again.open().records == 9_000
    again.close()
    assert sum(steps) == 9_000
    assert max(steps) <= recovery.KEYED_PER_STEP
