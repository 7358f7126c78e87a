"""OsStorage: what the store relies on of the file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.store.files import OsStorage


def test_a_log_file_has_all_its_blocks_and_only_zeros(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "f")
    storage.create_file(path, 1 << 20, sparse=False)
    assert os.stat(path).st_blocks * 512 >= 1 << 20
    region = storage.map_file(path, 1 << 20)
    assert bytes(region.view) == bytes(1 << 20)
    region.close()


def test_a_sparse_file_gets_blocks_where_they_are_reserved(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "f")
    storage.create_file(path, 1 << 20, sparse=True)
    assert os.stat(path).st_blocks == 0
    region = storage.map_file(path, 1 << 20)
    region.view[0:4] = b"here"
    region.reserve(0, 16_384)
    assert 16_384 <= os.stat(path).st_blocks * 512 < 1 << 20
    assert bytes(region.view[:4]) == b"here"
    region.close()


def test_data_ranges_cover_what_was_written(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "f")
    storage.create_file(path, 1 << 22, sparse=False)
    region = storage.map_file(path, 1 << 22)
    region.view[1 << 21] = 7
    region.sync()
    assert any(begin <= 1 << 21 < end for begin, end in region.data_ranges(0))
    assert all(begin >= (1 << 21) + 1 for begin, _ in region.data_ranges((1 << 21) + 1))
    region.close()


def test_a_file_shorter_than_its_map_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"short")
    with pytest.raises(OSError, match="shorter"):
        OsStorage().map_file(str(tmp_path / "f"), 4096)


def test_a_replaced_file_is_the_new_one_and_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "f")
    assert storage.read_file(path) is None
    storage.replace_file(path, b"old")
    storage.replace_file(path, b"new")
    assert storage.read_file(path) == b"new"
    assert [entry.name for entry in storage.list_directory(str(tmp_path))] == ["f"]


def test_a_file_that_cannot_be_allocated_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on the file system
        OsStorage().create_file(str(tmp_path / "f"), 1 << 62, sparse=False)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_once_until_it_is_released(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "lock")
    lock = storage.lock(path)
    assert lock is not None
    assert storage.lock(path) is None
    lock.release()
    again = storage.lock(path)
    assert again is not None
    again.release()


def test_a_directory_lists_by_name_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    storage = OsStorage()
    storage.make_directory(str(tmp_path / "b" / "c"))
    (tmp_path / "a").write_bytes(b"123")
    entries = [(e.name, e.size, e.is_directory) for e in storage.list_directory(str(tmp_path))]
    assert entries == [("a", 3, False), ("b", 0, True)]
    assert storage.list_directory(str(tmp_path / "none")) == []


def test_disk_usage_counts_as_df_does(tmp_path: Path) -> None:
    usage = OsStorage().disk_usage(str(tmp_path))
    assert 0 < usage.used_percent < 100
    assert usage.free_bytes > 0
