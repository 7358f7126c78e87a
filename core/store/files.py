"""The operating system as the store sees it: the one module of the store that calls it.

Owns: Storage and Region (the seam a recording or failing layer takes), and their real versions over
open, mmap, fallocate, fdatasync, rename, flock. Must not touch: record formats, policy, trio.

Two kinds of file. A CommitLog file gets real blocks for its whole size before it is mapped, so
that no store through the map can hit a full disk (which would be SIGBUS, not an error). A
ConsumeQueue file is sparse, because there are thousands; ``reserve`` gets it real blocks before
they are touched.
Errors are OSError; the callers translate them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory; ``size`` is 0 for a directory."""

    name: str
    size: int
    is_directory: bool


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the disk is, as ``df`` counts it: blocks that only root may use are not free."""

    used_percent: float
    free_bytes: int


class Region(Protocol):
    """One file of fixed size, mapped for reading and writing."""

    view: memoryview

    def reserve(self, begin: int, end: int) -> None:
        """Give [begin, end) real blocks; what is in it stays."""
        ...

    def sync(self) -> None:
        """Block until all that was written through the view is on the disk."""
        ...

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from ``begin`` on that may hold something else than zeros."""
        ...

    def close(self) -> None:
        """Unmap; the view must not be used any more."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class Storage(Protocol):
    """What the store asks of a file system."""

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        """Have a directory; ``durable`` syncs the names that lead to it."""
        ...

    def list_directory(self, path: str) -> list[Entry]:
        """Return the entries sorted by name; none if there is no such directory."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, None if there is no such file."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Write, sync and rename, so that after a crash the old or the new content is there."""
        ...

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        """Make a zero-filled file that appears under its name only when it has its size.

        Its own content and size are synced, its directory is not.
        """
        ...

    def map_file(self, path: str, size: int) -> Region: ...
    def sync_file(self, path: str) -> None:
        """Block until all that was written to a file is on the disk, mapped here or not."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def remove_file(self, path: str) -> None: ...
    def rename(self, path: str, new_path: str) -> None: ...
    def lock(self, path: str) -> Lock | None:
        """Take the lock file, None when another process (or this one) has it."""
        ...

    def disk_usage(self, path: str) -> DiskUsage: ...


class OsStorage:
    """The real file system."""

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        above = [os.path.dirname(os.path.abspath(path))]
        while not os.path.exists(above[-1]):
            above.append(os.path.dirname(above[-1]))
        os.makedirs(path, mode=0o700, exist_ok=True)
        for directory in above if durable else ():
            self.sync_directory(directory)

    def list_directory(self, path: str) -> list[Entry]:
        try:
            with os.scandir(path) as found:
                entries = [
                    Entry(e.name, 0 if e.is_dir() else e.stat().st_size, e.is_dir()) for e in found
                ]
        except FileNotFoundError:
            return []
        return sorted(entries, key=lambda e: e.name)

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY
        with _opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        os.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        temporary = path + TEMPORARY
        try:
            with _opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
                if sparse:
                    os.ftruncate(fd, size)
                else:
                    # Unlike ftruncate this takes the blocks; unlike writing it touches no page.
                    os.posix_fallocate(fd, 0, size)
                os.fsync(fd)
            os.rename(temporary, path)
        except OSError:
            # The blocks of a half-made file would keep a full disk full.
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise

    def map_file(self, path: str, size: int) -> Region:
        return OsRegion(path, size)

    def sync_file(self, path: str) -> None:
        with _opened(path, os.O_RDWR) as fd:
            os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def remove_file(self, path: str) -> None:
        os.unlink(path)

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def lock(self, path: str) -> Lock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return _OsLock(fd)

    def disk_usage(self, path: str) -> DiskUsage:
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        total = used + stat.f_bavail
        return DiskUsage(100 * used / total if total else 100.0, stat.f_bavail * stat.f_frsize)


class OsRegion:
    """A mapped file and its descriptor.

    The descriptor stays open so that sync hears of every error since the file was opened: one
    opened later would miss an error that somebody else's sync has already been told.
    """

    def __init__(self, path: str, size: int, *, is_private: bool = False) -> None:
        self._fd = os.open(path, (os.O_RDONLY if is_private else os.O_RDWR) | os.O_CLOEXEC)
        try:
            # Access beyond the end of a file is SIGBUS, so the size is looked at before each map.
            if os.fstat(self._fd).st_size < size:
                raise OSError(errno.EIO, f"the file is shorter than {size} bytes", path)
            access = mmap.ACCESS_COPY if is_private else mmap.ACCESS_WRITE
            self._map = mmap.mmap(self._fd, size, access=access)
        except OSError:
            os.close(self._fd)
            self._fd = -1
            raise
        self.view = memoryview(self._map)

    def reserve(self, begin: int, end: int) -> None:
        os.posix_fallocate(self._fd, begin, end - begin)

    def sync(self) -> None:
        # Not mmap.flush: in Python 3.11 it holds the interpreter's lock while the disk works.
        os.fdatasync(self._fd)

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        size = len(self.view)
        at = begin
        while at < size:
            try:
                start = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError as exc:
                if exc.errno == errno.ENXIO:
                    return
                raise
            at = min(os.lseek(self._fd, start, os.SEEK_HOLE), size)
            if start < at:
                yield start, at

    def close(self) -> None:
        self.view.release()
        self._map.close()
        os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        # A region whose file was removed is not closed but let go of, so that nobody who still
        # reads it is left with an unmapped view: the map goes with the last of them.
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


class PrivateRegion(OsRegion):
    """A mapped file that does not change: what is written to the view goes with the process."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path, size, is_private=True)

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        pass


class ScratchRegion:
    """A file that is on no disk; it takes memory where it is written to."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size))

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self.view):
            yield begin, len(self.view)

    def close(self) -> None:
        """Keep the content: the file may be mapped again."""


class _OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
