"""What `motelog store verify` says of index files: what is wrong, and which messages it costs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motelog.core.store.tools.inspection import Fault, StoreFolder, plan_repair, verify
from tests.support.stores import abandon, make_store, message, opened

SHAPE: dict[str, Any] = {"index_slots": 16, "index_entries": 64}
ENTRIES_AT = 40 + 4 * 16
MESSAGES = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Messages with two keys each in several index files, stopped cleanly."""
    path = tmp_path / "store"
    store = make_store(path, **SHAPE)
    store.open()
    for number in range(MESSAGES):
        text = b"KEYS\x01k%d every\x02" % number
        store.append([message(store.queue_tail("T", 0), b"body", properties=text)])
        store.append([message(store.queue_tail("T", 1), b"no key")])
    store.close()
    return path


def index_file(folder: Path, position: int = 0) -> Path:
    return sorted((folder / "index").iterdir())[position]


def faults(path: Path) -> list[Fault]:
    folder = StoreFolder(str(path))
    try:
        return verify(folder).faults
    finally:
        folder.close()


def test_a_sound_index_has_no_faults(folder: Path) -> None:
    assert len(list((folder / "index").iterdir())) == 4
    assert faults(folder) == []


def test_an_open_store_and_a_killed_one_have_no_faults(folder: Path) -> None:
    store = make_store(folder, **SHAPE)
    store.open()
    for number in range(30):
        text = b"KEYS\x01later%d\x02" % number
        store.append([message(store.queue_tail("T", 0), b"body", properties=text)])
    store.reader.query("T", "later3", begin_ms=0, end_ms=1 << 60)
    assert faults(folder) == []
    abandon(store)
    # A process that is no more: what it put since its last checkpoint is not in index.json.
    (folder / "abort").write_text("999999999")
    assert faults(folder) == []


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def change_hash(folder: Path) -> None:
    change(index_file(folder, 1), ENTRIES_AT + 20 * 7, struct.pack(">i", 12_345))


def change_place(folder: Path) -> None:
    change(index_file(folder, 1), ENTRIES_AT + 20 * 7 + 4, struct.pack(">q", 1 << 40))


def change_link(folder: Path) -> None:
    change(index_file(folder, 1), ENTRIES_AT + 20 * 60 + 16, struct.pack(">i", 1))


def change_slots(folder: Path) -> None:
    change(index_file(folder, 1), 40, bytes(4 * 16))


def change_count(folder: Path) -> None:
    change(index_file(folder, -1), 36, struct.pack(">i", 2))


def change_end(folder: Path) -> None:
    change(index_file(folder, 1), 24, struct.pack(">q", 1 << 40))


def remove(folder: Path) -> None:
    index_file(folder, 1).unlink()


def shorten(folder: Path) -> None:
    with index_file(folder, 1).open("r+b") as file:
        file.truncate(500)


def break_table(folder: Path) -> None:
    for path in folder.glob("index.json*"):
        path.write_bytes(b"00000000\n{}\n")


def break_newest_table(folder: Path) -> None:
    (folder / "index.json").write_bytes(b"00000000\n{}\n")


@pytest.mark.parametrize(
    ("spoil", "problem", "cost"),
    [
        (
            change_hash,
            "1 keys of records in the log are missing",
            "queries by key miss at most 1 message",
        ),
        (change_hash, "1 entries name no record with their key", "none: queries compare"),
        (change_place, "entry 7 is damaged", "queries by key miss at most 1 message"),
        (change_link, "0 slots and 1 entries do not lead", "queries by key miss at most 1 message"),
        (
            change_slots,
            "slots and 0 entries do not lead",
            "queries by key miss at most 63 messages",
        ),
        (change_count, "says that entry 2 is the next one", "the next start corrects it"),
        (change_end, "entry 63 is not what the header says", "none: the next start rebuilds it"),
        (remove, "is missing", "none: the next start rebuilds it"),
        (shorten, "has 500 bytes, expected 1384", "none: the next start rebuilds it"),
        (break_table, "does not match its checksum", "rebuilds the index"),
        (break_newest_table, "does not match its checksum", "reads more of the log"),
    ],
)
def test_a_fault_is_named_with_its_cost(
    folder: Path, spoil: Callable[[Path], None], problem: str, cost: str
) -> None:
    spoil(folder)
    found = faults(folder)
    assert any(problem in fault.problem and cost in fault.cost for fault in found), found


def test_the_remedy_for_a_damaged_entry_works(folder: Path) -> None:
    change_hash(folder)
    index_file(folder, 1).unlink()
    with opened(folder, **SHAPE) as store:
        for number in range(MESSAGES):
            found = store.reader.query("T", f"k{number}", begin_ms=0, end_ms=1 << 60)
            assert len(found.records) == 1
    assert faults(folder) == []


def test_what_a_start_would_make_of_the_index_is_told(folder: Path) -> None:
    gone = index_file(folder, 1)
    gone.unlink()
    stopped = StoreFolder(str(folder))
    report, steps = plan_repair(stopped)
    stopped.close()
    assert report.index_fault.endswith(f"{gone.name}: it is missing")
    assert 0 < report.index_from < report.end_offset
    # The files behind the one that is missing.
    assert [step for step, path in steps if "/index/" in path].count("remove") == 2
