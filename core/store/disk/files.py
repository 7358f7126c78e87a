"""The operating system as the store sees it: no other module of the store calls it.

Owns: Storage, Region, ReadFile and FileSystem (the seam a recording or failing layer takes), and
their real versions over open, mmap, fallocate, fdatasync, rename, flock. Must not touch: record
formats, policy, trio.

Three kinds of file. A CommitLog file gets real blocks for its whole size before it is mapped, so
that no store through the map can hit a full disk (which would be SIGBUS, not an error). An index
file is mapped too, but sparse; ``reserve`` gets it real blocks before they are touched.
ConsumeQueue files, because there are thousands, are sparse and never mapped: many are written in
one call, and none stays open for it.
Errors are OSError; the callers translate them. One of NO_ROOM means that nothing was done and that
the same call may work later; a sync never fails with one, whatever reason the kernel gives.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from motelog.core.store.disk import file_batch

TEMPORARY = ".tmp"
LOAD_BYTES = 1 << 18
PREFETCH_BYTES = 1 << 20

Ranges = Sequence[tuple[int, int]]
MADV_POPULATE_WRITE = 23
SYNCFS_TELLS = (5, 8)  # the first Linux whose syncfs reports errors
_libc = ctypes.CDLL(None, use_errno=True)
# Error of a call that finds no room -> what an operator can do about it.
_REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space or raise the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f, LimitFSIZE)",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "free memory",
    errno.ENOBUFS: "free memory",
}
NO_ROOM = frozenset(_REMEDIES)


def no_room_text(exc: OSError) -> str:
    """Return what ran out, according to an error of NO_ROOM, and what to do about it."""
    return f"{exc.strerror}; {_REMEDIES[exc.errno or 0]}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory; ``size`` is 0 for a directory."""

    name: str
    size: int
    is_directory: bool


Piece = tuple[str, int, bytes]  # (path, position in the file, bytes to write there)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the disk is, as ``df`` counts it: blocks that only root may use are not free."""

    free_bytes: int
    total_bytes: int

    @property
    def used_percent(self) -> float:
        used_bytes = self.total_bytes - self.free_bytes
        return 100 * used_bytes / self.total_bytes if self.total_bytes else 100.0

    def share_bytes(self, percent: int, counted_bytes_max: int) -> int:
        """Return a share of the disk, or of ``counted_bytes_max`` if the disk is larger."""
        return percent * min(self.total_bytes, counted_bytes_max) // 100


class Region(Protocol):
    """One file of fixed size, mapped for reading and, unless mapped read-only, for writing."""

    view: memoryview

    def reserve(self, begin: int, end: int) -> None:
        """Give [begin, end) real blocks; its content stays."""
        ...

    def sync(self) -> None:
        """Block until everything written through the view is on the disk."""
        ...

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from ``begin`` on that may hold something else than zeros."""
        ...

    def prepare(self, begin: int, end: int) -> None:
        """Prepare the pages of [begin, end) for writes, as far as possible; blocks."""
        ...

    def close(self) -> None:
        """Unmap; the view must not be used any more."""
        ...


class InPlaceFile(Protocol):
    """A file whose bytes are overwritten in place; writes are not synced."""

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Overwrite existing bytes; OSError if some of them could not be."""
        ...

    def sync(self) -> None:
        """Block until all that was written is on the disk."""
        ...

    def close(self) -> None: ...


