"""The places that a query by key or by offset will read, found and paged in by a thread.

Owns: RecordPlace, KeyPlaces: the places that such a query will read, which only reading can find.
Must not touch: the answer; the query itself runs afterwards, independent of this.
``page_in`` is called in a thread and reads files only through Storage, by their names. If a file is
removed or changes meanwhile, the query that follows may wait for the disk; nothing worse happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from motelog.core.store.disk.files import ReadFile, Storage
from motelog.core.store.index.index import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES
from motelog.core.store.index.index_file import NAME_DIGITS, shape_of

# Entries read and records paged in for one query. The query itself reads any others.
ENTRIES_MAX: Final = 4096
RECORDS_MAX: Final = 64
SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """A record that begins at ``at`` of a CommitLog file and ends at ``end`` or before."""

    path: str
    at: int
    end: int

    @property
    def where(self) -> tuple[str, int]:
        return self.path, self.at

    def page_in(self, storage: Storage) -> None:
        """Read its length, then all of it; raises OSError."""
        storage.load(self.path, [(self.at, self.at + SIZE_BYTES)])
        file = storage.open_file(self.path)
        try:
            size = int.from_bytes(file.read(self.at, SIZE_BYTES), "big")
        finally:
            file.close()
        if self.at + size <= self.end:
            storage.load(self.path, [(self.at, self.at + size)])


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The CommitLog's files as they were: where the first one begins, their size and paths."""

    begin: int
    file_bytes: int
    paths: tuple[str, ...]

    def record(self, physical_offset: int) -> RecordPlace | None:
        index, at = divmod(physical_offset - self.begin, self.file_bytes)
        if not 0 <= index < len(self.paths):
            return None
        return RecordPlace(self.paths[index], at, self.file_bytes)


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """The chains of one hash in the index files below ``directory``, and the records they name."""

    directory: str
    slots: int
    entries: int
    hashed: int
    begin_ms: int
    end_ms: int
    # Not compared: the places are the same if the log has grown by a file.
    log: LogFiles = field(compare=False)

    @property
    def where(self) -> tuple[str, int]:
        return self.directory, self.hashed

    def page_in(self, storage: Storage) -> None:
        """Read the chains, newest file first, then the records; raises OSError."""
        found: list[int] = []
        left = ENTRIES_MAX
        for entry in reversed(storage.list_directory(self.directory)):
            shape = shape_of(entry.size, self.slots, self.entries)
            if len(entry.name) != NAME_DIGITS or shape is None:
                continue
            path = f"{self.directory}/{entry.name}"
            # Not read ahead: a chain leads all over its file.
            file = storage.open_file(path)
            try:
                for is_wanted, physical_offset in self._chain(file, *shape):
                    left -= 1
                    if is_wanted:
                        found.append(physical_offset)
                    if left == 0 or len(found) == RECORDS_MAX:
                        break
            finally:
                file.close()
            if left == 0 or len(found) == RECORDS_MAX:
                break
        for physical_offset in found:
            place = self.log.record(physical_offset)
            if place is not None:
                place.page_in(storage)

    def _chain(self, file: ReadFile, slots: int, entries: int) -> Iterator[tuple[bool, int]]:
        """Yield for each entry in the slot whether it may match, and its physical offset."""
        head = file.read(0, HEADER_BYTES)
        slot = file.read(HEADER_BYTES + self.hashed % slots * SLOT_BYTES, SLOT_BYTES)
        if len(head) < HEADER_BYTES or len(slot) < SLOT_BYTES:
            return
        first_ms, last_ms = HEADER.unpack(head)[:2]
        if first_ms > self.end_ms or last_ms < self.begin_ms:
            return
        number = int.from_bytes(slot, "big")
        while 0 < number < entries:
            at = HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
            entry = file.read(at, ENTRY_BYTES)
            if len(entry) < ENTRY_BYTES:
                return
            hashed, physical_offset, _, before = ENTRY.unpack(entry)
            yield hashed == self.hashed, physical_offset
            # A chain only leads to older entries.
            number = before if before < number else 0
