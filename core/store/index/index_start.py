"""The index folder at a start: files are trusted as far as they agree with the notes about them.

Owns: IndexStart: which files are kept, cut or removed, from which offset the index is rebuilt and
why; cut_at. Must not touch: bytes of an index file (index, index_file), the log.

    index.json           a file that differs from its line is removed, with all files after it
    no index.json        RocketMQ's folder: its files, unless they are younger than the checkpoint
                         of a store that did not stop cleanly
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from motelog.core.records.scan import scan
from motelog.core.store.disk.files import TEMPORARY, Entry, Storage
from motelog.core.store.index.index_file import NAME_DIGITS, IndexFile, file_bytes, shape_of
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.state.checkpoint import IndexFileState, IndexTable

logger = logging.getLogger(__name__)

OFFSET_MAX: Final = (1 << 63) - 1


class IndexStart:
    """The index files of one start; everything blocks, once."""

    def __init__(
        self, storage: Storage, directory: str, log: CommitLog, *, slots: int, entries: int
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._log = log
        self._slots = slots
        self._entries = entries
        # Files that are kept, oldest first.
        self.files: list[IndexFile] = []
        # Why files are rebuilt, and from which physical offset; empty if no file is.
        self.fault = ""
        self.made_from = 0

    def load(self, table: IndexTable | None, *, was_clean: bool, index_ms: int) -> int:
        """Keep what files and table agree on and remove the rest; return where to continue."""
        self._storage.make_directory(self._directory)
        found = self._list()
        if table is not None:
            return self._load_known(found, table, was_clean=was_clean)
        return self._load_unknown(found, was_clean=was_clean, index_ms=index_ms)

    def _note_fault(self, fault: str, resume: int) -> None:
        logger.warning(
            "the index is being rebuilt from the log; this start takes longer, no message is lost "
            "from=%d reason=%s",
            resume,
            fault,
        )
        if not self.fault:
            self.fault, self.made_from = fault, resume

    def _list(self) -> dict[str, Entry]:
        found = {}
        for entry in self._storage.list_directory(self._directory):
            if entry.name.endswith(TEMPORARY):
                self._storage.remove_file(f"{self._directory}/{entry.name}")
            elif entry.is_directory or len(entry.name) != NAME_DIGITS or not entry.name.isdecimal():
                logger.warning(
                    "a file in the index folder is not an index file and is ignored; remove it "
                    "if it is not needed path=%s/%s",
                    self._directory,
                    entry.name,
                )
            else:
                found[entry.name] = entry
        return found

    def _load_known(self, found: dict[str, Entry], table: IndexTable, *, was_clean: bool) -> int:
        """Keep the table's files as far as they agree with it; return where to continue."""
        resume = table.indexed_offset
        for position, state in enumerate(table.files):
            is_last = position == len(table.files) - 1
            entry = found.get(state.name)
            if entry is None and state.end_physical < self._log.begin_offset and not is_last:
                continue
            try:
                fault = self._load_one(entry, state, is_torn=is_last and not was_clean)
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
                fault = f"it cannot be read: {exc.strerror}"
            if fault is not None:
                resume = self.files[-1].end_physical if self.files else 0
                self._note_fault(f"{self._directory}/{state.name}: {fault}", resume)
                break
        # Remove a damaged file, those that follow it, and files that no checkpoint names.
        kept = {file.name for file in self.files}
        for name in found.keys() - kept:
            self._storage.remove_file(f"{self._directory}/{name}")
        return resume

    def _load_one(self, entry: Entry | None, state: IndexFileState, *, is_torn: bool) -> str | None:
        """Keep one file of the table; return its fault, None if all of it is kept."""
        if entry is None:
            return "it is missing"
        if not (state.slots > 0 and state.entries > 0 and 1 <= state.count <= state.entries):
            return "its line in index.json makes no sense"
        if entry.size != file_bytes(state.slots, state.entries):
            return f"it has {entry.size} bytes"
        path = f"{self._directory}/{state.name}"
        file = IndexFile(self._storage, path, state.slots, state.entries)
        file.read_header()
        is_as_noted = (state.count, state.end_ms, state.end_physical) == (
            file.count, file.end_ms, file.end_physical
        )  # fmt: skip
        # Entries put after the checkpoint may be on disk in part: the slots even if the header is
        # not.
        if not is_as_noted or (is_torn and not file.is_full):
            file.end_ms, file.end_physical = state.end_ms, state.end_physical
            file.cut(state.count, OFFSET_MAX)
        fault = file.fault()
        if file.count == state.count and file.end_physical != state.end_physical:
            fault = f"its last record is {file.end_physical}, not {state.end_physical}"
        if self.files and file.begin_physical < self.files[-1].end_physical:
            fault = "it begins before the file before it ends"
        if fault is not None:
            file.close()
            return fault
        self.files.append(file)
        if file.count < state.count:
            return f"entry {file.count} is damaged, or the log ends before it"
        return None

    def _load_unknown(self, found: dict[str, Entry], *, was_clean: bool, index_ms: int) -> int:
        """Keep RocketMQ's files by its own rules; return where to continue."""
        is_taken = True
        for name, entry in found.items():
            path = f"{self._directory}/{name}"
            shape = shape_of(entry.size, self._slots, self._entries)
            if is_taken and shape is not None:
                file = IndexFile(self._storage, path, *shape)
                file.read_header()
                is_taken = file.fault() is None and (was_clean or file.end_ms <= index_ms)
                if is_taken:
                    self.files.append(file)
                    continue
                file.close()
            is_taken = False
            self._note_fault(
                f"{path}: it is damaged, or younger than the checkpoint",
                self.files[-1].end_physical if self.files else 0,
            )
            self._storage.remove_file(path)
        if not self.files:
            return 0
        last = self.files[-1].end_physical
        # After a clean stop all keys of the last record are in; else some may be missing.
        return self._end_of(last) if was_clean else last

    def _end_of(self, physical_offset: int) -> int:
        """Return where the record at this offset ends; the offset itself if there is no record."""
        file = self._log.queue.find(physical_offset)
        if file is None:
            return physical_offset
        at = physical_offset - file.begin
        return file.begin + scan(file.view, at, file.size, file.begin, 1)[1]


def cut_at(storage: Storage, files: list[IndexFile], end_offset: int) -> None:
    """Drop entries for places beyond the log's end, and files that have no others."""
    while files and files[-1].end_physical >= end_offset:
        file = files[-1]
        if file.begin_physical < end_offset and file.count > 1:
            file.cut(file.count, end_offset)
        if file.count > 1 and file.end_physical < end_offset:
            break
        files.pop().close()
        storage.remove_file(file.path)
