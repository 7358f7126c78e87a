"""Looking into a store folder finds what is wrong, says what it costs, and changes nothing."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from motelog.core.errors import StoreDamagedError, StoreError
from motelog.core.sealed_json import seal
from motelog.core.store.message_store import MessageStore
from motelog.core.store.tools.inspection import (
    StoreFolder,
    Verification,
    plan_repair,
    records,
    verify,
)
from tests.support.stores import make_store, message, opened

RECORD_BYTES = 107
PROPERTIES = b"TAGS\x01dev\x02"


def fill(store: MessageStore, count: int, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        tail = store.queue_tail("T", number % 2)
        body = b"%06d" % number
        store.append([message(tail, body, properties=PROPERTIES, tags_code=99349)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """300 records in two queues over three CommitLog files, stopped cleanly."""
    with opened(tmp_path / "store") as store:
        fill(store, 300)
    return tmp_path / "store"


def look(path: Path) -> Verification:
    folder = StoreFolder(str(path))
    try:
        return verify(folder)
    finally:
        folder.close()


def digest(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x81
    path.write_bytes(data)


def log_file(path: Path, begin: int = 0) -> Path:
    return path / "commitlog" / f"{begin:020d}"


def unit_file(path: Path, begin: int = 0) -> Path:
    return path / "consumequeue" / "T" / "0" / f"{begin:020d}"


def test_a_sound_folder_has_no_faults_and_stays_as_it_is(folder: Path) -> None:
    before = digest(folder)
    result = look(folder)
    assert (result.faults, result.records, result.units) == ([], 300, 300)
    inspected = StoreFolder(str(folder))
    report, steps = plan_repair(inspected)
    assert [m.body for m in records(inspected, 0)] == [b"%06d" % n for n in range(300)]
    inspected.close()
    assert report.damage == []
    assert not [path for step, path in steps if step in ("remove", "move")]
    assert digest(folder) == before


def test_what_is_not_the_stores_is_left_alone_and_named(folder: Path) -> None:
    (folder / "timerlog").mkdir()
    (folder / "timerlog" / "0".zfill(20)).write_bytes(b"RocketMQ's")
    (folder / "timerwheel").write_bytes(b"RocketMQ's")
    (folder / "config").mkdir()
    for name in ("timercheck", "topics.json", "topics.json.bak", "timerOffset.json"):
        (folder / "config" / name).write_text("{}")
    (folder / "notes.txt").write_text("mine")
    before = digest(folder)
    opened_folder = StoreFolder(str(folder))
    named = opened_folder.left_alone()
    opened_folder.close()
    assert [name for name, _ in named] == [
        "notes.txt", "timerlog", "timerwheel", "config/timercheck",
    ]  # fmt: skip
    assert [what.partition(":")[0] for _, what in named] == ["unknown", *["RocketMQ 5"] * 3]
    with opened(folder) as store:
        assert store.reader.max_offset("T", 0) == 150
    after = digest(folder)
    for name, _ in named:
        assert {k: v for k, v in before.items() if k.startswith(name)} == {
            k: v for k, v in after.items() if k.startswith(name)
        }


def flip_body(path: Path) -> None:
    flip(log_file(path), 3 * RECORD_BYTES + 90)


def flip_size(path: Path) -> None:
    flip(log_file(path), 3 * RECORD_BYTES)


def flip_topic(path: Path) -> None:
    flip(log_file(path), 3 * RECORD_BYTES + 95)


def flip_unit(path: Path) -> None:
    flip(unit_file(path), 3 * 20 + 7)


def flip_tag_of_unit(path: Path) -> None:
    flip(unit_file(path), 3 * 20 + 19)


def flip_tag_without_table(path: Path) -> None:
    flip_tag_of_unit(path)
    (path / "queues.json").unlink()


def remove_queue(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "T" / "0")


def shorten_queue(path: Path) -> None:
    unit_file(path).write_bytes(unit_file(path).read_bytes()[:100])


def add_unit(path: Path) -> None:
    last = sorted(unit_file(path).parent.iterdir())[-1]
    data = last.read_bytes()
    end = len(data.rstrip(b"\0")) // 20 * 20 + 20
    assert end < len(data)
    last.write_bytes(data[:end] + data[:20] + data[end + 20 :])


def break_checkpoint(path: Path) -> None:
    (path / "checkpoint").write_bytes(b"\xff" * 4096)


def break_table(path: Path) -> None:
    flip(path / "queues.json", 30)


def break_topics(path: Path) -> None:
    (path / "config").mkdir()
    (path / "config" / "topics.json").write_text("{")


def flip_offsets(path: Path) -> None:
    (path / "config").mkdir()
    text = seal(b'{"offsetTable": {"T@G": {"0": 7}}}')
    (path / "config" / "consumerOffset.json").write_bytes(text.replace(b": 7", b": 9"))


def cut_end(path: Path) -> None:
    last = sorted((path / "commitlog").iterdir())[-1]
    data = last.read_bytes()
    end = len(data.rstrip(b"\0"))
    last.write_bytes(data[: end - 50] + bytes(len(data) - end + 50))


def shorten_log(path: Path) -> None:
    log_file(path, 16_384).write_bytes(bytes(5_000))


@pytest.mark.parametrize(
    ("change", "problem", "cost"),
    [
        (flip_body, "not a record, bad crc", "107 bytes are lost"),
        (flip_size, "not a record, bad size", "107 bytes are lost"),
        (flip_topic, "an invalid topic name", "1 messages are lost"),
        (flip_unit, "units 3 to 3", "none: they are rebuilt when they are read"),
        (flip_tag_of_unit, "units 3 to 3", "none: they are rebuilt when they are read"),
        (flip_tag_without_table, "units 3 to 3", "1 messages of T/0 may be filtered wrongly"),
        (remove_queue, "no ConsumeQueue", "none: the next start rebuilds it"),
        (shorten_queue, "has 100 bytes, expected 320", "none: the next start rebuilds it"),
        (add_unit, "have no record in the log", "messages of T/0"),
        (break_checkpoint, "does not match its checksum", "none: the next start reads more"),
        (break_table, "checksum", "none: the next start reads more"),
        (break_topics, "is not JSON", "its content is lost"),
        (flip_offsets, "the checksum of the content is", "its content is lost"),
        (cut_end, "the log reached up to", "bytes at the log's end are lost"),
        (shorten_log, "has 5000 bytes", "does not start"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_named_with_its_place_and_its_cost(
    folder: Path, change: Callable[[Path], None], problem: str, cost: str
) -> None:
    change(folder)
    before = digest(folder)
    faults = look(folder).faults
    assert any(problem in fault.problem and cost in fault.cost for fault in faults), faults
    assert digest(folder) == before


def test_damage_is_placed_in_its_file(folder: Path) -> None:
    flip(log_file(folder, 16_384), RECORD_BYTES + 90)
    gap, fault = look(folder).faults
    # The queue whose message it was is named as well.
    assert gap.cost == "1 messages of this queue are lost or duplicated"
    assert (fault.path, fault.offset_bytes) == (str(log_file(folder, 16_384)), RECORD_BYTES)


def test_the_plan_of_a_repair_is_what_the_start_does(folder: Path) -> None:
    flip_body(folder)
    remove_queue(folder)
    (folder / "abort").touch()
    before = digest(folder)
    inspected = StoreFolder(str(folder))
    planned, _ = plan_repair(inspected)
    inspected.close()
    assert digest(folder) == before
    store = make_store(folder)
    assert store.open() == planned
    store.close()
    assert len(planned.damage) == 1


def test_a_start_that_would_be_refused_is_said_to_be(folder: Path) -> None:
    shorten_log(folder)
    inspected = StoreFolder(str(folder))
    with pytest.raises(StoreDamagedError, match="5000 bytes"):
        plan_repair(inspected)
    inspected.close()


def test_an_open_store_is_looked_at_while_it_grows(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        fill(store, 100)
        inspected = StoreFolder(str(tmp_path / "store"))
        assert inspected.process_id() is not None
        fill(store, 150, begin=100)
        result = verify(inspected)
        assert result.faults == []
        assert 100 <= result.records <= 250
        inspected.close()
        assert look(tmp_path / "store").records == 250
        # Looking takes no lock and leaves nothing behind.
        fill(store, 10, begin=250)
    assert look(tmp_path / "store").records == 260


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        StoreFolder(str(tmp_path))
