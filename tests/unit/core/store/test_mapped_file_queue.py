"""The row of CommitLog files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.store.mapped_file_queue import MappedFileQueue
from tests.support.stores import RecordingStorage

SIZE = 8192


def queue(folder: Path, storage: RecordingStorage | None = None) -> MappedFileQueue:
    made = MappedFileQueue(storage or RecordingStorage(), str(folder), SIZE)
    made.load()
    return made


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_files_follow_one_another_and_are_found_by_offset(tmp_path: Path) -> None:
    files = queue(tmp_path)
    assert files.find(0) is None
    added = [files.add() for _ in range(3)]
    assert [f.begin for f in added] == [0, SIZE, 2 * SIZE]
    assert names(tmp_path) == [f"{i * SIZE:020d}" for i in range(3)]
    for offset, expected in ((0, 0), (SIZE - 1, 0), (SIZE, 1), (3 * SIZE - 1, 2)):
        assert files.find(offset) is added[expected]
    assert files.find(-1) is None
    assert files.find(3 * SIZE) is None
    assert files.between(SIZE - 1, SIZE + 1) == added[:2]
    assert files.between(SIZE, SIZE) == []
    files.close()
    again = queue(tmp_path)
    assert [f.begin for f in again.files] == [0, SIZE, 2 * SIZE]
    again.close()


def test_a_file_made_ahead_is_used_next_and_removed_if_it_never_was(tmp_path: Path) -> None:
    files = queue(tmp_path)
    files.add()
    files.make_ahead()
    files.make_ahead()
    files.ensure_ahead(1)
    assert names(tmp_path) == [f"{0:020d}", f"{SIZE:020d}"]
    assert len(files.files) == 1
    assert files.add().begin == SIZE
    files.make_ahead()
    files.close()
    assert names(tmp_path) == [f"{0:020d}", f"{SIZE:020d}"]


def test_a_failure_ahead_of_need_is_tried_again_where_it_can_be_told(tmp_path: Path) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    files.add()
    storage.fail_at["create_file"] = (0, OSError("ahead"))
    files.make_ahead()
    assert files.add().begin == SIZE
    storage.fail_at["create_file"] = (0, OSError("in need"))
    with pytest.raises(OSError, match="in need"):
        files.add()
    assert files.add().begin == 2 * SIZE
    files.close()