class ReadFile(Protocol):
    """One file open for reading."""

    def read(self, at: int, size: int) -> bytes:
        """Return the bytes of [at, at + size); fewer if the file ends before."""
        ...

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from ``begin`` on that may hold something else than zeros."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """One file system. Its sync reports every write that failed since it was opened."""

    def sync(self) -> None:
        """Block until everything written, made or renamed so far is on the disk."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Storage(Protocol):
    """The calls of a file system that the store makes."""

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        """Make a directory unless it exists; ``durable`` syncs the names that lead to it."""
        ...

    def list_directory(self, path: str) -> list[Entry]:
        """Return the entries sorted by name; empty if there is no such directory.

        Entries that are removed or renamed meanwhile may be missing.
        """
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, None if there is no such file."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Write, sync and rename, so that a crash leaves the old or the new content."""
        ...

    def open_in_place(self, path: str) -> InPlaceFile: ...
    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        """Make a zero-filled file that appears under its name only when it has its size.

        Its content and size are synced, but not its directory.
        """
        ...

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        """Map a whole file; one mapped read-only takes half the descriptors."""
        ...

    def open_file(self, path: str) -> ReadFile: ...
    def write_files(self, pieces: list[Piece], file_bytes: int) -> None:
        """Write pieces of files that have ``file_bytes`` each, in this order; nothing is synced.

        A missing file appears under its name with its whole size, and its directories are made;
        a shorter file is extended with zeros. OSError names the first path that failed; the pieces
        after it are not written.
        """
        ...

    def sync_files(self, paths: list[str]) -> None:
        """Block until these files and directories are on the disk."""
        ...

    def file_system(self, path: str) -> FileSystem | None:
        """Return the file system of a directory, None if its sync would hide errors."""
        ...

    def prefetch(self, path: str, begin: int, end: int) -> None:
        """Let the disk begin to read [begin, end), which will be needed soon."""
        ...

    def sync_file(self, path: str) -> None:
        """Block until everything written to a file is on the disk, mapped here or not."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def remove_file(self, path: str) -> None: ...
    def rename(self, path: str, new_path: str) -> None: ...
    def lock(self, path: str) -> Lock | None:
        """Take the lock file; None if another process (or this one) holds it."""
        ...

    def disk_usage(self, path: str) -> DiskUsage: ...
    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        """Return, without waiting, whether the bytes at these positions of a file are in memory.

        The check may make the system begin to read them.
        """
        ...

    def load(self, path: str, ranges: Ranges) -> None:
        """Block until these bytes of a file are in memory."""
        ...


class OsStorage:
    """The real file system."""

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        above = [os.path.dirname(os.path.abspath(path))]
        while not os.path.exists(above[-1]):
            above.append(os.path.dirname(above[-1]))
        # One by one: os.makedirs applies its mode only to the last one.
        for directory in (*reversed(above[:-1]), path):
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                if not os.path.isdir(directory):
                    raise
        for directory in above if durable else ():
            self.sync_directory(directory)

    def list_directory(self, path: str) -> list[Entry]:
        try:
            found = os.scandir(path)
        except FileNotFoundError:
            return []
        with found:
            entries = [entry for here in found if (entry := _entry(here)) is not None]
        return sorted(entries, key=lambda e: e.name)

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def replace_file(self, path: str, data: bytes) -> None:
        with _made(path) as fd:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        self.sync_directory(os.path.dirname(path))

    def open_in_place(self, path: str) -> InPlaceFile:
        return _OsInPlaceFile(path)

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        with _made(path) as fd:
            if sparse:
                os.ftruncate(fd, size)
            else:
                # Unlike ftruncate this allocates the blocks; unlike writing it touches no page.
                os.posix_fallocate(fd, 0, size)

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        return ReadOnlyRegion(path, size) if is_read_only else OsRegion(path, size)

    def open_file(self, path: str) -> ReadFile:
        return OsReadFile(path)

    def write_files(self, pieces: list[Piece], file_bytes: int) -> None:
        # The same bytes can be written again later, so an error of NO_ROOM stays one.
        done, error = file_batch.write(pieces, file_bytes)
        if error:
            raise OSError(error, os.strerror(error), pieces[done][0])

    def sync_files(self, paths: list[str]) -> None:
        done, error = file_batch.sync(paths)
        if error:
            raise OSError(error, os.strerror(error), paths[done])

    def file_system(self, path: str) -> FileSystem | None:
        release = os.uname().release.split(".")
        version = tuple(int(part) for part in release[:2] if part.isdigit())
        return OsFileSystem(path) if version >= SYNCFS_TELLS else None

    def prefetch(self, path: str, begin: int, end: int) -> None:
        with _opened(path, os.O_RDONLY) as fd:
            # Linux silently cuts a request to what the device takes at once.
            for at in range(begin, end, PREFETCH_BYTES):
                size = min(PREFETCH_BYTES, end - at)
                os.posix_fadvise(fd, at, size, os.POSIX_FADV_WILLNEED)

    def sync_file(self, path: str) -> None:
        with _opened(path, os.O_RDWR) as fd:
            _sync(os.fdatasync, fd)

    def sync_directory(self, path: str) -> None:
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            _sync(os.fsync, fd)

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
        total = stat.f_blocks - stat.f_bfree + stat.f_bavail
        return DiskUsage(stat.f_bavail * stat.f_frsize, total * stat.f_frsize)

    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        byte = [bytearray(1)]
        try:
            with _opened(path, os.O_RDONLY) as fd:
                for at in positions:
                    os.preadv(fd, byte, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # The file system does not know, or the read will fail in the same way.
            return True
        return True

    def load(self, path: str, ranges: Ranges) -> None:
        with _opened(path, os.O_RDONLY) as fd:
            for begin, end in ranges:
                os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
            for begin, end in ranges:
                for at in range(begin, end, LOAD_BYTES):
                    # Read, not mapped: a page fault holds the interpreter's lock.
                    os.pread(fd, min(LOAD_BYTES, end - at), at)


class OsReadFile:
    """A descriptor for reading; its position in the file is not used."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._fd, size, at)

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        return _data_ranges(self._fd, begin, os.fstat(self._fd).st_size)

    def close(self) -> None:
        os.close(self._fd)


