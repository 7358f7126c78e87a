"""Copies of a store folder, made while the store may be open, and put back.

Owns: what is copied in which order, the list of a backup's files. Must not touch: the folder that
is copied; how a start repairs (recovery).

A backup is a folder that a crash could have left, so that a start repairs it as such:

    config/, namesrv/, clock.json        progress is never ahead of the log: they go first
    checkpoint, index.json, queues.json  what they claim is in files that are copied after them
    index/, consumequeue/, all the rest  units and keys name records that are in the log already
    commitlog/                           up to the end that it has now, and zeros behind it
    backup.json                          the list of all files: without it this is no backup

Invariants: what was acknowledged before the copy began is below the end that is found after it
began (records in a write buffer are not: they reach the log within ``write_buffer_commit_ms``).
Holes in files stay holes, but for a log that is put back: what is appended to a mapped hole finds
no room when the disk is full. The backup is on the disk before its list is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from crc32c import crc32c

from motelog.core import reader_key
from motelog.core.errors import StoreError
from motelog.core.private_files import make_folders, open_private
from motelog.core.store.state.checkpoint import RESTORING
from motelog.core.store.tools.inspection import LogWalk, StoreFolder, plan_repair

LIST: Final = "backup.json"
VERSION: Final = 1
# In this order; what is not named comes between them and the log.
_FIRST: Final = ("config", "namesrv", "clock.json", "checkpoint", "index.json", "queues.json")
_LOG: Final = "commitlog"
# Of the process that has the store open; what can be made anew; what was taken out of the log.
_LEFT_OUT: Final = frozenset({"lock", "abort", reader_key.NAME, "gateway", "damaged", LIST})
# Each of the small files is gone for a moment when it is replaced.
_REPLACED_WITHIN_S: Final = 1.0
_CHUNK_BYTES: Final = 4 << 20
_ZEROS: Final = bytes(1 << 20)

Progress = Callable[[int, int], None]  # (bytes done, bytes of the log)


class BackupFile(msgspec.Struct, frozen=True):
    """One file; ``crc32c`` is of all its bytes, holes being zeros."""

    path: str
    size: int
    crc32c: int


class Backup(msgspec.Struct, frozen=True):
    """What a backup holds: the log in [begin_offset, end_offset), and its files."""

    version: int
    store: str
    began_ms: int
    ended_ms: int
    begin_offset: int
    end_offset: int
    files: tuple[BackupFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)


def create(store: str, target: str, progress: Progress = lambda done, total: None) -> Backup:
    """Copy a store folder, open or not, to ``target``, which must be empty or not there.

    StoreError if it cannot be; what is in ``target`` then is no backup.
    """
    if not os.path.isdir(f"{store}/{_LOG}"):
        raise StoreError(f"{store} holds no store: it has no commitlog directory")
    _make_empty(target)
    began_ms = time.time_ns() // 1_000_000
    copied: dict[str, BackupFile] = {}
    for path in _paths_before_the_log(store):
        found = _copy_if_there(f"{store}/{path}", f"{target}/{path}", path)
        if found is not None:
            copied[path] = found
    begin, end = _copy_log(store, target, copied, progress)
    # The folder was not closed: a start begins at the checkpoint. No process has the number 0.
    copied["abort"] = _write_file(f"{target}/abort", "abort", b"0")
    _sync_directories(target)
    ended_ms = time.time_ns() // 1_000_000
    files = tuple(copied[path] for path in sorted(copied))
    backup = Backup(VERSION, os.path.abspath(store), began_ms, ended_ms, begin, end, files)
    _write_file(f"{target}/{LIST}", LIST, msgspec.json.format(msgspec.json.encode(backup)))
    _sync_directory(target)
    return backup


def read_list(backup: str) -> Backup:
    """Return what a backup says that it holds; StoreError if it is none, or was not finished."""
    try:
        with open(f"{backup}/{LIST}", "rb") as listed:
            found = msgspec.json.decode(listed.read(), type=Backup)
    except FileNotFoundError as exc:
        raise StoreError(f"{backup} is no finished backup: it has no {LIST}") from exc
    except msgspec.DecodeError as exc:
        raise StoreError(f"{backup}/{LIST} cannot be read: {exc}") from exc
    if found.version != VERSION:
        raise StoreError(
            f"{backup} is of version {found.version}, and this release reads {VERSION}"
        )
    for file in found.files:
        if os.path.isabs(file.path) or ".." in file.path.split("/"):
            raise StoreError(f"{backup}/{LIST} names a file outside the backup: {file.path!r}")
    return found


def verify(backup: str, progress: Progress = lambda done, total: None) -> list[str]:
    """Return what is wrong with a backup, in words; empty if a store can be made of it."""
    found = read_list(backup)
    faults = []
    done = 0
    for file in found.files:
        fault = _fault_of(f"{backup}/{file.path}", file)
        if fault is not None:
            faults.append(fault)
        done += file.size
        progress(done, found.size_bytes)
    if not faults:
        faults += _faults_of_store(backup, found)
    return faults


def restore(backup: str, store: str, progress: Progress = lambda done, total: None) -> Backup:
    """Copy a backup to ``store``, which must be empty or not there; the next start repairs it.

    StoreError if a file is not what it was when the backup was made. No start takes a folder that
    was not restored to its end.
    """
    found = read_list(backup)
    _make_empty(store)
    _write_file(f"{store}/{RESTORING}", RESTORING, b"")
    _sync_directory(store)
    done = 0
    for file in found.files:
        source = f"{backup}/{file.path}"
        try:
            copied = _copy_file(source, f"{store}/{file.path}", file.path)
            if file.path.startswith(f"{_LOG}/"):
                _allocate(f"{store}/{file.path}", file.size)
        except FileNotFoundError as exc:
            raise StoreError(f"{source} is missing") from exc
        if copied != file:
            raise StoreError(f"{source} is not what it was when the backup was made")
        done += file.size
        progress(done, found.size_bytes)
    _sync_directories(store)
    os.remove(f"{store}/{RESTORING}")
    _sync_directory(store)
    return found


def _faults_of_store(backup: str, found: Backup) -> Iterator[str]:
    folder = StoreFolder(backup)
    try:
        report, _ = plan_repair(folder)
    finally:
        folder.close()
    for damage in report.damage:
        yield f"{damage.path}, byte {damage.offset_bytes}: {damage.size} bytes are not records"
    if report.end_offset != found.end_offset:
        yield f"the log ends at {report.end_offset}, and ended at {found.end_offset}"


def _paths_before_the_log(store: str) -> Iterator[str]:
    """Yield the paths to copy, below the folder; each directory is read when it is its turn."""
    names = sorted(set(os.listdir(store)) - _LEFT_OUT - {_LOG})
    # A replaced file may be gone just now; its copy of before is known by its name as well.
    first = [name for word in _FIRST for name in (word, f"{word}.bak") if name in names]
    first += [word for word in _FIRST if word not in names]
    for name in [*first, *(name for name in names if name not in first)]:
        if os.path.isdir(f"{store}/{name}"):
            for folder, below, files in os.walk(f"{store}/{name}"):
                below.sort()
                for file in sorted(files):
                    if not file.endswith(".tmp"):
                        yield os.path.relpath(f"{folder}/{file}", store)
        elif not name.endswith(".tmp"):
            yield name


def _copy_if_there(source: str, target: str, path: str) -> BackupFile | None:
    """Copy a file that may be removed, or be replaced, while that is done."""
    deadline = time.monotonic() + _REPLACED_WITHIN_S
    while True:
        try:
            return _copy_file(source, target, path)
        except FileNotFoundError:
            is_replaced = os.path.exists(f"{source}.bak") and time.monotonic() < deadline
            if not is_replaced:
                return None
        time.sleep(0.01)


def _copy_log(
    store: str, target: str, copied: dict[str, BackupFile], progress: Progress
) -> tuple[int, int]:
    """Copy the log up to its end as it is now; return where the copy begins and ends."""
    folder = StoreFolder(store)
    try:
        files = [(file.begin, file.size) for file in folder.log.files]
        known = folder.checkpoint.complete_offset or 0
        walk = LogWalk(folder, lambda done, total: None, begin=max(known, folder.begin_offset))
        for _ in walk.places():
            pass
        end = walk.end_offset
    finally:
        folder.close()
    make_folders(f"{target}/{_LOG}")
    begin = files[0][0] if files else 0
    for file_begin, size in files:
        if file_begin >= end:
            break
        path = f"{_LOG}/{file_begin:020d}"
        try:
            used = min(size, end - file_begin)
            copied[path] = _copy_file(f"{store}/{path}", f"{target}/{path}", path, used)
        except FileNotFoundError:
            # It was too old, and so were those before it.
            for gone in [one for one in copied if one.startswith(f"{_LOG}/")]:
                os.remove(f"{target}/{gone}")
                del copied[gone]
            begin = file_begin + size
        progress(min(end, file_begin + size) - begin, end - begin)
    return begin, end


def _copy_file(source: str, target: str, path: str, used: int | None = None) -> BackupFile:
    """Copy a file, or its first ``used`` bytes and zeros behind them; holes stay holes."""
    make_folders(os.path.dirname(target))
    with open(source, "rb", buffering=0) as reader:
        size = os.fstat(reader.fileno()).st_size
        with open(target, "wb", buffering=0, opener=open_private) as writer:
            crc = _Crc()
            for at, data in _pieces(reader.fileno(), size if used is None else used):
                _write_at(writer.fileno(), data, at)
                crc.add(at, data)
            os.ftruncate(writer.fileno(), size)
            os.fsync(writer.fileno())
    return BackupFile(path, size, crc.up_to(size))


def _allocate(path: str, size: int) -> None:
    """Give a file of the log real blocks, as its store had done."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fault_of(path: str, expected: BackupFile) -> str | None:
    try:
        with open(path, "rb", buffering=0) as reader:
            size = os.fstat(reader.fileno()).st_size
            if size != expected.size:
                return f"{path} has {size} bytes, and had {expected.size}"
            crc = _Crc()
            for at, data in _pieces(reader.fileno(), size):
                crc.add(at, data)
    except OSError as exc:
        return f"{path} cannot be read: {exc.strerror or exc}"
    is_same = crc.up_to(size) == expected.crc32c
    return None if is_same else f"{path} is not what it was when the backup was made"


