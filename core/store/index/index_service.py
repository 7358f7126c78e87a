"""The index of a store: adds the keys of appended records, finds records by key and time.

Owns: IndexService: what is not indexed yet, and when it is. Must not touch: the sequence of files
(index_files), what a start trusts (index_start), whether a record really has a key (index_query),
bytes of an index file (index, index_file), the log (which it only reads).

    append -> note -> dispatch reads the appended records from the log, into the newest file
    start: load, then feed gets the keys of the records that recovery walks over, then finish
    for keys missing then, or after the disk was full: catch_up reads the log step by step

Invariants: the keys of every record in [log begin, indexed_offset) are in the files. After a fault
a record's keys may be stored twice; a query yields the record once.
The index never refuses an append: if a file cannot be made, ``dispatch`` retries later from the
log, and until then queries do not find the records since. A failed sync is different (threats.md
12): it reaches the checkpoint and fences the store.
Spec: RocketMQ IndexService.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from motelog.core.clock import Clock
from motelog.core.errors import StoreError
from motelog.core.records.layout import ScanStop
from motelog.core.records.scan import find_record
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.store.disk.files import Storage
from motelog.core.store.index.cold_places import KeyPlaces, LogFiles
from motelog.core.store.index.index import IndexItem, key_hash
from motelog.core.store.index.index_file import next_key
from motelog.core.store.index.index_files import IndexFiles
from motelog.core.store.index.index_query import Query, QueryResult
from motelog.core.store.index.index_start import IndexStart, cut_at
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.log.mapped_file_queue import MappedFile
from motelog.core.store.state.checkpoint import IndexTable
from motelog.core.store.state.progress import ProgressMeter

logger = logging.getLogger(__name__)

# A dispatch waits for this many records: few enough to be still in the processor's cache.
PENDING_MAX: Final = 1024
# The same while the first file, or the next one, is being made.
WAITING_MAX: Final = 65_536
RECORDS_PER_STEP: Final = 4096
CATCH_UP_BYTES: Final = 16_777_216
OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The files to sync before ``table`` and ``index_ms`` may be written.

    ``table`` is None if it has not changed since the last plan.
    """

    paths: list[str]
    directories: list[str]
    table: IndexTable | None
    index_ms: int


