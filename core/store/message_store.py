"""The store as the broker sees it: append a batch, read a queue, wait until it is on disk.

Owns: MessageStore: opening and closing a folder, the order log -> ConsumeQueues -> listeners, the
fence, the refusal before the disk is full, the checkpoint. Must not touch: byte formats
(core.record), the operating system (files), when to flush (flush), how to recover (recovery).

    commitlog/ consumequeue/   the log and the queues made from it
    index/                     the records' keys
    checkpoint queues.json     how far all of these are on disk
    index.json
    abort                      there while the store is open
    lock                       held while the store is open
    damaged/                   bytes that recovery took out of the log

Concurrency: everything runs in the thread of the trio run, except open and close (called in a
thread before and after) and the syncs, which get paths and offsets only.
Invariants: an append is all or nothing; what it wrote is in the ConsumeQueues and the listeners
have been called when it returns; after a failed write or flush every append and every wait raises
StoreFencedError until a restart.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from time import perf_counter_ns

import trio

from core.clock import Clock, SteadyClock
from core.errors import (
    RecordError,
    StoreError,
    StoreFencedError,
    StoreFullError,
    StoreLockedError,
)
from core.record import (
    UNIT_BYTES,
    AppendMessage,
    QueueTail,
    measure,
    select_units,
)
from core.store.checkpoint import IndexTable, QueueTable, StateFiles, StoreCheckpoint
from core.store.cleanup import LogCleaner
from core.store.commitlog import CommitLog
from core.store.config import StoreConfig
from core.store.consume_queue import ConsumeQueue, OpenRegions, is_topic_name
from core.store.due_time import DueTimes
from core.store.files import Lock, OsStorage, Storage
from core.store.flush import GroupFlusher
from core.store.index import keyed
from core.store.index_service import IndexService, QueryResult
from core.store.recovery import Recovery, RecoveryReport
from core.store.stats import StoreStats

logger = logging.getLogger(__name__)

SCAN_UNITS_MIN = 800  # RocketMQ looks at 16000 bytes of units, or count_max when that is more
QUEUE_ID_MAX = 65_535
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
QUEUE_TABLE_INTERVAL_MS = 60_000


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


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Records of one queue; ``next_offset`` is behind the last unit looked at."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0


class MessageStore:
    """One store folder, open in one process."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes,
        clock: Clock,
        storage: Storage | None = None,
    ) -> None:
        self.config = config
        self.due_times = DueTimes(config.delay_levels)
        self.stats = StoreStats()
        self._clock = SteadyClock(clock)
        self._storage: Storage = storage or OsStorage()
        self._state_files = StateFiles(self._storage, config.directory)
        self._regions = OpenRegions(self._storage, config.consume_queue_files_open_max)
        self._log = CommitLog(
            self._storage,
            f"{config.directory}/commitlog",
            config.commitlog_file_bytes,
            store_host=store_host,
            clock=self._clock,
        )
        self.index = IndexService(
            self._storage,
            config.directory,
            self._log,
            slots=config.index_slots,
            entries=config.index_entries,
            clock=self._clock,
        )
        self._flusher = GroupFlusher(
            sync=self._sync_log,
            end_offset=lambda: self._log.end_offset,
            on_failure=self._fence,
            interval_ms=config.flush_interval_ms,
        )
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._queue_of: dict[QueueTail, ConsumeQueue] = {}
        self._lock: Lock | None = None
        self._is_open = False
        self._fence_reason: str | None = None
        self._full_reason: str | None = None
        self._checkpoint_limiter = trio.CapacityLimiter(1)
        # Held while files are synced or removed by name.
        self._files_lock = trio.Lock()
        self.cleaner = LogCleaner(
            config,
            clock,
            self._storage,
            self._log,
            self._queues,
            flusher=self._flusher,
            files_lock=self._files_lock,
        )
        self.cleaner.after_removal.append(self.index.remove_below)
        self._table_written_ms = 0
        self._table_queues = 0
        self.on_dispatch: list[Callable[[list[QueueTail]], None]] = []

    # -- opening and closing ---------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock the folder, recover what is in it and be ready to append; blocks.

        Raises StoreLockedError, StoreDamagedError, and OSError as it comes.
        """
        self._storage.make_directory(self.config.directory, durable=True)
        self._lock = self._storage.lock(f"{self.config.directory}/lock")
        if self._lock is None:
            raise StoreLockedError(f"{self.config.directory} is open in another process")
        try:
            report = self._recover()
        except BaseException:
            self._release()
            raise
        self._is_open = True
        return report

    def _recover(self) -> RecoveryReport:
        state = self._state_files
        self._log.queue.load()
        was_clean = not state.has_abort()
        state.write_abort(os.getpid())
        self._find_queues()
        checkpoint = state.read_checkpoint()
        recovery = Recovery(
            self._storage,
            self.config.directory,
            self._log,
            self._queues,
            self._make_queue,
            self.due_times,
        )
        report = recovery.run(was_clean=was_clean, checkpoint=checkpoint, table=state.read_queues())
        last_ms = max(checkpoint.physic_ms, recovery.last_store_timestamp_ms)
        self._log.start_at(report.end_offset, last_ms)
        self._log.verified_from = report.scanned_from
        self._clock.not_before(last_ms)
        self._queue_of = {queue.tail: queue for queue in self._queues.values()}
        self.index.recover(state.read_index(), was_clean=was_clean, index_ms=checkpoint.index_ms)
        self._check_disk()
        # Nothing that recovery wrote may be younger on disk than a checkpoint that speaks of it.
        self._storage.sync_directory(f"{self.config.directory}/commitlog")
        self._sync_log(report.scanned_from, self._log.end_offset + 1)
        self._flusher.start_at(self._log.end_offset)
        self._write_checkpoint(self._plan_checkpoint(with_table=True))
        return report

    def _find_queues(self) -> None:
        root = f"{self.config.directory}/consumequeue"
        self._storage.make_directory(root)
        for topic in self._storage.list_directory(root):
            if not topic.is_directory or not is_topic_name(topic.name):
                logger.warning("not a topic's directory path=%s/%s", root, topic.name)
                continue
            for queue in self._storage.list_directory(f"{root}/{topic.name}"):
                if queue.name.isdecimal() and queue.is_directory:
                    key = (topic.name, int(queue.name))
                    self._queues[key] = self._make_queue(*key)

    def _make_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        root = f"{self.config.directory}/consumequeue"
        units = self.config.consume_queue_file_units
        return ConsumeQueue(self._regions, root, topic, queue_id, units)

    def close(self) -> None:
        """Make everything durable, note that the stop was clean and let go of the folder; blocks.

        A fenced store leaves its abort file, so that the next start looks at every record.
        """
        try:
            self._finish()
        finally:
            self._release()

    def _finish(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._fence_reason is None:
            self._sync_log(self._flusher.durable_offset, self._log.end_offset)
            self._flusher.start_at(self._log.end_offset)
            self._write_checkpoint(self._plan_checkpoint(with_table=True, is_closed=True))
            self._state_files.remove_abort()

    def _release(self) -> None:
        self._regions.close()
        self.index.close()
        self._log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush, checkpoint, clean and watch the disk until cancelled; then close the store."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flusher.run)
                nursery.start_soon(self._checkpoint_each_interval)
                nursery.start_soon(self._watch_disk)
                nursery.start_soon(self.cleaner.run)
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await trio.to_thread.run_sync(self._finish)
                finally:
                    # Not in the thread: nobody may be reading while the files are unmapped.
                    self._release()

    # -- append ----------------------------------------------------------------------------

    def queue_tail(self, topic: str, queue_id: int) -> QueueTail:
        """Return the tail that messages for this queue are appended with.

        The queue exists from then on, empty; its file appears with its first record. StoreError
        for a name that cannot be a topic's.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not is_topic_name(topic):
                raise StoreError(f"{topic!r} cannot be the name of a topic")
            if not 0 <= queue_id <= QUEUE_ID_MAX:
                raise StoreError(f"queue id {queue_id} is not in [0, {QUEUE_ID_MAX}]")
            queue = self._make_queue(topic, queue_id)
            self._queues[(topic, queue_id)] = queue
            self._queue_of[queue.tail] = queue
        return queue.tail

    def append(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None = None,
        *,
        store_timestamp_ms: int | None = None,
        even_if_full: bool = False,
    ) -> int:
        """Append a batch, all or nothing; return the physical offset behind it.

        When it returns, the records are readable and the listeners have been called; they are
        durable after ``wait_durable`` of that offset. ``placed`` gets (physical offset, queue
        offset) per message. ``store_timestamp_ms`` is one that ``now_ms`` has returned, for those
        who derive a due time from it. ``even_if_full`` is for what makes room by appending: the
        limits on the disk's use do not hold for it. Raises RecordTooLargeError, StoreFullError or
        StoreFencedError.
        """
        if self._fence_reason is not None:
            raise StoreFencedError(self._fence_reason)
        if not self._is_open:
            raise StoreError("the store is not open")
        if self._full_reason is not None and not even_if_full:
            raise StoreFullError(self._full_reason)
        began_at, began_ns = self._log.end_offset, perf_counter_ns()
        lacking: list[QueueTail] = []
        total, largest = measure(messages, 0, self.config.message_bytes_max, lacking)
        dirty: list[QueueTail] = []
        with_keys = keyed(messages)
        if with_keys and placed is None:
            placed = []
        try:
            # All that can fail for want of space or descriptors comes before the first byte.
            self._log.make_room(total, largest)
            for tail in lacking:
                self._queue_of[tail].ensure_room(tail.next_offset + len(messages))
        except OSError as exc:
            if exc.errno in NO_ROOM:
                raise StoreFullError(f"no room for a batch: {exc}") from exc
            self._fence(f"making room for a batch failed: {exc}")
            raise StoreFencedError(f"making room for a batch failed: {exc}") from exc
        try:
            end_offset = self._log.append(messages, dirty, placed, store_timestamp_ms)
            queue_of = self._queue_of
            for tail in dirty:
                queue_of[tail].put(tail.take_units())
        except BaseException as exc:
            self._fence(f"an append failed half way: {exc!r}")
            raise StoreFencedError(f"an append failed half way: {exc!r}") from exc
        if with_keys:
            assert placed is not None
            mine = placed[-len(messages) :]
            self.index.add(messages, with_keys, mine, self._log.last_store_timestamp_ms)
        self.stats.note_append(len(messages), end_offset - began_at, perf_counter_ns() - began_ns)
        for listener in self.on_dispatch:
            listener(dirty)
        return end_offset

    def now_ms(self) -> int:
        """Return the time that a message appended now is dated with; it never goes back."""
        return max(self._clock.now_ms(), self._log.last_store_timestamp_ms)

    def not_before(self, now_ms: int) -> None:
        """Date messages with at least this time from now on."""
        self._clock.not_before(now_ms)

    @property
    def durable_offset(self) -> int:
        """Everything in the log below this is on disk."""
        return self._flusher.durable_offset

    async def wait_durable(self, physical_offset: int) -> None:
        """Return when the log is on disk up to ``physical_offset``; StoreFencedError if it fails.

        All who wait share one fdatasync. ``run`` must be running.
        """
        await self._flusher.wait(physical_offset)

    # -- read ------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 262_144,
        tag_codes: AbstractSet[int] | None = None,
    ) -> ReadResult:
        """Return records from ``queue_offset`` on, as they are stored, one after the other.

        At most ``count_max`` of them and ``bytes_max`` bytes, but always the first that matches.
        With ``tag_codes`` only records whose tag hash is among them; looks at 800 units at most
        (or count_max, when that is more).
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_QUEUE, 0, 0, 0)
        low, high = self._min_offset_of(queue), queue.max_offset
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if queue_offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, high, low, high)
        if queue_offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        self._check_open()
        window = count_max if tag_codes is None else max(SCAN_UNITS_MIN, count_max)
        units = self._units(queue, queue_offset, min(window, high - queue_offset))
        chosen, looked, removed = select_units(
            units, count_max, bytes_max, tag_codes, self._log.begin_offset
        )
        if not looked and count_max > 0:
            # A unit without a size below the queue's end is damage; nobody is to wait at it.
            logger.error(
                "a unit has no size topic=%s queue_id=%d offset=%d", topic, queue_id, queue_offset
            )
            looked = removed = 1
        records, count = self._gather(topic, queue_id, chosen)
        self.stats.note_read(count, len(records))
        if count:
            status = ReadStatus.FOUND
        elif removed or chosen:
            status = ReadStatus.MESSAGE_WAS_REMOVED
        else:
            status = ReadStatus.NO_MATCH
        return ReadResult(status, queue_offset + looked, low, high, records, count)

    def units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Return up to ``count`` ConsumeQueue units from ``queue_offset`` on; fewer at the end."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not 0 <= queue_offset < queue.max_offset:
            return b""
        self._check_open()
        return self._units(queue, queue_offset, min(count, queue.max_offset - queue_offset))

    def _units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        try:
            return queue.read(queue_offset, count)
        except OSError as exc:
            raise StoreError(f"a ConsumeQueue file cannot be mapped: {exc}") from exc

    def _gather(self, topic: str, queue_id: int, units: bytes) -> tuple[bytes, int]:
        """Return the records of units, without those that are not what their unit says."""
        try:
            return self._log.gather(units) if units else b"", len(units) // UNIT_BYTES
        except OSError as exc:
            raise StoreError(f"a CommitLog file cannot be mapped: {exc}") from exc
        except RecordError as exc:
            logger.error(
                "a unit names no record topic=%s queue_id=%d reason=%s", topic, queue_id, exc
            )
        parts = []
        for at in range(0, len(units), UNIT_BYTES):
            try:
                parts.append(self._log.gather(units[at : at + UNIT_BYTES]))
            except RecordError:
                continue
        return b"".join(parts), len(parts)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message there is; 0 without such a queue."""
        queue = self._queues.get((topic, queue_id))
        return self._min_offset_of(queue) if queue is not None else 0

    def _min_offset_of(self, queue: ConsumeQueue) -> int:
        try:
            return queue.advance_min(self._log.begin_offset)
        except OSError as exc:
            raise StoreError(f"a ConsumeQueue file cannot be mapped: {exc}") from exc

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message will get; 0 without such a queue."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later.

        The maximum offset when all are older; 0 without such a queue.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = self._min_offset_of(queue), queue.max_offset
        while low < high:
            middle = (low + high) // 2
            # A lost record (-1) counts as old, so that the search ends at one that is there.
            if self.store_timestamp(topic, queue_id, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return when a message was stored, in ms; -1 if it is not there."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return -1
        self._check_open()
        if not self._min_offset_of(queue) <= queue_offset < queue.max_offset:
            return -1
        record, count = self._gather(topic, queue_id, self._units(queue, queue_offset, 1))
        if not count:
            return -1
        begin = 68 if record[39] & 0x10 else 56
        return int.from_bytes(record[begin : begin + 8], "big", signed=True)

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record that begins at ``physical_offset``; RecordError if none does."""
        self._check_open()
        return self._log.record_at(physical_offset)

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int,
        end_ms: int,
        count_max: int = 32,
        only_unique: bool = False,
    ) -> QueryResult:
        """Return records of a topic that have a key and were stored in [begin_ms, end_ms].

        A key is the record's UNIQ_KEY or, unless ``only_unique``, a word of its KEYS. At most
        ``count_max`` of them (and never more than 64, or 8 MiB), the newest first.
        """
        self._check_open()
        return self.index.query(
            topic, key, begin_ms, end_ms, count_max=count_max, only_unique=only_unique
        )

    def queues(self) -> Iterator[tuple[str, int]]:
        """Yield (topic, queue id) of every queue."""
        return iter(list(self._queues))

    @property
    def begin_offset(self) -> int:
        return self._log.begin_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def fence_reason(self) -> str | None:
        """Why nothing can be appended until a restart; None while all is well."""
        return self._fence_reason

    @property
    def full_reason(self) -> str | None:
        """Why appends are refused until there is space again; None while there is."""
        return self._full_reason

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError("the store is not open")

    # -- what run does ---------------------------------------------------------------------

    def _fence(self, reason: str) -> None:
        if self._fence_reason is None:
            self._fence_reason = reason
            logger.critical("the store is fenced until a restart reason=%s", reason)
            self._flusher.fence(reason)

    def _sync_log(self, begin: int, end: int) -> None:
        """Block until [begin, end) of the log is on disk."""
        for file in self._log.queue.between(begin, end):
            file.region.sync()

    async def _checkpoint_each_interval(self) -> None:
        while self._fence_reason is None:
            await trio.sleep(self.config.checkpoint_interval_ms / 1000)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Bring log and ConsumeQueues to disk and note how far they are."""
        async with self._files_lock:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        # What is written down is the state of this moment; what is synced may be younger.
        now_ms = self._clock.monotonic_ms()
        plan = self._plan_checkpoint(
            with_table=len(self._queues) != self._table_queues
            or now_ms - self._table_written_ms >= QUEUE_TABLE_INTERVAL_MS
        )
        await self._flusher.flush()
        if self._fence_reason is not None:
            return
        try:
            await trio.to_thread.run_sync(
                self._write_checkpoint, plan, limiter=self._checkpoint_limiter
            )
        except OSError as exc:
            self._fence(f"writing a checkpoint failed: {exc}")

    def _plan_checkpoint(self, *, with_table: bool, is_closed: bool = False) -> _CheckpointPlan:
        """Collect, without blocking, what has to be synced for a checkpoint of this moment."""
        paths: list[str] = []
        directories: set[str] = set()
        for queue in self._queues.values():
            if queue.is_dirty:
                paths += queue.take_dirty_paths()
            if queue.has_new_file:
                queue.has_new_file = False
                directories |= {queue.directory, os.path.dirname(queue.directory)}
        if directories:
            directories.add(f"{self.config.directory}/consumequeue")
        index = self.index.plan()
        paths += index.paths
        directories.update(index.directories)
        last_ms = self._log.last_store_timestamp_ms
        table = None
        if with_table:
            self._table_written_ms = self._clock.monotonic_ms()
            self._table_queues = len(self._queues)
            table = QueueTable(
                end_offset=self._log.end_offset,
                is_closed=is_closed,
                queues=[(*key, q.max_offset) for key, q in self._queues.items() if q.max_offset],
            )
        return _CheckpointPlan(
            paths,
            directories,
            table,
            StoreCheckpoint(last_ms, last_ms, index.index_ms),
            index.table,
        )

    def _write_checkpoint(self, plan: _CheckpointPlan) -> None:
        """Sync what the plan names, then write the files that say so; blocks."""
        for path in plan.paths:
            self._storage.sync_file(path)
        for directory in sorted(plan.directories):
            self._storage.sync_directory(directory)
        if plan.table is not None:
            self._state_files.write_queues(plan.table)
        if plan.index is not None:
            self._state_files.write_index(plan.index)
        self._state_files.write_checkpoint(plan.checkpoint)

    async def _watch_disk(self) -> None:
        while True:
            await trio.sleep(self.config.disk_check_interval_ms / 1000)
            await trio.to_thread.run_sync(self._check_disk)

    def _check_disk(self) -> None:
        """Refuse appends while the disk is nearly full; accept them again when it is not."""
        reason = self._reason_to_refuse()
        if (reason is None) != (self._full_reason is None):
            logger.warning("appends %s reason=%s", "refused" if reason else "accepted", reason)
        self._full_reason = reason

    def _reason_to_refuse(self) -> str | None:
        config = self.config
        try:
            usage = self._storage.disk_usage(config.directory)
        except OSError as exc:
            return f"how full the disk is cannot be told: {exc}"
        if usage.used_percent > config.disk_used_percent_max:
            limit = config.disk_used_percent_max
            return f"the disk is {usage.used_percent:.1f} % full, the limit is {limit} %"
        if usage.free_bytes < config.disk_free_bytes_min:
            limit = config.disk_free_bytes_min
            return f"the disk has {usage.free_bytes} bytes free, the limit is {limit}"
        return None


@dataclass(frozen=True, slots=True)
class _CheckpointPlan:
    """Files and directories to sync, and what may be written down when that is done."""

    paths: list[str]
    directories: set[str]
    table: QueueTable | None
    checkpoint: StoreCheckpoint
    index: IndexTable | None
