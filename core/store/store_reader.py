"""Reads of an open store: queues by offset and time, records by their place and by key.

Owns: StoreReader, ReadResult. Must not touch: appends; how far the log may be read (readable);
which places are in memory, and paging in (page_cache).

    read, query, ...           the bytes, through maps, however long the disk takes
    the same, may_wait=False   the bytes, or NotInMemoryError, which names what to page in
    await when_in_memory(read) the bytes, paged in before: for callers with a task of their own

Concurrency: everything runs in the thread of the trio run; ``page_in`` and ``when_in_memory`` wait
for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import IntEnum
from time import perf_counter_ns
from typing import Final, Protocol, TypeVar

import msgspec
import trio

from motelog.core.errors import RecordError, StoreError
from motelog.core.records.decode import decode
from motelog.core.records.layout import FILLER_SIZE, UNIT_BYTES
from motelog.core.records.read import select_units
from motelog.core.store.disk.page_cache import (
    NotInMemoryError,
    Pageable,
    PageCache,
    PageIns,
    Places,
)
from motelog.core.store.index.cold_places import SIZE_BYTES, LogFiles
from motelog.core.store.index.index_query import QueryResult
from motelog.core.store.index.index_service import IndexService
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.quarantine import AsideFile
from motelog.core.store.queues.consume_queue import UNIT, ConsumeQueue
from motelog.core.store.queues.unit_records import (
    check_units,
    gather,
    gather_each,
    is_odd,
    read_units,
)
from motelog.core.store.readable import Readable
from motelog.core.store.stats import StoreStats

SCAN_UNITS_MIN = 800  # RocketMQ looks at 16000 bytes of units, or count_max when that is more
# Units at a queue's end that are assumed to be in memory if they were written since the start.
WARM_UNITS = 1_000_000
ASIDE_WAIT_S = 10.0


class ReadStatus(IntEnum):
    """What a read found (RocketMQ GetMessageStatus)."""

    FOUND = 0
    NO_MATCH = 1
    OFFSET_TOO_SMALL = 2
    OFFSET_OVERFLOW_ONE = 3
    OFFSET_OVERFLOW_BADLY = 4
    NO_MESSAGE_IN_QUEUE = 5
    NO_QUEUE = 6
    MESSAGE_WAS_REMOVED = 7


# Found at once in a read, unlike a member of an enumeration.
_FOUND: Final = ReadStatus.FOUND


class ReadResult(msgspec.Struct, frozen=True, gc=False):
    """Records of one queue; ``next_offset`` is after the last unit examined.

    ``behind_bytes``: how much log there is after the record of that unit. ``record_bytes``: the
    size of the records, even if ``records`` has their units. Made for each pull: a frozen
    dataclass takes ten times as long to make.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0
    behind_bytes: int = 0
    record_bytes: int = 0


ResultT = TypeVar("ResultT", covariant=True)


class Read(Protocol[ResultT]):
    """A read whose arguments are bound, except ``may_wait``."""

    def __call__(self, *, may_wait: bool) -> ResultT: ...


