"""The row of CommitLog files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from motelog.core.errors import NextFileError
from motelog.core.store.log.mapped_file_queue import MappedFileQueue
from tests.support.slow_disk import SlowDisk
from tests.support.stores import RecordingStorage

SIZE = 8192


def queue(folder: Path, storage: RecordingStorage | None = None) -> MappedFileQueue:
    made = MappedFileQueue(storage or RecordingStorage(), str(folder), SIZE, mapped_max=2)
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
    storage.fail_at["create_file"] = (0, OSError(errno.ENOSPC, "ahead"))
    files.make_ahead()
    assert files.add().begin == SIZE
    storage.fail_at["create_file"] = (0, OSError("in need"))
    with pytest.raises(OSError, match="in need"):
        files.add()
    assert files.add().begin == 2 * SIZE
    files.close()


def test_a_broken_disk_ahead_of_need_is_not_tried_again(tmp_path: Path) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    files.add()
    storage.fail_at["sync_directory"] = (0, OSError(errno.EIO, "ahead"))
    files.make_ahead()
    with pytest.raises(OSError, match="ahead"):
        files.add()


def test_full_files_on_the_disk_are_mapped_read_only_the_others_for_writing(tmp_path: Path) -> None:
    files = queue(tmp_path)
    added = [files.add() for _ in range(4)]
    held = added[1].view
    held[0:3] = b"one"
    files.sync(SIZE, 2 * SIZE + 100)
    assert [file.view.readonly for file in added] == [False, True, False, False]
    # Whoever holds the old map reads on in it.
    assert bytes(held[:3]) == bytes(added[1].view[:3]) == b"one"
    with pytest.raises(TypeError):
        added[1].view[0] = 1
    added[1].writable().view[0:3] = b"two"
    assert bytes(held[:3]) == b"two"
    files.close()


def test_files_looked_into_are_mapped_a_few_at_a_time(tmp_path: Path) -> None:
    files = queue(tmp_path)
    for number in range(6):
        files.add().writable().view[0] = number
    files.sync(0, 6 * SIZE)
    files.close()
    files = queue(tmp_path)
    assert mapped(files) == []
    held = files.files[5].view
    for _ in range(2):
        assert [file.view[0] for file in files.files] == [0, 1, 2, 3, 4, 5]
        assert mapped(files) == [4, 5]
    # The one looked into last stays.
    _ = files.files[4].view
    _ = files.files[0].view
    assert mapped(files) == [0, 4]
    assert held[0] == 5
    files.close()
    assert mapped(files) == []


def mapped(files: MappedFileQueue) -> list[int]:
    return [file.begin // SIZE for file in files.files if file._region is not None]


def test_a_read_only_file_costs_one_descriptor(tmp_path: Path) -> None:
    files = queue(tmp_path)
    files.add()
    files.sync(0, SIZE)
    before = len(os.listdir("/proc/self/fd"))
    assert files.files[0].view[0] == 0
    assert len(os.listdir("/proc/self/fd")) == before + 1
    files.files[0].let_go()
    assert len(os.listdir("/proc/self/fd")) == before
    files.close()


def test_a_file_written_by_an_earlier_start_is_synced_by_name(tmp_path: Path) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    path = files.add().path
    files.sync(0, SIZE)
    assert ("sync", path) in storage.calls
    files.close()
    files = queue(tmp_path, storage)
    assert files.files[0].view[0] == 0
    files.sync(0, SIZE)
    assert storage.calls[-1] == ("sync_file", path)
    files.close()


def made(files: MappedFileQueue) -> None:
    """Return when the worker has done what it was asked for."""
    making = files._ahead._making
    assert making is not None
    making.exception(timeout=10)


def test_who_may_not_wait_is_refused_until_a_worker_has_made_the_file(tmp_path: Path) -> None:
    disk = SlowDisk()
    files = MappedFileQueue(disk, str(tmp_path / "commitlog"), SIZE, mapped_max=2)
    files.load()
    files.add()
    disk.may_make.clear()
    for _ in range(3):
        with pytest.raises(NextFileError, match="not ready yet"):
            files.ensure_ahead(1, may_wait=False)
    disk.may_make.set()
    made(files)
    files.ensure_ahead(1, may_wait=False)
    # One attempt, whoever asked.
    assert len(disk.making) == 2
    assert files.add().begin == SIZE
    files._check()
    files.close()


def test_who_needs_several_files_at_once_gets_them_from_one_attempt(tmp_path: Path) -> None:
    files = queue(tmp_path)
    files.add()
    with pytest.raises(NextFileError):
        files.ensure_ahead(3, may_wait=False)
    made(files)
    files.ensure_ahead(3, may_wait=False)
    assert [files.add().begin for _ in range(3)] == [SIZE, 2 * SIZE, 3 * SIZE]
    files._check()
    files.close()


def test_an_attempt_ahead_of_need_that_found_no_room_refuses_nobody(tmp_path: Path) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    files.add()
    storage.fail_at["create_file"] = (0, OSError(errno.ENOSPC, "no space"))
    files.make_ahead()
    made(files)
    with pytest.raises(NextFileError):
        files.ensure_ahead(1, may_wait=False)
    made(files)
    files.ensure_ahead(1, may_wait=False)
    assert files.add().begin == SIZE
    files.close()


def test_an_attempt_that_found_no_room_refuses_one_batch_and_is_made_again(tmp_path: Path) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    files.add()
    storage.fail_at["create_file"] = (0, OSError(errno.ENOSPC, "no space"))
    with pytest.raises(NextFileError):
        files.ensure_ahead(1, may_wait=False)
    made(files)
    with pytest.raises(OSError, match="no space"):
        files.ensure_ahead(1, may_wait=False)
    made(files)
    files.ensure_ahead(1, may_wait=False)
    assert files.add().begin == SIZE
    files.close()


def test_what_was_made_of_several_files_is_kept_when_there_is_no_room_for_all(
    tmp_path: Path,
) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    files.add()
    storage.fail_at["create_file"] = (1, OSError(errno.ENOSPC, "no space"))
    with pytest.raises(NextFileError):
        files.ensure_ahead(2, may_wait=False)
    made(files)
    files.ensure_ahead(1, may_wait=False)
    assert files.add().begin == SIZE
    files._check()
    files.close()


def test_a_broken_disk_comes_as_it_is_to_who_may_not_wait(tmp_path: Path) -> None:
    storage = RecordingStorage()
    files = queue(tmp_path, storage)
    files.add()
    storage.fail_at["create_file"] = (0, OSError(errno.EIO, "broken"))
    files.make_ahead()
    made(files)
    with pytest.raises(OSError, match="broken"):
        files.ensure_ahead(1, may_wait=False)
    assert len([call for call, _ in storage.calls if call == "create_file"]) == 2
    files.close()
