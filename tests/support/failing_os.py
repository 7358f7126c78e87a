"""The operating system's calls under core/store/disk/files.py, counted, of which one can fail.

Owns: FailingOs, which takes the place of the names `os`, `mmap`, `fcntl` and `open` in that module,
and of the kernel that writes many files.
Must not touch: Storage; what is above it is the real one.

A call that fails does nothing. After a failed fsync or fdatasync the kernel may have dropped what
was written since the last sync, and still show it until the page leaves memory. ``drop_unsynced``
turns a folder into what a reader would find then. Syncs that succeed are not carried out, because
nothing here cuts the power.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from motelog.core.store.disk import _file_batch_py, files
from motelog.core.store.index import index_files
from motelog.core.store.log import files_ahead
from motelog.core.store.start import recovery
from motelog.core.threads import ArgumentsT, ResultT, Workers

PAGE_BYTES = 4096
# Functions of os that may fail, by the name under which they are counted.
FAILING = {
    "open": "open", "read": "read", "pread": "read", "preadv": "read",
    "write": "write", "pwrite": "write", "pwritev": "write", "writev": "write",
    "ftruncate": "ftruncate", "truncate": "ftruncate",
    "posix_fallocate": "fallocate", "fsync": "fsync", "fdatasync": "fdatasync",
    "rename": "rename", "replace": "rename", "unlink": "unlink", "remove": "unlink",
    "makedirs": "mkdir", "mkdir": "mkdir", "scandir": "scandir", "lseek": "lseek",
    "fstat": "stat", "stat": "stat", "statvfs": "statvfs",
}  # fmt: skip
# Functions that change and report nothing that could be wrong.
HARMLESS = frozenset(
    {
        "path",
        "getpid",
        "fspath",
        "fsencode",
        "strerror",
        "sysconf",
        "uname",
    }
)
SYNCS = frozenset({"fsync", "fdatasync", "fsync_directory", "msync", "syncfs"})


@dataclass(frozen=True, slots=True)
class Fault:
    """The ``number``-th call (from 0) of a kind fails, and with ``stays`` all behind it."""

    kind: str
    number: int
    code: int
    stays: bool = False

    def __str__(self) -> str:
        name = errno.errorcode[self.code]
        return f"{self.kind}:{self.number}:{name}:{'stays' if self.stays else 'once'}"

    @staticmethod
    def parse(text: str) -> Fault:
        kind, number, name, mode = text.split(":")
        return Fault(kind, int(number), getattr(errno, name), mode == "stays")


@dataclass(slots=True)
class FailingOs:
    """Counts calls by kind, fails the one that ``fault`` names."""

    fault: Fault | None = None
    counts: Counter[str] = field(default_factory=Counter)
    # What the fault hit, in the words of the calls, first the one that it names.
    hits: list[str] = field(default_factory=list)
    # Whether the first was a call of a worker that makes files ahead of need.
    is_ahead: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # Files that somebody has had loaded: all others are said not to be in memory.
    _warm: set[str] = field(default_factory=set)
    # inode -> content when it was last synced; the same of those whose sync has failed.
    _synced: dict[int, bytes] = field(default_factory=dict)
    _lost: dict[int, bytes] = field(default_factory=dict)

    @property
    def hit(self) -> str | None:
        """What the fault hit first; None before."""
        return self.hits[0] if self.hits else None

    @property
    def has_lost(self) -> bool:
        return bool(self._lost)

    def lift(self) -> None:
        """Let every call succeed from now on."""
        self.fault = None

    def note(self, kind: str, what: object) -> None:
        with self._lock:
            number = self.counts[kind]
            self.counts[kind] += 1
            fault = self.fault
            if fault is None or fault.kind != kind or number < fault.number:
                return
            if number > fault.number and not fault.stays:
                return
            if not self.hits:
                self.is_ahead = threading.current_thread().name.startswith("commitlog-file")
            self.hits.append(f"{kind} {what}")
        raise OSError(fault.code, f"{os.strerror(fault.code)} (made to fail)", str(what))

    def sync(self, kind: str, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        state = os.fstat(descriptor)
        if stat.S_ISDIR(state.st_mode):
            self.note("fsync_directory", path)
            return
        try:
            self.note(kind, path)
        except OSError:
            with self._lock:
                self._lost[state.st_ino] = self._synced.get(state.st_ino, b"")
            raise
        self._synced[state.st_ino] = Path(path).read_bytes()

    def sync_all(self, descriptor: int) -> int:
        """Sync the file system of a directory; here that is what is below the directory."""
        root = os.readlink(f"/proc/self/fd/{descriptor}")
        paths = [path for path in Path(root).rglob("*") if path.is_file()]
        try:
            self.note("syncfs", root)
        except OSError as exc:
            for path in paths:
                inode = path.stat().st_ino
                self._lost[inode] = self._synced.get(inode, b"")
            ctypes.set_errno(exc.errno or errno.EIO)
            return -1
        for path in paths:
            self._synced[path.stat().st_ino] = path.read_bytes()
        return 0

    def drop_unsynced(self, folder: Path, chance: random.Random) -> None:
        """Give some pages of each file whose sync has failed the content they had before."""
        for path in sorted(folder.rglob("*")):
            before = self._lost.get(path.stat().st_ino)
            if before is None or not path.is_file():
                continue
            content = bytearray(path.read_bytes())
            before = before.ljust(len(content), b"\0")
            for at in range(0, len(content), PAGE_BYTES):
                if chance.random() < 0.5:
                    content[at : at + PAGE_BYTES] = before[at : at + PAGE_BYTES]
            with path.open("r+b") as file:
                file.write(content)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the place of the operating system in core.store.disk.files."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", _Os(self))
            # The reference makes the same calls as the kernel, where they can be seen.
            patch.setattr(_file_batch_py, "os", _Os(self))
            patch.setattr(files, "file_batch", _file_batch_py)
            patch.setattr(files.OsFileSystem, "_syncfs", staticmethod(self.sync_all))
            patch.setattr(files, "mmap", _Mmap(self))
            patch.setattr(files, "fcntl", _Fcntl(self))
            patch.setattr(files, "open", self._open_file, raising=False)
            for module in (index_files, files_ahead):
                patch.setattr(module, "Workers", _WorkersInTurn)
            patch.setattr(recovery, "ThreadPoolExecutor", _InTurn)
            yield

    def _open_file(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        if os.path.exists(path):
            self.note("open", path)
        return _File(self, builtins.open(path, *args, **kwargs))

    def close(self, descriptor: int) -> None:
        # As Linux does it: the descriptor is gone, whatever the call says.
        path = _name_of(descriptor)
        os.close(descriptor)
        self.note("close", path)

    def preadv(self, descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        path = str(_name_of(descriptor))
        self.note("read", path)
        if flags & os.RWF_NOWAIT and path not in self._warm:
            raise BlockingIOError(errno.EAGAIN, "not in memory", path)
        return os.preadv(descriptor, buffers, offset)

    def posix_fadvise(self, descriptor: int, *_: int) -> None:
        self._warm.add(str(_name_of(descriptor)))


class _Os:
    """``os``, with the calls of FAILING noted first."""

    def __init__(self, calls: FailingOs) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        real: Any = getattr(os, name)
        if name in ("close", "preadv", "posix_fadvise"):
            return getattr(self._calls, name)
        if name in ("fsync", "fdatasync"):
            return lambda descriptor: self._calls.sync(name, descriptor)
        kind = FAILING.get(name)
        if kind is not None:
            return self._noted(real, kind)
        if callable(real) and name not in HARMLESS:
            raise AttributeError(f"os.{name}: neither known to fail nor to be harmless")
        return real

    def _noted(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.note(kind, _name_of(args[0]))
            return real(*args, **kwargs)

        return call


class _File:
    """A file object that is only read; reading can fail."""

    def __init__(self, calls: FailingOs, file: Any) -> None:
        self._calls = calls
        self._file = file

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> Any:
        self._calls.note("read", self._file.name)
        return self._file.read()


class _InTurn(ThreadPoolExecutor):
    """A pool whose work is done before ``submit`` returns: calls have one order in every run."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(*args, **kwargs)
        wait([future])
        return future


class _Mmap:
    """``mmap``: making a map and syncing one can fail."""

    def __init__(self, calls: FailingOs) -> None:
        class Map(mmap.mmap):
            def __new__(cls, fileno: int, length: int, *args: Any, **kwargs: Any) -> Any:
                calls.note("mmap", length)
                return super().__new__(cls, fileno, length, *args, **kwargs)

            def flush(self, *args: Any) -> None:
                calls.note("msync", len(self))

        self.mmap = Map

    def __getattr__(self, name: str) -> Any:
        return getattr(mmap, name)


class _Fcntl:
    def __init__(self, calls: FailingOs) -> None:
        self._calls = calls

    def flock(self, descriptor: int, operation: int) -> None:
        self._calls.note("flock", descriptor)
        fcntl.flock(descriptor, operation)

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)


def _name_of(what: object) -> object:
    """Return the path behind a descriptor, and anything else as it is."""
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what


class _WorkersInTurn(Workers):
    """Likewise."""

    def submit(
        self, function: Callable[[*ArgumentsT], ResultT], *args: *ArgumentsT
    ) -> Future[ResultT]:
        future = super().submit(function, *args)
        wait([future])
        return future