class _Crc:
    """The CRC-32C of a file whose pieces come in order, with holes between them."""

    def __init__(self) -> None:
        self._value = 0
        self._at = 0

    def add(self, at: int, data: bytes) -> None:
        self._value = crc32c(data, self.up_to(at))
        self._at = at + len(data)

    def up_to(self, end: int) -> int:
        """Return the CRC of all bytes below ``end``, which is behind the last piece."""
        while self._at < end:
            zeros = _ZEROS[: end - self._at]
            self._value = crc32c(zeros, self._value)
            self._at += len(zeros)
        return self._value


def _pieces(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield place and bytes of what is no hole in a file, up to ``end``."""
    at = 0
    while at < end:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            hole = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError:
            return  # ENXIO: there is only a hole left
        while at < min(hole, end):
            data = os.pread(descriptor, min(_CHUNK_BYTES, min(hole, end) - at), at)
            if not data:
                return  # the file was cut meanwhile
            yield at, data
            at += len(data)


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _write_file(target: str, path: str, data: bytes) -> BackupFile:
    with open(target, "wb", opener=open_private) as writer:
        writer.write(data)
        writer.flush()
        os.fsync(writer.fileno())
    return BackupFile(path, len(data), crc32c(data))


def _make_empty(directory: str) -> None:
    make_folders(directory)
    if os.listdir(directory):
        raise StoreError(f"{directory} is not empty")


def _sync_directories(root: str) -> None:
    for folder, _, _ in os.walk(root):
        _sync_directory(folder)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
