"""One index file: mapped when it is read, its blocks reserved before they are written.

Owns: IndexFile, its size, which part of it has blocks. Must not touch: which keys go where
(index_service), byte formats (index). Everything here can be rebuilt from the CommitLog.

    index/yyyyMMddHHmmssSSS   40 bytes header, slots of 4 bytes, entries of 20 (index.py);
                              sparse; the slots get their blocks at once, the entries in steps

Invariants: the attributes equal the header; entries [1, count) are written; a full file is never
written again.
"""

from __future__ import annotations

from typing import Final

from motelog.core.records.append import copy_in
from motelog.core.records.layout import RECORD_BYTES_MIN, ScanStop
from motelog.core.records.read import copy_out
from motelog.core.store.disk.files import Region, Storage
from motelog.core.store.index.index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexItem,
    put,
    put_records,
    relink,
    select,
)

NAME_DIGITS: Final = 17
RESERVE_BYTES_MIN: Final = 65_536
RESERVE_BYTES_MAX: Final = 16_777_216
# RocketMQ's files of any size have four entries per slot.
ENTRIES_PER_SLOT: Final = 4


def file_bytes(slots: int, entries: int) -> int:
    return HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES


def shape_of(size: int, slots: int, entries: int) -> tuple[int, int] | None:
    """Return (slots, entries) of a file with ``size`` bytes: those given, or RocketMQ's ratio."""
    if size == file_bytes(slots, entries):
        return slots, entries
    found, rest = divmod(size - HEADER_BYTES, SLOT_BYTES + ENTRIES_PER_SLOT * ENTRY_BYTES)
    return None if rest or found < 1 else (found, found * ENTRIES_PER_SLOT)


def next_key(
    log: memoryview, begin: int, end: int, physical_base: int, key: int, count_max: int
) -> tuple[int, int, ScanStop | None]:
    """Walk records as put_records does, but stop at the first key, with None."""
    no_room = bytearray(file_bytes(1, 1))
    return put_records(no_room, 1, 1, log, begin, end, physical_base, key, count_max)


