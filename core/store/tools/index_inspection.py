"""Checks the index files of a folder: each key of the log is searched in them.

Owns: IndexCheck: headers against index.json, entries against the records' keys, chains against the
entries. Must not touch: the folder (dry_run), which files a start uses (index_start).

The caller walks the log once and passes its records with keys step by step: both they and the
entries are in the log's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from motelog.core.records.append import copy_in
from motelog.core.records.read import copy_out
from motelog.core.store.disk.files import Storage
from motelog.core.store.index.index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexItem,
    put,
    relink,
)
from motelog.core.store.index.index_file import NAME_DIGITS, IndexFile, file_bytes, shape_of
from motelog.core.store.state.checkpoint import IndexFileState, IndexTable

# RocketMQ's shape, for files that are not in index.json.
SLOTS: Final = 5_000_000
ENTRIES: Final = 20_000_000
SCRATCH_ENTRIES: Final = 8_192
ENTRIES_PER_READ: Final = 4_096
COMPARED_BYTES: Final = 1_048_560  # a multiple of both a slot's and an entry's
OFFSET_MAX: Final = (1 << 63) - 1

REMADE: Final = "none: the next start rebuilds it from the log"
KEPT_OUT: Final = "none: queries compare what they find with the record"

AddFault = Callable[[str, int, str, str], None]


def missed(count: int) -> str:
    """Return the cost of so many missing keys."""
    return (
        f"queries by key miss at most {count} messages, which are in the log. Remove the file "
        "while the store is stopped, and the next start rebuilds it"
    )


class IndexCheck:
    """One check of the index; ``add`` receives (path, byte, fault, cost)."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        table: IndexTable | None,
        *,
        log_begin: int,
        is_live: bool,
        has_abort: bool,
        add: AddFault,
    ) -> None:
        self._storage = storage
        self._directory = f"{directory}/index"
        self._log_begin = log_begin
        self._is_live = is_live
        self._has_abort = has_abort
        self._add = add
        self.files: list[IndexFile] = []
        # The keys of all records below are in the files.
        self._until = table.indexed_offset if table is not None else 0
        if table is not None:
            self._load_known(table)
        else:
            self._load_unknown()
        self._scratch = memoryview(bytearray(file_bytes(1, SCRATCH_ENTRIES)))
        self._entries = self._walk_entries()
        self._next: tuple[int, int] | None = next(self._entries, None)
        # By the number of a file: keys of records that are not in it, entries without a record.
        self._missing: dict[int, int] = {}
        self._stray: dict[int, int] = {}
        self._at_file = 0

    def _load_known(self, table: IndexTable) -> None:
        for position, state in enumerate(table.files):
            is_last = position == len(table.files) - 1
            if state.end_physical < self._log_begin and not is_last and not self._size(state.name):
                continue  # cleaned up since
            fault = self._load_one(state)
            if fault is not None:
                path = f"{self._directory}/{state.name}"
                self._add(path, 0, f"{fault}; this file and those after it are not used", REMADE)
                self._until = self.files[-1].end_physical if self.files else 0
                return

    def _load_one(self, state: IndexFileState) -> str | None:
        size = self._size(state.name)
        if size is None:
            return "is missing"
        if not (state.slots > 0 and state.entries > 0 and 1 <= state.count <= state.entries):
            return "has an invalid line in index.json"
        if size != file_bytes(state.slots, state.entries):
            return f"has {size} bytes, expected {file_bytes(state.slots, state.entries)}"
        file = self._open(state.name, state.slots, state.entries)
        if file.count < state.count:
            path = file.path
            self._add(
                path, 36, f"says that entry {file.count} is the next one, index.json {state.count}",
                "none: the next start corrects it",
            )  # fmt: skip
            file.count = state.count
        elif self._is_live or self._has_abort:
            # Entries added since the last checkpoint.
            file.count = state.count
        fault = file.fault() if file.count == self._header_count(file) else None
        if fault is None:
            self.files.append(file)
        else:
            file.close()
        return fault

    def _header_count(self, file: IndexFile) -> int:
        header = HEADER.unpack(copy_out(file.view, 0, HEADER_BYTES))
        return int(header[5])

    def _load_unknown(self) -> None:
        """Load index files that RocketMQ wrote."""
        for entry in self._storage.list_directory(self._directory):
            shape = shape_of(entry.size, SLOTS, ENTRIES)
            if entry.is_directory or len(entry.name) != NAME_DIGITS or shape is None:
                continue
            file = self._open(entry.name, *shape)
            fault = file.fault()
            if fault is not None:
                self._add(file.path, 0, fault, REMADE)
                file.close()
                return
            self.files.append(file)
            self._until = file.end_physical

    def _open(self, name: str, slots: int, entries: int) -> IndexFile:
        file = IndexFile(self._storage, f"{self._directory}/{name}", slots, entries)
        file.read_header()
        return file

    def _size(self, name: str) -> int | None:
        for entry in self._storage.list_directory(self._directory):
            if entry.name == name and not entry.is_directory:
                return entry.size
        return None

    # -- entries against keys --------------------------------------------------------------

    def _walk_entries(self) -> Iterator[tuple[int, int]]:
        """Yield (physical offset, hash) of all entries; ``_at_file`` is where the next one is."""
        for position, file in enumerate(self.files):
            last = 0
            for number in range(1, file.count, ENTRIES_PER_READ):
                begin = HEADER_BYTES + file.slots * SLOT_BYTES + number * ENTRY_BYTES
                end = begin + min(ENTRIES_PER_READ, file.count - number) * ENTRY_BYTES
                entries = ENTRY.iter_unpack(copy_out(file.view, begin, end))
                for index, (hashed, physical_offset, _, _) in enumerate(entries):
                    if not last <= physical_offset <= file.end_physical or hashed < 0:
                        self._add(
                            file.path, begin + index * ENTRY_BYTES,
                            f"entry {number + index} is damaged: it is not in the log's order",
                            missed(1),
                        )  # fmt: skip
                        continue
                    last = physical_offset
                    self._at_file = position
                    yield physical_offset, hashed

    def take(self, items: list[IndexItem], end: int) -> None:
        """Compare the records with keys of the next step of the log, which ends at ``end``."""
        wanted = {key for key in self._keys_of(items) if key[0] < self._until}
        there: set[tuple[int, int]] = set()
        while self._next is not None and self._next[0] < end:
            if self._next[0] >= self._log_begin:
                there.add(self._next)
            if self._next not in wanted and self._log_begin <= self._next[0] < self._until:
                self._stray[self._at_file] = self._stray.get(self._at_file, 0) + 1
            self._next = next(self._entries, None)
        missing = len(wanted - there)
        if missing:
            self._missing[self._at_file] = self._missing.get(self._at_file, 0) + missing

    def _keys_of(self, items: list[IndexItem]) -> Iterator[tuple[int, int]]:
        """Yield (physical offset, hash) of each key, as the writing kernel computes it."""
        empty = HEADER.pack(0, 0, 0, 0, 0, 1)
        item = key = 0
        while item < len(items):
            copy_in(self._scratch, 0, empty)
            item, key = put(self._scratch, 1, SCRATCH_ENTRIES, items, item, key)
            count = HEADER.unpack_from(self._scratch)[5]
            begin = HEADER_BYTES + SLOT_BYTES + ENTRY_BYTES
            end = begin + (count - 1) * ENTRY_BYTES
            for hashed, physical_offset, _, _ in ENTRY.iter_unpack(self._scratch[begin:end]):
                yield physical_offset, hashed

    # -- chains ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Report the faults of the walk, and check the chains."""
        for position, file in enumerate(self.files):
            missing, stray = self._missing.get(position, 0), self._stray.get(position, 0)
            if missing:
                self._add(
                    file.path,
                    0,
                    f"{missing} keys of records in the log are missing",
                    missed(missing),
                )
            if stray:
                self._add(file.path, 0, f"{stray} entries name no record with their key", KEPT_OUT)
            # Chains of the newest file continue after the last checkpoint; a start rebuilds them.
            goes_on = self._is_live or (self._has_abort and not file.is_full)
            if not (goes_on and position == len(self.files) - 1):
                self._check_chains(file)
            file.close()

    def _check_chains(self, file: IndexFile) -> None:
        """Rebuild the chains in memory and compare them with those of the file."""
        size = file_bytes(file.slots, file.entries)
        remade = self._storage.map_file(file.path, size)
        try:
            sound, _ = relink(remade.view, file.slots, file.entries, file.count, OFFSET_MAX)
            begin = HEADER_BYTES + file.slots * SLOT_BYTES
            slots = _differences(file.view, remade.view, HEADER_BYTES, begin, SLOT_BYTES)
            entries = _differences(
                file.view, remade.view, begin, begin + sound * ENTRY_BYTES, ENTRY_BYTES
            )
        finally:
            remade.close()
        if slots or entries:
            self._add(
                file.path, (slots or entries)[0],
                f"{len(slots)} slots and {len(entries)} entries do not lead to the previous entry",
                missed(len(entries) or file.count - 1),
            )  # fmt: skip


def _differences(
    have: memoryview, wanted: memoryview, begin: int, end: int, unit_bytes: int
) -> list[int]:
    """Return where units of two views differ."""
    found = []
    for at in range(begin, end, COMPARED_BYTES):
        stop = min(at + COMPARED_BYTES, end)
        first, second = copy_out(have, at, stop), copy_out(wanted, at, stop)
        if first != second:
            found += [
                at + i
                for i in range(0, stop - at, unit_bytes)
                if first[i : i + unit_bytes] != second[i : i + unit_bytes]
            ]
    return found