class OsFileSystem:
    """The file system of a directory, through a descriptor that stays open.

    syncfs reports every error since the descriptor was opened, even one that another process has
    already seen.
    """

    _syncfs = _libc.syncfs

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        if OsFileSystem._syncfs(self._fd):
            raise OSError(errno.EIO, f"a sync failed: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        os.close(self._fd)


class OsRegion:
    """A mapped file and its descriptor.

    The descriptor stays open so that sync reports every error since the file was opened: a
    descriptor opened later would miss an error that another sync has already reported.
    """

    def __init__(self, path: str, size: int) -> None:
        self._fd = _open(path, os.O_RDWR)
        try:
            self._map = _map(self._fd, path, size, mmap.ACCESS_WRITE)
        except OSError:
            os.close(self._fd)
            self._fd = -1
            raise
        self.view = memoryview(self._map)

    def reserve(self, begin: int, end: int) -> None:
        os.posix_fallocate(self._fd, begin, end - begin)

    def sync(self) -> None:
        # mmap.flush of Python 3.11 would hold the interpreter's lock while the disk works.
        _sync(os.fdatasync, self._fd)

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        return _data_ranges(self._fd, begin, len(self.view))

    def prepare(self, begin: int, end: int) -> None:
        begin -= begin % mmap.PAGESIZE
        _populate(self._map, begin, end - begin)

    def close(self) -> None:
        self.view.release()
        self._map.close()
        # Even if close fails, the descriptor is freed, and may be another file's before __del__.
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __del__(self) -> None:
        # Some regions are only dropped and never closed, so that no reader has an unmapped view.
        # The map is freed with the last reader.
        if getattr(self, "_fd", -1) >= 0:
            with suppress(OSError):
                os.close(self._fd)


class ReadOnlyRegion:
    """A mapped file that this process does not write to.

    It takes only the one descriptor that Python's map keeps for itself.
    """

    _access = mmap.ACCESS_READ

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        with _opened(path, os.O_RDONLY) as fd:
            self._map = _map(fd, path, size, self._access)
        self.view = memoryview(self._map)

    def reserve(self, begin: int, end: int) -> None:
        raise OSError(errno.EROFS, "mapped read-only", self._path)

    def sync(self) -> None:
        pass

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        with _opened(self._path, os.O_RDONLY) as fd:
            yield from _data_ranges(fd, begin, len(self.view))

    def prepare(self, begin: int, end: int) -> None:
        pass

    def close(self) -> None:
        self.view.release()
        self._map.close()


class PrivateRegion(ReadOnlyRegion):
    """A mapped file that does not change: writes to the view are lost with the process."""

    _access = mmap.ACCESS_COPY

    def reserve(self, begin: int, end: int) -> None:
        pass


class ScratchRegion:
    """A file without a disk; its pages take memory when they are written to."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size))

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self.view):
            yield begin, len(self.view)

    def prepare(self, begin: int, end: int) -> None:
        pass

    def close(self) -> None:
        """Keep the content: the file may be mapped again."""


class PinnedMemory:
    """Anonymous memory that is never swapped out; if it may be, ``pin_error`` says why.

    Its pages exist once it is made, if the system supports that.
    """

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = ctypes.c_char.from_buffer(self._map)
        address, bytes_ = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size)
        self.pin_error = ""
        try:
            is_pinned = _libc.mlock(address, bytes_) == 0
        except ctypes.ArgumentError as exc:  # ctypes has no memory for the call
            raise MemoryError from exc
        if not is_pinned:
            self.pin_error = os.strerror(ctypes.get_errno())
            _populate(self._map, 0, size)

    def view(self) -> memoryview:
        return memoryview(self._map)


class _OsInPlaceFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, at: int, data: bytes | memoryview) -> None:
        # A store to a map could fault and wait for the disk while holding the interpreter's lock.
        if os.pwrite(self._fd, data, at) != len(data):
            raise OSError(errno.EIO, "not all of it was written", self._path)

    def sync(self) -> None:
        _sync(os.fdatasync, self._fd)

    def close(self) -> None:
        os.close(self._fd)


class _OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


def _data_ranges(fd: int, begin: int, size: int) -> Iterator[tuple[int, int]]:
    # All ranges are found before the first is read: a read makes the kernel read ahead, and pages
    # of zeros that are in memory count as data.
    found = []
    at = begin
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                break
            raise
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < at:
            found.append((start, at))
    return iter(found)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    fd = _open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _entry(found: os.DirEntry[str]) -> Entry | None:
    """Return an entry of a directory, None for a file that has been removed since."""
    if found.is_dir():
        return Entry(found.name, 0, True)
    try:
        return Entry(found.name, found.stat().st_size, False)
    except FileNotFoundError:
        # A broken link has not been removed: its file may be on a disk that is not mounted.
        if found.is_symlink():
            raise
        return None


@contextmanager
def _made(path: str) -> Iterator[int]:
    """Write, sync and rename a new file to ``path``; leave nothing of it after a failure."""
    temporary = path + TEMPORARY
    try:
        with _opened(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            yield fd
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError:
        # The blocks of a half-made file would keep a full disk full. The first error matters more
        # than one of this call; the next start removes a file that stays.
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _sync(call: Callable[[int], None], fd: int) -> None:
    """Sync; EIO also if the disk has no space for bytes that it had accepted: they are lost."""
    try:
        call(fd)
    except OSError as exc:
        raise OSError(errno.EIO, f"a sync failed: {exc.strerror}") from exc


def _map(fd: int, path: str, size: int, access: int) -> mmap.mmap:
    # Access beyond the end of a file is SIGBUS, so the size is checked before each map.
    if os.fstat(fd).st_size < size:
        raise OSError(errno.EIO, f"the file is shorter than {size} bytes", path)
    return mmap.mmap(fd, size, access=access)


def _populate(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Fault pages in for writing; their content stays.

    The map's own madvise would hold the interpreter's lock meanwhile. On a Linux older than 5.14,
    or if there is no memory for a page, the first store to the page takes the fault.
    """
    with suppress(MemoryError, ctypes.ArgumentError):  # without memory for the call itself, too
        first = ctypes.c_char.from_buffer(mapped, begin)  # while it exists, the map stays open
        address = ctypes.c_void_p(ctypes.addressof(first))
        _libc.madvise(address, ctypes.c_size_t(size), MADV_POPULATE_WRITE)


def memory_bytes() -> int:
    """Return how much memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
