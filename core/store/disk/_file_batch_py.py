"""Reference of the file batch kernel: the same calls of the operating system, one after the other.

Owns: what writing and syncing many files means, in brief. Must not touch: their content.
core/store/disk/file_batch.py has the docstrings.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

TEMPORARY = ".tmp"
PATH_BYTES_MAX = 4_000


def write(pieces: list[tuple[str, int, bytes]], file_bytes: int) -> tuple[int, int]:
    for path, at, data in pieces:
        if not 0 <= at <= file_bytes - len(data):
            raise ValueError("a piece lies outside its file")
        if "\0" in path or len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise ValueError("a path is too long, or has a zero byte")
    for done, (path, at, data) in enumerate(pieces):
        try:
            _write_one(path, at, data, file_bytes)
        except OSError as exc:
            return done, exc.errno or 0
    return len(pieces), 0


def _write_one(path: str, at: int, data: bytes, file_bytes: int) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        _make(path, at, data, file_bytes)
        return
    try:
        if os.fstat(fd).st_size < file_bytes:
            os.ftruncate(fd, file_bytes)
        _put(fd, at, data)
    finally:
        os.close(fd)


def _make(path: str, at: int, data: bytes, file_bytes: int) -> None:
    """Make the file under another name: under its own it has its size from the beginning."""
    temporary = path + TEMPORARY
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, 0o600)
    except FileNotFoundError:
        above = os.path.dirname(path)
        for directory in (os.path.dirname(above), above):
            with suppress(FileExistsError):
                os.mkdir(directory, 0o700)
        fd = os.open(temporary, flags, 0o600)
    try:
        try:
            os.ftruncate(fd, file_bytes)
            _put(fd, at, data)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        # The blocks of a half-made file would keep a full disk full.
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _put(fd: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, at)
        at += count
        rest = rest[count:]


def sync(paths: list[str]) -> tuple[int, int]:
    if any("\0" in path or len(os.fsencode(path)) > PATH_BYTES_MAX for path in paths):
        raise ValueError("a path is too long, or has a zero byte")
    for done, path in enumerate(paths):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            return done, exc.errno or 0
        try:
            os.fsync(fd)
        except OSError:
            # Whatever the reason, these bytes may be missing on the disk for good.
            return done, errno.EIO
        finally:
            os.close(fd)
    return len(paths), 0
