"""The small files: RocketMQ's checkpoint page and our table of queues."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from motelog.core.clock import Jump
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.state.checkpoint import (
    ClockNotes,
    IndexTable,
    QueueTable,
    StateFiles,
    StoreCheckpoint,
)
from tests.support.stores import RecordingStorage


def test_a_checkpoint_of_rocketmq_is_one_page_with_three_times() -> None:
    data = StoreCheckpoint(1_000, 900, 0).encode()
    assert data == struct.pack(">qqq", 1_000, 900, 0) + bytes(4096 - 24)
    read = StoreCheckpoint.decode(data)
    assert read == StoreCheckpoint(1_000, 900, 0)
    assert (read.safe_ms, read.complete_offset) == (900, None)


def test_our_extension_lies_behind_what_rocketmq_writes() -> None:
    data = StoreCheckpoint(1_000, 900, 7, 123_456).encode()
    assert len(data) == 4096
    assert data[:2048] == struct.pack(">qqq", 1_000, 900, 7) + bytes(2024)
    assert data[2048:2084] == b"MLCP" + data[:24] + struct.pack(">q", 123_456)
    assert StoreCheckpoint.decode(data) == StoreCheckpoint(1_000, 900, 7, 123_456)


def test_other_times_than_the_extension_has_are_those_of_rocketmq() -> None:
    data = StoreCheckpoint(1_000, 900, 7, 123_456).encode()
    changed = struct.pack(">qqq", 2_000, 1_900, 8) + data[24:]
    assert StoreCheckpoint.decode(changed) == StoreCheckpoint(2_000, 1_900, 8)


def test_an_extension_with_any_byte_changed_is_not_believed() -> None:
    data = StoreCheckpoint(1_000, 900, 7, 123_456).encode()
    for at in range(2048, 2088):
        assert StoreCheckpoint.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


@pytest.mark.parametrize("data", [None, b"", b"\0" * 23, b"\xff" * 4096])
def test_a_checkpoint_that_cannot_be_read_says_nothing(data: bytes | None) -> None:
    assert StoreCheckpoint.decode(data) is None


FILES: list[tuple[str, Callable[[StateFiles, int], None], Callable[[StateFiles], Any]]] = [
    (
        "checkpoint",
        lambda files, n: files.write_checkpoint(StoreCheckpoint(n, n, n, n)),
        lambda files: files.read_checkpoint().complete_offset,
    ),
    (
        "queues.json",
        lambda files, n: files.write_queues(QueueTable(n, False, [("T", 0, n)])),
        lambda files: table.end_offset if (table := files.read_queues()) else None,
    ),
    (
        "index.json",
        lambda files, n: files.write_index(IndexTable(n, [])),
        lambda files: table.indexed_offset if (table := files.read_index()) else None,
    ),
]


def damages(data: bytes) -> Iterator[bytes | None]:
    """Missing, cut short anywhere, any byte changed; of a page only where something is."""
    yield None
    places = [at for at in range(len(data)) if data[at] or at < 64]
    for at in places:
        yield data[:at]
        # RocketMQ may change what is before our extension.
        if at >= 2048 or len(data) != 4096:
            yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize(("name", "write", "read"), FILES, ids=[name for name, _, _ in FILES])
def test_the_file_before_is_used_when_the_current_one_is_damaged(
    tmp_path: Path, name: str, write: Any, read: Any
) -> None:
    files = StateFiles(OsStorage(), str(tmp_path))
    write(files, 1_111)
    write(files, 2_222)
    path = tmp_path / name
    good = path.read_bytes()
    assert read(StateFiles(OsStorage(), str(tmp_path))) == 2_222
    for damaged in damages(good):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        # The last byte of a table is the end of its line.
        if damaged is not None and damaged.rstrip(b"\n") == good.rstrip(b"\n"):
            continue
        after = StateFiles(OsStorage(), str(tmp_path))
        assert read(after) == 1_111, damaged
    # The next one replaced does not put the damaged one in the place of the good one.
    write(after, 3_333)
    assert read(StateFiles(OsStorage(), str(tmp_path))) == 3_333
    path.unlink()
    assert read(StateFiles(OsStorage(), str(tmp_path))) == 1_111


@pytest.mark.parametrize(("name", "write", "read"), FILES, ids=[name for name, _, _ in FILES])
def test_a_write_that_finds_no_room_leaves_the_file_before(
    tmp_path: Path, name: str, write: Any, read: Any
) -> None:
    storage = RecordingStorage()
    files = StateFiles(storage, str(tmp_path))
    write(files, 1_111)
    storage.fail_at["replace_file"] = (0, OSError(errno.ENOSPC, "the disk is full"))
    with pytest.raises(OSError, match="the disk is full"):
        write(files, 2_222)
    assert read(StateFiles(OsStorage(), str(tmp_path))) == 1_111
    write(files, 3_333)
    assert read(StateFiles(OsStorage(), str(tmp_path))) == 3_333
    (tmp_path / name).unlink()
    assert read(StateFiles(OsStorage(), str(tmp_path))) == 1_111


def test_a_checkpoint_that_is_forgotten_is_so_in_both_files(tmp_path: Path) -> None:
    files = StateFiles(OsStorage(), str(tmp_path))
    for number in (1_111, 2_222):
        files.write_checkpoint(StoreCheckpoint(number, number, number, number))
    files.forget_checkpoint()
    assert files.read_checkpoint() == StoreCheckpoint(complete_offset=0)
    (tmp_path / "checkpoint").unlink()
    assert files.read_checkpoint() == StoreCheckpoint(complete_offset=0)


def test_the_table_of_queues_comes_back() -> None:
    table = QueueTable(end_offset=9, is_closed=True, queues=[("T", 0, 5), ("%RETRY%g", 1, 2)])
    assert QueueTable.decode(table.encode()) == table


def test_a_table_with_any_byte_changed_is_not_believed() -> None:
    data = QueueTable(end_offset=9, is_closed=False, queues=[("T", 0, 5)]).encode()
    for at in range(len(data) - 1):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert QueueTable.decode(changed) is None
    assert QueueTable.decode(None) is None
    assert QueueTable.decode(b"") is None


def test_notes_of_the_clock_are_read_back_unless_a_byte_has_changed() -> None:
    notes = ClockNotes(1_000, [Jump(700, 50), Jump(750, -40, is_stop=True)])
    data = notes.encode()
    assert ClockNotes.decode(data) == notes
    assert ClockNotes.decode(None) is None
    for at in range(len(data) - 1):
        assert ClockNotes.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
