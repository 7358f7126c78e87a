"""The row of index files: puts the keys of what is appended, finds records by key and time.

Owns: IndexService: which file a key goes into, what is not indexed yet, what a start believes,
which record really has a key. Must not touch: bytes of an index file (index, index_file), the log
(it reads there, and never writes).

    append -> note -> dispatch reads what was appended from the log, into the newest file
    start: load, then feed gets the keys of the records that recovery walks over, then finish
    what lacks then, or after the disk was full: catch_up reads the log step by step

Invariants: the keys of every record in [log begin, indexed_offset) are in the files; files hold
consecutive stretches of the log, so that newer files have newer records. A record's keys may be in
twice after a fault; find yields it once.
The index never refuses an append: when a file cannot be made, ``dispatch`` tries again later from
the log, and queries do not find what was appended meanwhile. A failed sync is another matter
(threats.md 12): it reaches the checkpoint and fences the store.
Spec: RocketMQ IndexService.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from motelog.core.clock import Clock
from motelog.core.errors import RecordError, StoreError
from motelog.core.message import KEYS, UNIQ_KEY, decode_properties
from motelog.core.records.decode import decode
from motelog.core.records.layout import ScanStop
from motelog.core.records.scan import find_record, scan
from motelog.core.store.disk.files import TEMPORARY, Entry, Storage
from motelog.core.store.index.cold_places import KeyPlaces, LogFiles
from motelog.core.store.index.index import IndexItem, key_hash
from motelog.core.store.index.index_file import (
    NAME_DIGITS,
    IndexFile,
    file_bytes,
    next_key,
    shape_of,
)
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.log.mapped_file_queue import MappedFile
from motelog.core.store.state.checkpoint import IndexFileState, IndexTable
from motelog.core.store.state.progress import ProgressMeter

logger = logging.getLogger(__name__)

# Records that a dispatch waits for: few enough for them to be in the processor's cache still.
PENDING_MAX: Final = 1024
# While the first file, or the next one, is being made.
WAITING_MAX: Final = 65_536
RECORDS_PER_STEP: Final = 4096
CATCH_UP_BYTES: Final = 16_777_216
OFFSETS_PER_STEP: Final = 64
# Index files that stay mapped; the older ones only for as long as a query looks into them.
MAPPED_MAX: Final = 2
QUERY_COUNT_MAX: Final = 64
QUERY_BYTES_MAX: Final = 8_388_608
# Records looked at for one query, so that keys made to have one hash cannot hold up the rest.
CANDIDATES_MAX: Final = 4096
OFFSET_MAX: Final = (1 << 63) - 1
TIME_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Records that have a key, newest first, and the last record that has any."""

    records: list[bytes]
    index_last_ms: int
    index_last_offset: int


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What has to be synced before ``table`` and ``index_ms`` may be written down.

    ``table`` is None when it is what the plan before said.
    """

    paths: list[str]
    directories: list[str]
    table: IndexTable | None
    index_ms: int


class IndexService:
    """The index of one store folder; all calls come from the thread that appends.

    A worker thread makes files ahead of need and hands them over through a future.
    """

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
        self._parent = directory
        self._directory = f"{directory}/index"
        self._log = log
        self._slots = slots
        self._entries = entries
        self._clock = clock
        self._files: list[IndexFile] = []
        # The physical offset from which on keys lack; None when none does.
        self._lacking_from: int | None = None
        # Appended records since then, among them some with keys.
        self._pending = 0
        # Whether there is more to read than what was just appended: after a start, or a failure.
        self._is_behind = False
        self._trouble: str | None = None
        # Why the start makes files anew, and from which physical offset on; empty if it does not.
        self.fault = ""
        self.made_from = 0
        # The next file, made by the worker thread before it is needed: it touches nothing else.
        self._worker: ThreadPoolExecutor | None = None
        self._making: Future[IndexFile] | None = None
        # Whether the walk that is going on began no later than the index ends.
        self._is_fed = False
        self._has_new_file = False
        self._noted: IndexTable | None = None
        # Files that the last plan names: a thread may be about to sync them.
        self._planned: frozenset[str] = frozenset()

    # -- start -----------------------------------------------------------------------------

    def load(self, table: IndexTable | None, *, was_clean: bool, index_ms: int) -> None:
        """Believe what files and table agree on and remove the rest; blocks.

        Without a table the folder is RocketMQ's, or one in which there never was an index. The
        log's end is not known yet: what names places behind it goes in ``finish``.
        """
        self._storage.make_directory(self._directory)
        found = self._list()
        if table is not None:
            self._lacking_from = self._load_known(found, table, was_clean=was_clean)
        else:
            self._lacking_from = self._load_unknown(found, was_clean=was_clean, index_ms=index_ms)
        self._is_behind = True

    def begin_feed(self, begin: int) -> None:
        """Recovery walks the log from ``begin`` on; the index takes part if nothing lacks below."""
        assert self._lacking_from is not None, "load comes first"
        self._is_fed = self._lacking_from >= begin

    def feed(self, items: list[IndexItem], end: int) -> None:
        """Index the records with keys that a step of the walk found, up to the offset ``end``."""
        if not self._is_fed or self._lacking_from is None:
            return
        if items and items[0][0] < self._lacking_from:
            items = [item for item in items if item[0] >= self._lacking_from]
        if self._put(items):
            self._lacking_from = max(self._lacking_from, end)
        else:
            # Files hold the keys in the log's order: what follows has to wait for these.
            self._is_fed = False

    def finish(self, meter: ProgressMeter) -> None:
        """Index what the log has and the walk has not fed; blocks."""
        self._cut_at(self._log.end_offset)
        assert self._lacking_from is not None
        begin = self._lacking_from = max(self._lacking_from, self._log.begin_offset)
        total = self._log.end_offset - begin
        meter.begin("making the index anew", total)
        while self._lacking_from is not None and self._trouble is None:
            self.catch_up(CATCH_UP_BYTES)
            meter.advance(self.indexed_offset - begin)
        logger.info(
            "index ready files=%d from=%d end=%d", len(self._files), begin, self._log.end_offset
        )

    def _note_fault(self, fault: str, resume: int) -> None:
        logger.warning("the index is made anew from=%d reason=%s", resume, fault)
        if not self.fault:
            self.fault, self.made_from = fault, resume

    def _list(self) -> dict[str, Entry]:
        found = {}
        for entry in self._storage.list_directory(self._directory):
            if entry.name.endswith(TEMPORARY):
                self._storage.remove_file(f"{self._directory}/{entry.name}")
            elif entry.is_directory or len(entry.name) != NAME_DIGITS or not entry.name.isdecimal():
                logger.warning("not an index file path=%s/%s", self._directory, entry.name)
            else:
                found[entry.name] = entry
        return found

    def _load_known(self, found: dict[str, Entry], table: IndexTable, *, was_clean: bool) -> int:
        """Take the files of the table as far as they are what it says; return where to go on."""
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
                resume = self._files[-1].end_physical if self._files else 0
                self._note_fault(f"{self._directory}/{state.name}: {fault}", resume)
                break
        # Files that no checkpoint speaks of, or that follow one that is damaged, and that one.
        kept = {file.name for file in self._files}
        for name in found.keys() - kept:
            self._storage.remove_file(f"{self._directory}/{name}")
        return resume

    def _load_one(self, entry: Entry | None, state: IndexFileState, *, is_torn: bool) -> str | None:
        """Take one file of the table; return what is wrong with it, None if it is taken whole."""
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
        # What was put after the checkpoint may be on disk in parts: the slots even when the
        # header is not.
        if not is_as_noted or (is_torn and not file.is_full):
            file.end_ms, file.end_physical = state.end_ms, state.end_physical
            file.cut(state.count, OFFSET_MAX)
        fault = file.fault()
        if file.count == state.count and file.end_physical != state.end_physical:
            fault = f"its last record is {file.end_physical}, not {state.end_physical}"
        if self._files and file.begin_physical < self._files[-1].end_physical:
            fault = "it begins before the file before it ends"
        if fault is not None:
            file.close()
            return fault
        self._files.append(file)
        if file.count < state.count:
            return f"entry {file.count} is damaged, or the log ends before it"
        return None

    def _load_unknown(self, found: dict[str, Entry], *, was_clean: bool, index_ms: int) -> int:
        """Take RocketMQ's files by its own rules; return where to go on."""
        is_taken = True
        for name, entry in found.items():
            path = f"{self._directory}/{name}"
            shape = shape_of(entry.size, self._slots, self._entries)
            if is_taken and shape is not None:
                file = IndexFile(self._storage, path, *shape)
                file.read_header()
                is_taken = file.fault() is None and (was_clean or file.end_ms <= index_ms)
                if is_taken:
                    self._files.append(file)
                    continue
                file.close()
            is_taken = False
            self._note_fault(
                f"{path}: it is damaged, or younger than the checkpoint",
                self._files[-1].end_physical if self._files else 0,
            )
            self._storage.remove_file(path)
        if not self._files:
            return 0
        last = self._files[-1].end_physical
        # After a clean stop all keys of the last record are in; else some of them may not be.
        return self._end_of(last) if was_clean else last

    def _end_of(self, physical_offset: int) -> int:
        """Return where the record there ends, or its own place if none begins there."""
        file = self._log.queue.find(physical_offset)
        if file is None:
            return physical_offset
        at = physical_offset - file.begin
        return file.begin + scan(file.view, at, file.size, file.begin, 1)[1]

    def _cut_at(self, end_offset: int) -> None:
        """Drop entries that name a place behind the log's end."""
        while self._files and self._files[-1].end_physical >= end_offset:
            file = self._files[-1]
            if file.begin_physical < end_offset and file.count > 1:
                file.cut(file.count, end_offset)
            if file.count > 1 and file.end_physical < end_offset:
                break
            self._remove(self._files.pop())
        assert self._lacking_from is not None
        self._lacking_from = min(self._lacking_from, end_offset)

    def catch_up(self, bytes_max: int = OFFSET_MAX) -> None:
        """Index the log from where the index ends, at most ``bytes_max`` of it."""
        begin = self._lacking_from or 0
        while self._lacking_from is not None:
            at = max(self._lacking_from, self._log.begin_offset)
            file = self._log.queue.find(at)
            if file is None or at >= self._log.end_offset:
                self._lacking_from = None
                self._pending = 0
                self._is_behind = False
            elif at - begin >= bytes_max or not self._index_some(file, at):
                return

    def _index_some(self, file: MappedFile, at: int) -> bool:
        """Index some records of one log file; false when that is not possible now."""
        end = min(self._log.end_offset - file.begin, file.size)
        position, key, stop = at - file.begin, 0, None
        try:
            view = file.view
            while stop is None:
                last = self._files[-1] if self._files else None
                where = view, position, end, file.begin, key, RECORDS_PER_STEP
                if last is not None and not last.is_full:
                    position, key, stop = last.put_records(*where)
                    self._make_ahead_in_time()
                else:
                    # A file is made when there is a key for it.
                    position, key, stop = next_key(*where)
                    if stop is None:
                        self._add_file()
        except OSError as exc:
            self._stop_at(file.begin + position, exc)
            return False
        self._note_success()
        match stop:
            case ScanStop.COUNT | ScanStop.END:
                self._lacking_from = file.begin + position
            case ScanStop.BLANK:
                self._lacking_from = file.end
            case _:
                # Damage: recovery has reported it, the log goes on behind it.
                self._lacking_from = self._next_intact(file, position + 1)
        return True

    def _next_intact(self, file: MappedFile, position: int) -> int:
        for start, stop in file.region.data_ranges(position):
            hit = find_record(file.view, start, stop, file.size, file.begin)
            if hit >= 0:
                return file.begin + hit
        return file.end

    # -- append ----------------------------------------------------------------------------

    def note(self, begin: int, count: int) -> None:
        """Of ``count`` records appended at the physical offset ``begin``, some have keys."""
        if self._is_behind:
            return  # others come first
        if self._lacking_from is None:
            self._lacking_from = begin
        self._pending += count
        if self._pending >= PENDING_MAX and (self._has_file() or self._pending >= WAITING_MAX):
            self.dispatch()

    def _has_file(self) -> bool:
        """Say whether keys can be put without waiting for a file to be made."""
        if self._files and not self._files[-1].is_full:
            return True
        self._make_ahead()
        return self._making is not None and self._making.done()

    def dispatch(self) -> None:
        """Put what is pending; after a failure, some of what the log has and the index lacks."""
        self.catch_up(CATCH_UP_BYTES if self._is_behind else OFFSET_MAX)

    def _put(self, items: list[IndexItem]) -> bool:
        """Put keys, into as many files as they need; when that fails, note where to go on."""
        item = key = 0
        try:
            while item < len(items):
                if not self._files or self._files[-1].is_full:
                    self._add_file()
                item, key = self._files[-1].put(items, item, key)
                self._make_ahead_in_time()
        except OSError as exc:
            self._stop_at(items[item][0], exc)
            return False
        self._note_success()
        return True

    def _make_ahead_in_time(self) -> None:
        if self._files[-1].count > self._entries // 4 * 3:
            self._make_ahead()

    def _add_file(self) -> None:
        """Begin the next file; waits for it if it is being made, makes it if nobody did."""
        last = self._files[-1] if self._files else None
        making, self._making = self._making, None
        # A failed attempt is made again here, where its error stops the index.
        file = making.result() if making is not None and making.exception() is None else None
        if file is None:
            file = IndexFile.create(self._storage, self._next_path(), self._slots, self._entries)
        file.begin_behind(last)
        self._files.append(file)
        self._has_new_file = True
        self._unmap_old()

    def _make_ahead(self) -> None:
        """Begin to make the next file in the worker thread, unless that has been done."""
        if self._making is None:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="index-file")
            self._making = self._worker.submit(
                IndexFile.create, self._storage, self._next_path(), self._slots, self._entries
            )

    def _next_path(self) -> str:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        name = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
        if self._files:
            # Files are ordered by name, also when the clock goes back.
            name = max(name, int(self._files[-1].name) + 1)
        return f"{self._directory}/{name:0{NAME_DIGITS}d}"

    # -- queries and the rest --------------------------------------------------------------

    def _stop_at(self, physical_offset: int, error: OSError) -> None:
        self._lacking_from = physical_offset
        self._is_behind = True
        if self._trouble is None:
            logger.warning("the index stops at offset=%d reason=%s", physical_offset, error)
        self._trouble = str(error)

    def _note_success(self) -> None:
        if self._trouble is not None:
            logger.warning("the index goes on")
            self._trouble = None

    def mapped_sizes(self) -> list[int]:
        """Return the size in bytes of each file that is mapped."""
        files = list(self._files)
        making = self._making
        if making is not None and making.done() and making.exception() is None:
            files.append(making.result())
        return [file_bytes(file.slots, file.entries) for file in files if file.is_mapped]

    @property
    def indexed_offset(self) -> int:
        """Records below this physical offset can be found by their keys."""
        return self._log.end_offset if self._lacking_from is None else self._lacking_from

    @property
    def last_entry(self) -> tuple[int, int]:
        """Return (store timestamp, physical offset) of the last entry's record, or zeros."""
        for file in reversed(self._files):
            if file.count > 1:
                return file.end_ms, file.end_physical
        return 0, 0

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
        records: list[bytes] = []
        count_max = min(count_max, QUERY_COUNT_MAX)
        room = QUERY_BYTES_MAX
        wanted = topic.encode(errors="replace")
        places = self.find(wanted, key.encode(errors="replace"), begin_ms, end_ms)
        try:
            for _, place in zip(range(CANDIDATES_MAX), places, strict=False):
                if len(records) >= count_max:
                    break
                record = self._intact(place) if place < end_offset else None
                if record is None:
                    continue
                fields = decode(record)[0]
                if fields[0] != wanted or not begin_ms <= fields[8] <= end_ms:
                    continue
                if not _has_key(fields[12], key, only_unique=only_unique):
                    continue
                room -= len(record)
                if records and room < 0:
                    break
                records.append(record)
        except OSError as exc:
            raise StoreError(f"a file of index or log cannot be mapped: {exc}") from exc
        return QueryResult(records, *self.last_entry)

    def places(self, topic: str, key: str, begin_ms: int, end_ms: int, log: LogFiles) -> KeyPlaces:
        """Return where ``query`` will look, of which not all need be on the disk."""
        hashed = key_hash(topic.encode(errors="replace"), key.encode(errors="replace"))
        shape = self._slots, self._entries
        return KeyPlaces(self._directory, *shape, hashed, begin_ms, end_ms, log)

    def _intact(self, physical_offset: int) -> bytes | None:
        """Return the record there, None if it has been removed or is damaged."""
        try:
            return self._log.record_at(physical_offset)
        except RecordError:
            return None

    def find(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the places of records that may have the key and time, newest first, each once.

        OSError if a file cannot be mapped. Nothing may be appended while this is used.
        """
        self.dispatch()
        begin_ms = min(max(begin_ms, -TIME_MAX), TIME_MAX)
        end_ms = min(max(end_ms, -TIME_MAX), TIME_MAX)
        hashed = key_hash(topic, key)
        last: int | None = None
        try:
            for file in reversed(self._files):
                if file.count == 1 or file.begin_ms > end_ms:
                    continue
                if file.end_ms < begin_ms:
                    return
                number = 0
                while True:
                    offsets, number = file.select(
                        hashed, number, begin_ms, end_ms, OFFSETS_PER_STEP
                    )
                    for offset in offsets:
                        if offset != last:
                            yield offset
                        last = offset
                    if number == 0:
                        break
        finally:
            self._unmap_old()

    def _unmap_old(self) -> None:
        for file in self._files[:-MAPPED_MAX]:
            file.close()

    def plan(self) -> IndexPlan:
        """Put what is pending and return what has to be synced, and may be noted then."""
        self.dispatch()
        paths = []
        for file in self._files:
            if file.is_dirty:
                paths.append(file.path)
                file.is_dirty = False
        self._planned = frozenset(paths)
        directories = [self._directory, self._parent] if self._has_new_file else []
        self._has_new_file = False
        states = [
            IndexFileState(f.name, f.slots, f.entries, f.count, f.end_ms, f.end_physical)
            for f in self._files
        ]
        table = IndexTable(indexed_offset=self.indexed_offset, files=states)
        index_ms = max((f.end_ms for f in self._files if f.count > 1), default=0)
        is_noted = table == self._noted
        self._noted = table
        return IndexPlan(paths, directories, None if is_noted else table, index_ms)

    def write_again(self) -> None:
        """Have the next plan come with its table: the last one was not written down."""
        self._noted = None

    def remove_below(self, physical_offset: int) -> list[str]:
        """Give up files of records below ``physical_offset`` alone; the caller removes them.

        The newest file stays, and so does one that a checkpoint may be syncing: it goes next time.
        """
        removed: list[str] = []
        while len(self._files) > 1:
            file = self._files[0]
            if file.end_physical >= physical_offset or file.is_dirty or file.path in self._planned:
                break
            self._files.pop(0).close()
            removed.append(file.path)
        return removed

    def _remove(self, file: IndexFile) -> None:
        file.close()
        self._storage.remove_file(file.path)

    def close(self) -> None:
        """Unmap all; what is pending is in the log, a file made ahead and never used goes."""
        if self._worker is not None:
            self._worker.shutdown(wait=True)
        if self._making is not None and self._making.exception() is None:
            self._remove(self._making.result())
        self._making = None
        for file in self._files:
            file.close()

    def _check(self) -> None:
        """Assert the invariants that can be seen without the log."""
        last = -1
        for file in self._files:
            assert 1 <= file.count <= file.entries
            assert file.fault() is None
            if file.count > 1:
                assert last <= file.begin_physical <= file.end_physical
                last = file.end_physical
        assert self._pending >= 0
        assert self._lacking_from is not None or not (self._pending or self._is_behind)


def _has_key(properties: bytes, key: str, *, only_unique: bool) -> bool:
    found = decode_properties(properties)
    if found.get(UNIQ_KEY) == key:
        return True
    return not only_unique and key != "" and key in found.get(KEYS, "").split(" ")