class IndexFile:
    """Keys of records from ``begin_physical`` to ``end_physical``, both included, in log order."""

    __slots__ = (
        "_region", "_reserved_end", "_storage", "begin_ms", "begin_physical", "count", "end_ms",
        "end_physical", "entries", "is_dirty", "path", "slots",
    )  # fmt: skip

    def __init__(self, storage: Storage, path: str, slots: int, entries: int) -> None:
        self._storage = storage
        self.path = path
        self.slots = slots
        self.entries = entries
        self._region: Region | None = None
        # It is unknown which blocks a file has until they are reserved.
        self._reserved_end = 0
        self.is_dirty = False
        self.begin_ms = self.end_ms = self.begin_physical = self.end_physical = 0
        self.count = 1

    @classmethod
    def create(cls, storage: Storage, path: str, slots: int, entries: int) -> IndexFile:
        """Make a file, for ``begin_behind`` to begin; OSError if there is no room for its slots.

        It blocks: of the 420 MB of RocketMQ's shape, the 20 MB of the slots are allocated.
        """
        storage.create_file(path, file_bytes(slots, entries), sparse=True)
        file = cls(storage, path, slots, entries)
        try:
            file._reserve(HEADER_BYTES + slots * SLOT_BYTES)
        except OSError:
            file.close()
            storage.remove_file(path)
            raise
        return file

    def begin_behind(self, before: IndexFile | None) -> None:
        """Write the header of an empty file that follows ``before``."""
        # As RocketMQ does: until its first entry, a reader takes these for the file's range.
        end_ms, end_physical = (before.end_ms, before.end_physical) if before else (0, 0)
        header = HEADER.pack(end_ms, end_ms, end_physical, end_physical, 0, 1)
        copy_in(self._map(), 0, header)
        self.is_dirty = True
        self.read_header()

    @property
    def is_full(self) -> bool:
        return self.count >= self.entries

    @property
    def is_mapped(self) -> bool:
        return self._region is not None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def read_header(self) -> None:
        header = HEADER.unpack(copy_out(self._map(), 0, HEADER_BYTES))
        self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, _, self.count = header

    def fault(self) -> str | None:
        """Return the fault of the header or the last entry, None if there is no fault."""
        if not 1 <= self.count <= self.entries:
            return f"the next entry is {self.count} of {self.entries}"
        if self.count > 1:
            if not 0 <= self.begin_physical <= self.end_physical or self.begin_ms < 0:
                return "the header's ends are in the wrong order"
            hashed, physical_offset, _, before = self.entry(self.count - 1)
            if physical_offset != self.end_physical or hashed < 0 or not 0 <= before < self.count:
                return f"entry {self.count - 1} is not what the header says"
        return None

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (hash, physical offset, seconds, previous entry in its slot) of an entry."""
        at = HEADER_BYTES + self.slots * SLOT_BYTES + number * ENTRY_BYTES
        return ENTRY.unpack(copy_out(self._map(), at, at + ENTRY_BYTES))

    def put(self, items: list[IndexItem], item: int, key: int) -> tuple[int, int]:
        """Add keys as the kernel's put does, until the file is full; return where it stopped.

        OSError if the first of them cannot have blocks.
        """
        begun = item, key
        while item < len(items) and not self.is_full:
            try:
                room = self._make_room(len(items) - item)
            except OSError:
                if (item, key) == begun:
                    raise
                return item, key
            item, key = put(self._map(), self.slots, room, items, item, key)
            self.read_header()
        return item, key

    def put_records(
        self, log: memoryview, begin: int, end: int, physical_base: int, key: int, count_max: int
    ) -> tuple[int, int, ScanStop | None]:
        """Add keys as the kernel's put_records does; None if the file is full or lacks blocks.

        OSError if the first of them cannot have blocks.
        """
        at, stop = begin, None
        begun = begin, key
        while stop is None and not self.is_full:
            try:
                room = self._make_room(min(count_max, (end - at) // RECORD_BYTES_MIN + 1))
            except OSError:
                if (at, key) == begun:
                    raise
                break
            at, key, stop = put_records(
                self._map(), self.slots, room, log, at, end, physical_base, key, count_max
            )
            self.read_header()
        return at, key, stop

    def _make_room(self, count: int) -> int:
        """Reserve blocks for the keys of ``count`` records; return the first entry without them."""
        begin = HEADER_BYTES + self.slots * SLOT_BYTES
        # Nearly all messages have one or two keys.
        wanted = min(self.count + 2 * count, self.entries)
        self._reserve(begin)
        self._reserve(begin + wanted * ENTRY_BYTES)
        self.is_dirty = True
        return min((self._reserved_end - begin) // ENTRY_BYTES, self.entries)

    def select(
        self, hashed: int, number: int, begin_ms: int, end_ms: int, count_max: int
    ) -> tuple[list[int], int]:
        """Walk the chain of a hash as the kernel's select does."""
        return select(
            self._map(), self.slots, self.entries, hashed, number, begin_ms, end_ms, count_max
        )

    def cut(self, count: int, physical_end: int) -> None:
        """Keep entries [1, count) as far as they are intact and lie below ``physical_end``."""
        view = self._map()
        # Pages that a power cut has lost are holes: writing to one needs a block.
        self._reserve(HEADER_BYTES + self.slots * SLOT_BYTES + count * ENTRY_BYTES)
        sound, used = relink(view, self.slots, self.entries, count, physical_end)
        # The time of the new last entry is only known to the second.
        end_physical, end_ms = self.begin_physical, self.begin_ms
        if sound > 1:
            _, end_physical, delta_s, _ = self.entry(sound - 1)
            end_ms = min(self.end_ms, self.begin_ms + delta_s * 1000 + 999)
        header = self.begin_ms, end_ms, self.begin_physical, end_physical, used, sound
        copy_in(view, 0, HEADER.pack(*header))
        self.is_dirty = True
        self.read_header()

    @property
    def view(self) -> memoryview:
        return self._map()

    def close(self) -> None:
        """Unmap; the next read maps it again."""
        if self._region is not None:
            self._region.close()
            self._region = None

    def _map(self) -> memoryview:
        if self._region is None:
            size = file_bytes(self.slots, self.entries)
            self._region = self._storage.map_file(self.path, size)
        return self._region.view

    def _reserve(self, end: int) -> None:
        """Reserve real blocks below ``end``, and some beyond."""
        if end <= self._reserved_end:
            return
        self._map()
        assert self._region is not None
        ahead = min(max(RESERVE_BYTES_MIN, self._reserved_end), RESERVE_BYTES_MAX)
        stop = min(end + ahead, file_bytes(self.slots, self.entries))
        self._region.reserve(self._reserved_end, stop)
        self._reserved_end = stop
