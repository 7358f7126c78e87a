"""OsStorage: the properties of the file system that the store relies on."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from motelog.core.store.disk.files import OsStorage


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


def test_prepared_pages_keep_what_is_in_them(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "f")
    storage.create_file(path, 1 << 20, sparse=False)
    region = storage.map_file(path, 1 << 20)
    region.view[5000:5004] = b"here"
    region.prepare(4097, 1 << 20)
    assert bytes(region.view[5000:5004]) == b"here"
    assert any(region.data_ranges((1 << 20) - 4096)), "the last page was touched"
    region.close()
    again = storage.map_file(path, 1 << 20, is_read_only=True)
    assert bytes(again.view[5000:5005]) == b"here\0"
    with pytest.raises(OSError, match="read-only"):
        again.reserve(0, 4096)
    again.close()


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


def test_a_file_that_goes_while_its_directory_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b.tmp", "c"):
        (tmp_path / name).write_bytes(b"x")
    scan = os.scandir

    class Scanned(list[os.DirEntry[str]], AbstractContextManager[None]):
        def __exit__(self, *_: object) -> None:
            pass

    def scan_and_rename(path: str) -> Scanned:
        with scan(path) as found:
            entries = Scanned(found)
        (tmp_path / "b.tmp").rename(tmp_path / "b")
        return entries

    monkeypatch.setattr(os, "scandir", scan_and_rename)
    assert [entry.name for entry in OsStorage().list_directory(str(tmp_path))] == ["a", "c"]


def test_a_link_that_leads_nowhere_is_no_file_that_has_gone(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000").symlink_to(tmp_path / "on another disk")
    with pytest.raises(FileNotFoundError, match="00000000000000000000"):
        OsStorage().list_directory(str(tmp_path))


def test_disk_usage_counts_as_df_does(tmp_path: Path) -> None:
    usage = OsStorage().disk_usage(str(tmp_path))
    assert 0 < usage.used_percent < 100
    assert usage.free_bytes > 0


def test_pieces_of_files_are_written_read_and_synced(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "T" / "0" / "f")
    storage.write_files([(path, 20, b"unit"), (path, 4096 * 9, b"far")], 1 << 20)
    file = storage.open_file(path)
    assert file.read(20, 5) == b"unit\0"
    assert file.read((1 << 20) - 1, 9) == b"\0"
    assert list(file.data_ranges(4096)) == [(4096 * 9, 4096 * 10)]
    file.close()
    storage.sync_files([path, str(tmp_path / "T")])
    disk = storage.file_system(str(tmp_path))
    if disk is not None:
        disk.sync()
        disk.close()


def test_a_piece_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError, match="f/x"):
        OsStorage().write_files([(str(tmp_path / "f" / "x"), 0, b"unit")], 20)
    with pytest.raises(FileNotFoundError, match="absent"):
        OsStorage().sync_files([str(tmp_path / "absent")])


def test_what_is_on_the_disk_alone_is_said_and_loaded(tmp_path: Path) -> None:
    storage = OsStorage()
    path = str(tmp_path / "f")
    Path(path).write_bytes(os.urandom(1 << 22))
    ranges = [(5_000, 6_000), (1_000_000, 1_200_000), (4_000_000, 1 << 22)]
    positions = [5_000, 5_999, *range(1_000_000, 1_200_000, 4_096), 4_000_000, (1 << 22) - 1]
    assert storage.is_cached(path, positions)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if storage.is_cached(path, positions):
        pytest.skip("this file system keeps its files in memory, or cannot tell")
    storage.load(path, ranges)
    assert storage.is_cached(path, positions)


def test_nobody_waits_for_a_file_that_is_gone(tmp_path: Path) -> None:
    assert OsStorage().is_cached(str(tmp_path / "gone"), [0])


def test_a_region_closes_its_descriptor_once_whatever_close_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    closed: list[int] = []
    close = os.close

    def fail(fd: int) -> None:
        closed.append(fd)
        close(fd)
        raise OSError(errno.EIO, "close failed")

    region = OsStorage().map_file(str(tmp_path / "file"), 4096)
    monkeypatch.setattr("motelog.core.store.disk.files.os.close", fail)
    with pytest.raises(OSError, match="close failed"):
        region.close()
    del region
    assert len(closed) == 1
