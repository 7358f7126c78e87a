"""A small file system of its own: ext4 in an image that is loop-mounted, or tmpfs.

Owns: LoopDisk (make, mount, cut the power, unmount), small_tmpfs, fill_disk, and the reason when
a machine cannot have them. Must not touch: what is put on them. Both need root and mount; they
leave nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# _IOR('X', 125, __u32); the flag leaves the journal as it is on the disk.
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
TOOL_S_MAX = 60


class NotPermittedError(Exception):
    """This machine, or this user, cannot mount."""


class LoopDisk:
    """An ext4 file system under ``folder``; ``mount`` it before use, ``close`` it in the end."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._image = folder / "disk.ext4"
        self.root = folder / "disk"
        self.root.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        # No block is set aside for root, so that the whole disk can be filled.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.root))

    def cut_power(self) -> None:
        """Have nothing more reach the disk, not even what the journal has; all calls fail then."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError as exc:
            raise NotPermittedError(f"EXT4_IOC_SHUTDOWN: {exc}") from exc
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        _run("umount", str(self.root))

    def close(self) -> None:
        _unmount_anyhow(self.root)
        self._image.unlink(missing_ok=True)


@contextmanager
def loop_disk(folder: Path, size_bytes: int) -> Iterator[LoopDisk]:
    """A mounted LoopDisk; NotPermittedError says why there can be none here."""
    disk = LoopDisk(folder, size_bytes)
    try:
        disk.mount()
        yield disk
    finally:
        disk.close()


@contextmanager
def small_tmpfs(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A mounted tmpfs of this size; NotPermittedError says why there can be none here."""
    root = folder / "tmpfs"
    root.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(root))
        yield root
    finally:
        _unmount_anyhow(root)


def fill_disk(root: Path, leave_bytes: int = 0) -> Path:
    """Take all space but this much; return the file that has it."""
    path = root / "filler"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    stat = os.statvfs(root)
    left = stat.f_bavail * stat.f_frsize - leave_bytes
    chunk = 1 << 20
    try:
        while chunk >= 512 and left > 0:
            try:
                left -= os.write(descriptor, bytes(min(chunk, left) if leave_bytes else chunk))
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise
                chunk //= 2
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return path


def _unmount_anyhow(root: Path) -> None:
    """Unmount, also while a process that is about to end still has files there."""
    if os.path.ismount(root):
        done = subprocess.run(["umount", str(root)], capture_output=True, check=False)
        if done.returncode:
            # A loop device set up by mount goes with its last user.
            subprocess.run(["umount", "-l", str(root)], capture_output=True, check=False)


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise NotPermittedError(f"there is no {command[0]} here")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_S_MAX)
    if done.returncode:
        raise NotPermittedError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