class IndexService:
    """The index of one store folder; all calls come from the thread that appends."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        log: CommitLog,
        *,
        slots: int,
        entries: int,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._directory = f"{directory}/index"
        self._log = log
        self._slots = slots
        self._entries = entries
        self._files = IndexFiles(storage, self._directory, clock, slots=slots, entries=entries)
        # Keys are missing from this physical offset on; None if all are there.
        self._missing_from: int | None = None
        # Appended records from there on; some have keys.
        self._pending = 0
        # Whether there is more to read than what was just appended: after a start, or a failure.
        self._is_behind = False
        self._trouble: str | None = None
        # Why the start rebuilds files, and from which physical offset; empty if it does not.
        self.fault = ""
        self.made_from = 0
        # Whether the current walk began at or before the end of the index.
        self._is_fed = False
        self._noted: IndexTable | None = None

    # -- start -----------------------------------------------------------------------------

    def load(self, table: IndexTable | None, *, was_clean: bool, index_ms: int) -> None:
        """Keep what files and table agree on and remove the rest; blocks.

        Without a table the folder is RocketMQ's, or has never had an index. The log's end is not
        known yet: ``finish`` removes entries for places beyond it.
        """
        start = IndexStart(
            self._storage, self._directory, self._log, slots=self._slots, entries=self._entries
        )
        self._files.open(start.files)
        self._missing_from = start.load(table, was_clean=was_clean, index_ms=index_ms)
        self.fault, self.made_from = start.fault, start.made_from
        self._is_behind = True

    def begin_feed(self, begin: int) -> None:
        """Note that recovery walks the log from ``begin`` on; ignored if the index ends below."""
        assert self._missing_from is not None, "load comes first"
        self._is_fed = self._missing_from >= begin

    def feed(self, items: list[IndexItem], end: int) -> None:
        """Index the records with keys that a step of the walk found, up to the offset ``end``."""
        if not self._is_fed or self._missing_from is None:
            return
        if items and items[0][0] < self._missing_from:
            items = [item for item in items if item[0] >= self._missing_from]
        if self._put(items):
            self._missing_from = max(self._missing_from, end)
        else:
            # Files hold the keys in the log's order: later keys have to wait for these.
            self._is_fed = False

    def finish(self, meter: ProgressMeter) -> None:
        """Index the records of the log that the walk has not fed; blocks."""
        assert self._missing_from is not None
        end = self._log.end_offset
        cut_at(self._storage, self._files.kept, end)
        begin = self._missing_from = max(min(self._missing_from, end), self._log.begin_offset)
        meter.begin("rebuilding the index", end - begin)
        while self._missing_from is not None and self._trouble is None:
            self.catch_up(CATCH_UP_BYTES)
            meter.advance(self.indexed_offset - begin)
        logger.info("the index is ready files=%d from=%d end=%d", len(self._files.kept), begin, end)

    def catch_up(self, bytes_max: int = OFFSET_MAX) -> None:
        """Index the log from where the index ends, at most ``bytes_max`` of it."""
        begin = self._missing_from or 0
        while self._missing_from is not None:
            at = max(self._missing_from, self._log.begin_offset)
            file = self._log.queue.find(at)
            if file is None or at >= self._log.end_offset:
                self._missing_from = None
                self._pending = 0
                self._is_behind = False
            elif at - begin >= bytes_max or not self._index_some(file, at):
                return

    def _index_some(self, file: MappedFile, at: int) -> bool:
        """Index some records of one log file; False if that is not possible now."""
        end = min(self._log.end_offset - file.begin, file.size)
        position, key, stop = at - file.begin, 0, None
        try:
            view = file.view
            while stop is None:
                unfilled = self._files.unfilled
                where = view, position, end, file.begin, key, RECORDS_PER_STEP
                if unfilled is not None:
                    position, key, stop = unfilled.put_records(*where)
                    self._files.make_ahead_in_time()
                else:
                    # A file is made only for a key.
                    position, key, stop = next_key(*where)
                    if stop is None:
                        self._files.begin_next()
        except (OSError, *NO_MEMORY) as exc:
            self._stop_at(file.begin + position, exc)
            return False
        self._note_success()
        match stop:
            case ScanStop.COUNT | ScanStop.END:
                self._missing_from = file.begin + position
            case ScanStop.BLANK:
                self._missing_from = file.end
            case _:
                # Damage: recovery has reported it, the log continues after it.
                self._missing_from = self._next_intact(file, position + 1)
        return True

    def _next_intact(self, file: MappedFile, position: int) -> int:
        for start, stop in file.region.data_ranges(position):
            hit = find_record(file.view, start, stop, file.size, file.begin)
            if hit >= 0:
                return file.begin + hit
        return file.end

    # -- append ----------------------------------------------------------------------------

    def note(self, begin: int, count: int) -> None:
        """Note ``count`` records appended at the physical offset ``begin``; some have keys."""
        if self._is_behind:
            return  # earlier ones come first
        if self._missing_from is None:
            self._missing_from = begin
        self._pending += count
        if self._pending >= PENDING_MAX and (
            self._files.is_ready() or self._pending >= WAITING_MAX
        ):
            self.dispatch()

    def dispatch(self) -> None:
        """Put pending keys. After a failure, index a part of the log that the index lacks."""
        self.catch_up(CATCH_UP_BYTES if self._is_behind else OFFSET_MAX)

    def _put(self, items: list[IndexItem]) -> bool:
        """Put keys into as many files as they need; if that fails, note where to continue."""
        item = key = 0
        try:
            while item < len(items):
                file = self._files.unfilled or self._files.begin_next()
                item, key = file.put(items, item, key)
                self._files.make_ahead_in_time()
        except (OSError, *NO_MEMORY) as exc:
            self._stop_at(items[item][0], exc)
            return False
        self._note_success()
        return True

    # -- queries and the rest --------------------------------------------------------------

    def _stop_at(self, physical_offset: int, error: Exception) -> None:
        self._missing_from = physical_offset
        self._is_behind = True
        if self._trouble is None:
            logger.warning(
                "the index has stopped: queries by key do not find newer messages; it catches up "
                "as soon as its files can be written offset=%d reason=%s",
                physical_offset,
                error,
            )
        self._trouble = str(error) or repr(error)

    def _note_success(self) -> None:
        if self._trouble is not None:
            logger.warning("the index works again and is catching up from the log")
            self._trouble = None

    def mapped_sizes(self) -> list[int]:
        """Return the size in bytes of each file that is mapped."""
        return self._files.mapped_sizes()

    @property
    def indexed_offset(self) -> int:
        """Records below this physical offset can be found by their keys."""
        return self._log.end_offset if self._missing_from is None else self._missing_from

    @property
    def last_entry(self) -> tuple[int, int]:
        """Return (store timestamp, physical offset) of the last entry's record, or zeros."""
        return self._files.last_entry

    def query(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        *,
        end_offset: int,
        count_max: int,
        only_unique: bool,
    ) -> QueryResult:
        """Return the newest records below ``end_offset`` of the log that have the key.

        StoreError if a file cannot be mapped.
        """
        wanted = Query(topic, key, begin_ms=begin_ms, end_ms=end_ms, only_unique=only_unique)
        try:
            self.dispatch()
            places = wanted.places(self._files.kept)
            records = wanted.records(self._log, places, end_offset=end_offset, count_max=count_max)
        except OSError as exc:
            raise StoreError(f"a file of index or log cannot be mapped: {exc}") from exc
        finally:
            self._files.unmap_old()
        return QueryResult(records, *self.last_entry)

    def places(self, topic: str, key: str, begin_ms: int, end_ms: int, log: LogFiles) -> KeyPlaces:
        """Return the places that ``query`` will read; some may not be on the disk."""
        hashed = key_hash(topic.encode(errors="replace"), key.encode(errors="replace"))
        shape = self._slots, self._entries
        return KeyPlaces(self._directory, *shape, hashed, begin_ms, end_ms, log)

    def plan(self) -> IndexPlan:
        """Put pending keys and return the files to sync and the table to write afterwards."""
        self.dispatch()
        paths, directories = self._files.take_dirty()
        states = self._files.states()
        table = IndexTable(indexed_offset=self.indexed_offset, files=states)
        index_ms = max((state.end_ms for state in states if state.count > 1), default=0)
        is_noted = table == self._noted
        self._noted = table
        return IndexPlan(paths, directories, None if is_noted else table, index_ms)

    def write_again(self) -> None:
        """Make the next plan include its table: the last one was not written."""
        self._noted = None

    def remove_below(self, physical_offset: int) -> list[str]:
        """Drop files that only have records below ``physical_offset``; the caller removes them."""
        return self._files.remove_below(physical_offset)

    def close(self) -> None:
        """Unmap all. Pending keys are in the log."""
        self._files.close()

    def _check(self) -> None:
        """Assert the invariants that can be seen without the log."""
        self._files._check()
        assert self._pending >= 0
        assert self._missing_from is not None or not (self._pending or self._is_behind)