class StoreReader:
    """Reads of one store; StoreError while it is not open.

    With ``may_wait=False`` a read raises NotInMemoryError if it would have to wait for the disk.
    Any read raises UnitsAsideError, a NotInMemoryError, if a file of units is being rebuilt.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        readable: Readable,
        index: IndexService,
        page_cache: PageCache,
        stats: StoreStats,
        *,
        cached_bytes: int,
        check_open: Callable[[], None],
    ) -> None:
        self.cached_bytes = cached_bytes
        # Where the log ended when the store was opened; records after it were written since.
        self.opened_at = 0
        self._log = log
        self._queues = queues
        self._readable = readable
        self._index = index
        self._page_cache = page_cache
        self._stats = stats
        self._check_open = check_open

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 262_144,
        tag_codes: AbstractSet[int] | None = None,
        may_wait: bool = True,
        as_units: bool = False,
    ) -> ReadResult:
        """Return records from ``queue_offset`` on, as they are stored, one after the other.

        At most ``count_max`` of them and ``bytes_max`` bytes, but always the first that matches.
        With ``tag_codes`` only records whose tag hash is among them; at most 800 units are examined
        (or count_max, if that is more). ``as_units`` returns the units of these records instead,
        without a check that the records exist.
        """
        began_ns = perf_counter_ns()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            self._stats.note_miss()
            return ReadResult(ReadStatus.NO_QUEUE, 0, 0, 0)
        log_begin = self._log.begin_offset
        low, high = self._min_offset_of(queue, log_begin), self._readable.max_offset(queue)
        if not low <= queue_offset < high:
            self._stats.note_miss()
            return _nothing(queue_offset, low, high)
        self._check_open()
        window = count_max if tag_codes is None else max(SCAN_UNITS_MIN, count_max)
        window = min(window, high - queue_offset)
        # What was written since the start is in memory, unless it was very much.
        is_warm = queue_offset >= queue.opened_at and high - queue_offset <= WARM_UNITS
        is_doubtful = not is_warm or (queue.unchecked and queue.is_unchecked(queue_offset))
        if not may_wait and is_doubtful:
            self._page_cache.require(queue.places(queue_offset, window))
        units = read_units(queue, queue_offset, window)
        chosen, looked, removed, record_bytes = select_units(
            units, count_max, bytes_max, tag_codes, log_begin
        )
        if not may_wait and chosen and not as_units and self._is_cold(chosen):
            self._page_cache.require(self._log.places(chosen))
        end = queue_offset + looked
        records = chosen if as_units else gather(self._log, chosen, queue, queue_offset, end)
        count = len(chosen) // UNIT_BYTES
        lead_nowhere = removed and is_odd(units[: looked * UNIT_BYTES], log_begin)
        if records is None or lead_nowhere or looked < min(count_max, 1):
            check_units(queue, queue_offset, max(looked, 1))
            if not as_units:
                records, count = gather_each(self._log, chosen, queue, queue_offset, end)
                record_bytes = len(records)
        assert records is not None
        self._stats.note_read(count, record_bytes, perf_counter_ns() - began_ns)
        status = _FOUND if count else _missed(bool(removed or chosen))
        last = units[(looked - 1) * UNIT_BYTES : looked * UNIT_BYTES]
        behind_bytes = self._log.end_offset - int.from_bytes(last[:8], "big")
        return ReadResult(status, end, low, high, records, count, behind_bytes, record_bytes)

    @property
    def verified_from(self) -> int:
        """Records that begin below this physical offset are to be verified when they are read."""
        return self._log.verified_from

    def _is_cold(self, units: bytes) -> bool:
        """Return whether the first record that units name may be missing from memory."""
        return int.from_bytes(units[:8], "big") < self._warm_from

    async def page_in(self, missing: Sequence[Pageable]) -> None:
        """Page in the missing places of a read; the event loop continues meanwhile."""
        # With a limit: a reader that is gone by then must not keep its place in the line for ever.
        with trio.move_on_after(ASIDE_WAIT_S):
            for place in missing:
                if isinstance(place, AsideFile):
                    await place.back.wait()
        await self._page_cache.page_in(missing)

    async def when_in_memory(self, read: Read[ResultT]) -> ResultT:
        """Return the result of ``read``, after paging in the places that it needs."""
        page_ins = PageIns()
        while True:
            try:
                return read(may_wait=page_ins.may_wait)
            except NotInMemoryError as cold:
                missing = cold.missing
            page_ins.note(missing)
            await self.page_in(missing)

    def units(
        self, topic: str, queue_id: int, queue_offset: int, count: int, *, may_wait: bool = True
    ) -> bytes:
        """Return up to ``count`` ConsumeQueue units from ``queue_offset`` on; fewer at the end."""
        queue = self._queues.get((topic, queue_id))
        end = 0 if queue is None else self._readable.max_offset(queue)
        if queue is None or not 0 <= queue_offset < end:
            return b""
        self._check_open()
        count = min(count, end - queue_offset)
        if not may_wait:
            self._page_cache.require(queue.places(queue_offset, count))
        return read_units(queue, queue_offset, count)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message there is; 0 without such a queue."""
        queue = self._queues.get((topic, queue_id))
        return self._min_offset_of(queue) if queue is not None else 0

    def _min_offset_of(self, queue: ConsumeQueue, log_begin: int | None = None) -> int:
        try:
            return queue.advance_min(self._log.begin_offset if log_begin is None else log_begin)
        except OSError as exc:
            raise StoreError(f"a ConsumeQueue file cannot be read: {exc}") from exc

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message to be read will have.

        0 without such a queue.
        """
        queue = self._queues.get((topic, queue_id))
        return self._readable.max_offset(queue) if queue is not None else 0

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, may_wait: bool = True
    ) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later.

        The maximum offset if all are older; 0 without such a queue.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = self._min_offset_of(queue), self._readable.max_offset(queue)
        while low < high:
            middle = (low + high) // 2
            # A lost record (-1) counts as old, so that the search ends at one that exists.
            stored_ms = self.store_timestamp(topic, queue_id, middle, may_wait=may_wait)
            if stored_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def last_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, may_wait: bool = True
    ) -> int:
        """Return the offset of the last message stored at ``timestamp_ms`` or earlier.

        0 if all are newer, as in RocketMQ, and without such a queue.
        """
        behind = self.offset_by_time(topic, queue_id, timestamp_ms + 1, may_wait=may_wait)
        return behind - 1 if behind > self.min_offset(topic, queue_id) else 0

    def store_timestamp(
        self, topic: str, queue_id: int, queue_offset: int, *, may_wait: bool = True
    ) -> int:
        """Return when a message was stored, in ms; -1 if it is not there."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return -1
        self._check_open()
        if not self._min_offset_of(queue) <= queue_offset < self._readable.max_offset(queue):
            return -1
        if not may_wait:
            self._page_cache.require(queue.places(queue_offset, 1))
        units = read_units(queue, queue_offset, 1)
        if UNIT.unpack(units)[1] == FILLER_SIZE:
            return -1
        if not may_wait and self._is_cold(units):
            self._page_cache.require(self._log.places(units))
        record = gather(self._log, units, queue, queue_offset, queue_offset + 1)
        if record is None:
            check_units(queue, queue_offset, 1)
            return -1
        begin = 68 if record[39] & 0x10 else 56
        return int.from_bytes(record[begin : begin + 8], "big", signed=True)

    def record_at(self, physical_offset: int, *, may_wait: bool = True) -> bytes:
        """Return the record that begins at ``physical_offset``; RecordError if none does.

        StoreError if it cannot be read.
        """
        self._check_open()
        if physical_offset >= self._readable.offset:
            raise RecordError("outside the log", offset_bytes=physical_offset)
        if not may_wait:
            self._require_record(physical_offset)
        try:
            return self._log.record_at(physical_offset)
        except OSError as exc:
            raise StoreError(f"a CommitLog file cannot be read: {exc}") from exc

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int,
        end_ms: int,
        count_max: int = 32,
        only_unique: bool = False,
        may_wait: bool = True,
    ) -> QueryResult:
        """Return records of a topic that have a key and were stored in [begin_ms, end_ms].

        A key is the record's UNIQ_KEY or, unless ``only_unique``, a word of its KEYS. At most
        ``count_max`` of them (and never more than 64, or 8 MiB), the newest first.
        """
        self._check_open()
        if not may_wait and self._log.begin_offset < self._warm_from:
            places = self._index.places(topic, key, begin_ms, end_ms, self._log_files())
            self._page_cache.require_paged_in(places)
        found = self._index.query(
            topic,
            key,
            begin_ms,
            end_ms,
            end_offset=self._readable.offset,
            count_max=count_max,
            only_unique=only_unique,
        )
        return replace(found, records=[r for r in found.records if not self._is_hidden(r)])

    def _is_hidden(self, record: bytes) -> bool:
        """Return whether a record is from before its topic was deleted."""
        topic, queue_id, queue_offset = decode(record)[0][:3]
        queue = self._queues.get((topic.decode(), queue_id))
        return queue is not None and queue_offset < queue.hidden_below

    def _require_record(self, physical_offset: int) -> None:
        """Check that the record that begins there is in memory; else NotInMemoryError."""
        if not self._log.begin_offset <= physical_offset < self._warm_from:
            return
        place = self._log_files().record(physical_offset)
        if place is None:
            return
        is_missing = self._page_cache.missing
        if not is_missing([Places(place.path, ((place.at, place.at + SIZE_BYTES),))]):
            end = min(place.at + self._log.size_at(physical_offset), place.end)
            if not is_missing([Places(place.path, ((place.at, end),))]):
                return
        raise NotInMemoryError([place])

    def _log_files(self) -> LogFiles:
        queue = self._log.queue
        paths = tuple(file.path for file in queue.files)
        return LogFiles(self._log.begin_offset, queue.file_bytes, paths)

    @property
    def _warm_from(self) -> int:
        """The log from this offset on is in memory, as long as the memory is large enough."""
        return max(self.opened_at, self._log.end_offset - self.cached_bytes)

    def earliest_timestamp_ms(self, *, may_wait: bool = True) -> int:
        """Return when the oldest message was stored, -1 if there is none or it cannot be read."""
        try:
            fields = decode(self.record_at(self._log.begin_offset, may_wait=may_wait))[0]
        except StoreError:
            return -1
        return int(fields[8])


def _missed(has_lost: bool) -> ReadStatus:
    """Return why units that were looked at gave no records."""
    return ReadStatus.MESSAGE_WAS_REMOVED if has_lost else ReadStatus.NO_MATCH


def _nothing(queue_offset: int, low: int, high: int) -> ReadResult:
    """Return the result of a read at an offset outside [low, high) of a queue."""
    if high == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if queue_offset < low:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, high, low, high)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
