"""The file ``durable``: how much of the log is on disk, noted after each flush.

Owns: DurableFile, its bytes, and how they are read back when damaged. Must not touch: the log;
how a start uses the offset (recovery).

    durable   1024 bytes, two slots at 0 and 512 that are written in turn, so that a write which is
              cut short leaves the one before it; everything else is zero
               0  4  magic "MLDU"
               4  8  physical offset: the log below it is on disk
              12  4  CRC-32C of the 12 bytes before it

Without it a start could not tell a hole that the kernel left, because it wrote a later page of the
log before an earlier one, from a record that was on the disk and has been damaged since.
Invariant: the offset in the file is never too high. The file is not synced, because an older offset
is also true: after a power cut a start knows less than it could, but nothing wrong.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from motelog.core.store.disk.files import InPlaceFile, Storage

NAME: Final = "durable"
FILE_BYTES: Final = 1024
SLOT_BYTES: Final = 512
_MAGIC: Final = b"MLDU"
_SLOT: Final = struct.Struct(">4sq")
_CHECKSUM: Final = struct.Struct(">I")


class DurableFile:
    """``note`` and ``reset`` are never called by two threads at once."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._path = f"{directory}/{NAME}"
        self._file: InPlaceFile | None = None
        self._slot = 0

    def read(self) -> int | None:
        """Return the offset; None if there is no such file, or no intact slot in it."""
        data = self._storage.read_file(self._path)
        return decode(data) if data is not None else None

    def reset(self, offset: int) -> None:
        """Replace the file, synced, so that no earlier offset is left; then ``note``."""
        self.close()
        slot = encode(offset).ljust(SLOT_BYTES, b"\0")
        self._storage.replace_file(self._path, slot + slot)
        self._file = self._storage.open_in_place(self._path)

    def note(self, offset: int) -> None:
        """Note that the log is on disk below ``offset``; the caller has synced it."""
        assert self._file is not None, "reset comes first"
        self._file.write(self._slot * SLOT_BYTES, encode(offset))
        self._slot = 1 - self._slot

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def encode(offset: int) -> bytes:
    """Return the bytes of one slot."""
    head = _SLOT.pack(_MAGIC, offset)
    return head + _CHECKSUM.pack(crc32c(head))


def decode(data: bytes) -> int | None:
    """Return the highest offset of the intact slots, None without any."""
    found = []
    for at in range(0, FILE_BYTES, SLOT_BYTES):
        head, checksum = data[at : at + 12], data[at + 12 : at + 16]
        if len(checksum) == 4 and checksum == _CHECKSUM.pack(crc32c(head)):
            magic, offset = _SLOT.unpack(head)
            if magic == _MAGIC and offset >= 0:
                found.append(offset)
    return max(found, default=None)
