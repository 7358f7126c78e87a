"""The index files of an open store: the newest takes keys, the next one is made ahead of need.

Owns: IndexFiles: which file is next and how it is named, which are mapped, not yet synced, or no
longer needed. Must not touch: keys and what is not indexed yet (index_service), what a start trusts
(index_start), bytes of an index file (index, index_file).

Invariants: files hold consecutive parts of the log, so newer files have newer records; their names
ascend, even if the clock goes back.
Concurrency: all calls come from the thread that appends. A worker thread makes the next file, and
hands it over through a future.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from motelog.core.clock import Clock
from motelog.core.store.disk.files import Storage
from motelog.core.store.index.index_file import NAME_DIGITS, IndexFile, file_bytes
from motelog.core.store.state.checkpoint import IndexFileState
from motelog.core.threads import Workers

# Index files that stay mapped; older ones are mapped only while a query reads them.
MAPPED_MAX: Final = 2


class IndexFiles:
    """The files of one index, oldest first in ``kept``."""

    def __init__(
        self, storage: Storage, directory: str, clock: Clock, *, slots: int, entries: int
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        self.kept: list[IndexFile] = []
        # Makes the next file before it is needed, and touches nothing else.
        self._worker: Workers | None = None
        self._making: Future[IndexFile] | None = None
        self._has_new_file = False
        # The files of the last plan: a thread may be about to sync them.
        self._planned: frozenset[str] = frozenset()

    def open(self, kept: list[IndexFile]) -> None:
        """Continue with the files that a start keeps."""
        self.kept = kept
        self._worker = self._worker or Workers(1, "index-file")

    @property
    def unfilled(self) -> IndexFile | None:
        """The newest file while it has room for keys; None if the next must be begun."""
        newest = self.kept[-1] if self.kept else None
        return None if newest is None or newest.is_full else newest

    def is_ready(self) -> bool:
        """Return whether keys can be put without waiting for a file to be made."""
        if self.unfilled is not None:
            return True
        self._make_ahead()
        return self._making is not None and self._making.done()

    def begin_next(self) -> IndexFile:
        """Return the next file: wait for it if it is being made, otherwise make it."""
        newest = self.kept[-1] if self.kept else None
        making, self._making = self._making, None
        # A failed attempt is repeated here, where its error stops the index.
        file = making.result() if making is not None and making.exception() is None else None
        if file is None:
            file = IndexFile.create(self._storage, self._next_path(), self._slots, self._entries)
        file.begin_behind(newest)
        self.kept.append(file)
        self._has_new_file = True
        self.unmap_old()
        return file

    def make_ahead_in_time(self) -> None:
        """Begin to make the next file when the newest is nearly full."""
        if self.kept[-1].count > self._entries // 4 * 3:
            self._make_ahead()

    def _make_ahead(self) -> None:
        """Begin to make the next file in the worker thread, unless that has been done."""
        if self._making is None:
            assert self._worker is not None, "open comes first"
            # If no thread takes it, a later call asks again, or the file is made when needed.
            with suppress(OSError):
                self._making = self._worker.submit(
                    IndexFile.create, self._storage, self._next_path(), self._slots, self._entries
                )

    def _next_path(self) -> str:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        name = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
        if self.kept:
            name = max(name, int(self.kept[-1].name) + 1)
        return f"{self._directory}/{name:0{NAME_DIGITS}d}"

    def unmap_old(self) -> None:
        """Unmap the files that only a query maps."""
        for file in self.kept[:-MAPPED_MAX]:
            file.close()

    def mapped_sizes(self) -> list[int]:
        """Return the size in bytes of each file that is mapped."""
        files = list(self.kept)
        making = self._making
        if making is not None and making.done() and making.exception() is None:
            files.append(making.result())
        return [file_bytes(file.slots, file.entries) for file in files if file.is_mapped]

    @property
    def last_entry(self) -> tuple[int, int]:
        """Return (store timestamp, physical offset) of the last entry's record, or zeros."""
        for file in reversed(self.kept):
            if file.count > 1:
                return file.end_ms, file.end_physical
        return 0, 0

    def states(self) -> list[IndexFileState]:
        """Return the files as they are now, for the table of a checkpoint."""
        return [
            IndexFileState(f.name, f.slots, f.entries, f.count, f.end_ms, f.end_physical)
            for f in self.kept
        ]

    def take_dirty(self) -> tuple[list[str], list[str]]:
        """Return the files and the directories to sync; from now on they count as synced."""
        paths = []
        for file in self.kept:
            if file.is_dirty:
                paths.append(file.path)
                file.is_dirty = False
        self._planned = frozenset(paths)
        has_new_file, self._has_new_file = self._has_new_file, False
        return paths, [self._directory, os.path.dirname(self._directory)] if has_new_file else []

    def remove_below(self, physical_offset: int) -> list[str]:
        """Drop files that only have records below ``physical_offset``; the caller removes them.

        The newest file stays, and so does one that a checkpoint may be syncing, until next time.
        """
        removed: list[str] = []
        while len(self.kept) > 1:
            file = self.kept[0]
            if file.end_physical >= physical_offset or file.is_dirty or file.path in self._planned:
                break
            self.kept.pop(0).close()
            removed.append(file.path)
        return removed

    def close(self) -> None:
        """Unmap all; a file made ahead but not used is removed."""
        if self._worker is not None:
            self._worker.shut_down()
        if self._making is not None and self._making.exception() is None:
            unused = self._making.result()
            unused.close()
            self._storage.remove_file(unused.path)
        self._making = None
        for file in self.kept:
            file.close()

    def _check(self) -> None:
        """Assert the invariants."""
        last = -1
        for file in self.kept:
            assert 1 <= file.count <= file.entries
            assert file.fault() is None
            if file.count > 1:
                assert last <= file.begin_physical <= file.end_physical
                last = file.end_physical
