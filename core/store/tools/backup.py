"""Backups of a store folder, which may be open, and restoring them.

Owns: what is copied in which order, the list of a backup's files. Must not touch: the copied
folder; how a start repairs (recovery).

A backup is like the folder after a crash, so that a start repairs it as such:

    config/, namesrv/, clock.json        copied first, so that progress is never ahead of the log
    checkpoint, index.json, queues.json  describe files that are copied after them
    index/, consumequeue/, all the rest  units and keys name records that are already in the log
    commitlog/                           up to its present end, followed by zeros
    backup.json                          the list of all files: without it this is not a backup

Invariants: everything acknowledged before the copy began is below the end that is found after it
began (except records in a write buffer, which reach the log within ``write_buffer_commit_ms``).
Holes in files stay holes, except in a restored log: an append to a mapped hole would fail on a full
disk. The backup is on disk before its list is.
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
# In this order; other files come between these and the log.
_FIRST: Final = ("config", "namesrv", "clock.json", "checkpoint", "index.json", "queues.json")
_LOG: Final = "commitlog"
# Not copied: files of the running process, what can be rebuilt, bytes taken out of the log.
_LEFT_OUT: Final = frozenset({"lock", "abort", reader_key.NAME, "gateway", "damaged", LIST})
# A broker that was promoted: a copy of it begins as its configuration says.
_LEFT_OUT_BELOW: Final = frozenset({"config/role.json", "config/role.json.bak"})
# Each of the small files is missing for a moment while it is replaced.
_REPLACED_WITHIN_S: Final = 1.0
_CHUNK_BYTES: Final = 4 << 20
_ZEROS: Final = bytes(1 << 20)

Progress = Callable[[int, int], None]  # (bytes done, bytes of the log)


class BackupFile(msgspec.Struct, frozen=True):
    """One file; ``crc32c`` covers all its bytes, with holes as zeros."""

    path: str
    size: int
    crc32c: int


class Backup(msgspec.Struct, frozen=True):
    """The content of a backup: the log in [begin_offset, end_offset), and its files."""

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
    """Copy a store folder, open or not, to ``target``, which must be empty or not exist.

    StoreError if that fails; ``target`` is then not a backup.
    """
    if not os.path.isdir(f"{store}/{_LOG}"):
        raise StoreError(f"{store} is not a store: it has no commitlog directory")
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
    """Return the list of a backup; StoreError if it is not a backup, or was not finished."""
    try:
        with open(f"{backup}/{LIST}", "rb") as listed:
            found = msgspec.json.decode(listed.read(), type=Backup)
    except FileNotFoundError as exc:
        raise StoreError(f"{backup} is not a finished backup: it has no {LIST}") from exc
    except msgspec.DecodeError as exc:
        raise StoreError(f"{backup}/{LIST} cannot be read: {exc}") from exc
    if found.version != VERSION:
        raise StoreError(f"{backup} has version {found.version}, but this release reads {VERSION}")
    for file in found.files:
        if os.path.isabs(file.path) or ".." in file.path.split("/"):
            raise StoreError(f"{backup}/{LIST} names a file outside the backup: {file.path!r}")
    return found


def verify(backup: str, progress: Progress = lambda done, total: None) -> list[str]:
    """Return the faults of a backup as texts; empty if a store can be restored from it."""
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
    """Copy a backup to ``store``, which must be empty or not exist; the next start repairs it.

    StoreError if a file has changed since the backup was made. A start refuses a folder whose
    restore was not completed.
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
            raise StoreError(f"{source} has changed since the backup was made")
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
        yield f"the log ends at {report.end_offset}, but ended at {found.end_offset}"


def _paths_before_the_log(store: str) -> Iterator[str]:
    """Yield the paths to copy, relative to the folder; a directory is read when its turn comes."""
    names = sorted(set(os.listdir(store)) - _LEFT_OUT - {_LOG})
    # A file that is being replaced may be missing now; its previous copy implies its name too.
    first = [name for word in _FIRST for name in (word, f"{word}.bak") if name in names]
    first += [word for word in _FIRST if word not in names]
    for name in [*first, *(name for name in names if name not in first)]:
        if os.path.isdir(f"{store}/{name}"):
            for folder, below, files in os.walk(f"{store}/{name}"):
                below.sort()
                for file in sorted(files):
                    path = os.path.relpath(f"{folder}/{file}", store)
                    if not file.endswith(".tmp") and path not in _LEFT_OUT_BELOW:
                        yield path
        elif not name.endswith(".tmp"):
            yield name


def _copy_if_there(source: str, target: str, path: str) -> BackupFile | None:
    """Copy a file that may be removed or replaced meanwhile."""
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
    """Copy the log up to its present end; return where the copy begins and ends."""
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
            # The file was expired, and so were those before it.
            for gone in [one for one in copied if one.startswith(f"{_LOG}/")]:
                os.remove(f"{target}/{gone}")
                del copied[gone]
            begin = file_begin + size
        progress(min(end, file_begin + size) - begin, end - begin)
    return begin, end


def _copy_file(source: str, target: str, path: str, used: int | None = None) -> BackupFile:
    """Copy a file, or its first ``used`` bytes followed by zeros; holes stay holes."""
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
    """Allocate real blocks for a file of the log, as the store does."""
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
                return f"{path} has {size} bytes, but had {expected.size}"
            crc = _Crc()
            for at, data in _pieces(reader.fileno(), size):
                crc.add(at, data)
    except OSError as exc:
        return f"{path} cannot be read: {exc.strerror or exc}"
    is_same = crc.up_to(size) == expected.crc32c
    return None if is_same else f"{path} has changed since the backup was made"


class _Crc:
    """The CRC-32C of a file whose pieces are added in order, with holes between them."""

    def __init__(self) -> None:
        self._value = 0
        self._at = 0

    def add(self, at: int, data: bytes) -> None:
        self._value = crc32c(data, self.up_to(at))
        self._at = at + len(data)

    def up_to(self, end: int) -> int:
        """Return the CRC of all bytes below ``end``, which is after the last piece."""
        while self._at < end:
            zeros = _ZEROS[: end - self._at]
            self._value = crc32c(zeros, self._value)
            self._at += len(zeros)
        return self._value


def _pieces(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position, bytes) of the parts of a file that are not holes, up to ``end``."""
    at = 0
    while at < end:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            hole = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError:
            return  # ENXIO: only a hole is left
        while at < min(hole, end):
            data = os.pread(descriptor, min(_CHUNK_BYTES, min(hole, end) - at), at)
            if not data:
                return  # the file was truncated meanwhile
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
