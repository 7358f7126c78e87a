"""The store: append batches, wait until they are on disk; its reader reads.

Owns: MessageStore: opening and closing a folder, the order log -> ConsumeQueues -> readers, the
fence. Must not touch: byte formats (core.records), the operating system (files), reads
(store_reader), when to flush (flush), how to recover (recovery), what a checkpoint is
(checkpointer), when the disk is full (disk_watch).

    commitlog/ consumequeue/   the log and the queues made from it
    index/                     the records' keys
    checkpoint queues.json     how far all of these are on disk
    index.json durable
    abort                      there while the store is open
    lock                       held while the store is open
    damaged/                   bytes that recovery took out of the log

Concurrency: everything runs in the thread of the trio run, except open and close (called in a
thread before and after) and the syncs, which get paths and offsets only.
Invariants: an append is all or nothing; when it returns, what it wrote is in the ConsumeQueues and
waiting readers have been woken; after a failed write or flush every append and every wait raises
StoreFencedError until a restart.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from time import perf_counter_ns

import trio

from motelog.core.clock import Clock, SteadyClock
from motelog.core.errors import (
    NOT_USABLE,
    StoreError,
    StoreFencedError,
    StoreFolderError,
    StoreFullError,
    StoreHalfRestoredError,
    StoreLockedError,
    StoreRoleError,
)
from motelog.core.lasting import run_again
from motelog.core.records.append import AppendMessage, QueueTail, measure
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.store.append_steps import AppendSteps
from motelog.core.store.assembly import make_committer, make_flusher, make_index, make_log
from motelog.core.store.checkpointer import Checkpointer
from motelog.core.store.cleanup import LogCleaner
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.disk_watch import DiskWatch
from motelog.core.store.disk.files import (
    NO_ROOM,
    Lock,
    OsStorage,
    Storage,
    memory_bytes,
    no_room_text,
)
from motelog.core.store.disk.page_cache import PageCache
from motelog.core.store.due_time import DueTimes
from motelog.core.store.index.index import any_keyed
from motelog.core.store.log_pieces import LogPieces
from motelog.core.store.multi_dispatch import Indexed, add_units, place
from motelog.core.store.parts import StoreParts
from motelog.core.store.quarantine import Quarantine
from motelog.core.store.queues.consume_queue import QUEUE_ID_MAX, ConsumeQueue, OpenFiles
from motelog.core.store.queues.unit_flusher import UnitFlusher
from motelog.core.store.raw_append import RawAppender
from motelog.core.store.readable import Readable
from motelog.core.store.start.queue_recovery import QueueRecovery
from motelog.core.store.start.recovery import Recovery
from motelog.core.store.state.checkpoint import ClockNotes, StateFiles
from motelog.core.store.state.durable_file import DurableFile
from motelog.core.store.state.progress import OnProgress, ProgressMeter, log_progress
from motelog.core.store.state.recovery_report import RecoveryReport
from motelog.core.store.stats import StoreStats
from motelog.core.store.store_reader import StoreReader
from motelog.core.threads import run_in_thread
from motelog.core.topic_names import is_topic_name

logger = logging.getLogger(__name__)


class MessageStore:
    """One store folder, open in one process."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes,
        clock: Clock,
        storage: Storage | None = None,
        is_follower: bool = False,
    ) -> None:
        """``is_follower``: the log is a leader's copy; it grows by ``append_raw`` alone."""
        self.config = config
        self.is_follower = is_follower
        self.due_times = DueTimes(config.delay_levels)
        self.stats = StoreStats()
        self._clock = SteadyClock(clock)
        self._storage: Storage = storage or OsStorage()
        self.disk_watch = DiskWatch(self._storage, config)
        self._state_files = StateFiles(self._storage, config.directory)
        self._durable = DurableFile(self._storage, config.directory)
        self._files = OpenFiles(self._storage, config.consume_queue_files_open_max)
        self._log = make_log(config, self._storage, self._clock, store_host)
        self.index = make_index(config, self._storage, self._clock, self._log)
        self._flusher = make_flusher(config, self._log, self._flush_log, self._fence)
        self.committer = make_committer(config, self._log, self._fence)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._queue_of: dict[QueueTail, ConsumeQueue] = {}
        self.unit_flusher = UnitFlusher(
            self._storage, config, self._queue_of, on_failure=self._fence
        )
        page_cache = PageCache(self._storage, self._clock)
        parts = StoreParts(self._storage, self._clock, self._log, self._flusher, self._fence)
        self.quarantine = Quarantine(parts, self.due_times, self.unit_flusher, page_cache.page_in)
        self._files.put_aside = self.quarantine.put_aside
        self.readable = Readable(self._log, self._queues)
        #: The bytes of the log, for copies on other machines.
        self.pieces = LogPieces(self._log, page_cache)
        self.reader = self._make_reader(page_cache)
        self._steps = AppendSteps(parts, self.unit_flusher, self.disk_watch)
        self._raw = self._make_raw()
        self._lock: Lock | None = None
        self._is_open = False
        self._fence_reason: str | None = None
        self.cleaner = LogCleaner(parts, config, self._queues, self.readable, wall=clock)
        self.cleaner.after_removal.append(self.index.remove_below)
        self._checkpointer = Checkpointer(
            parts,
            self._state_files,
            self.index,
            self.unit_flusher,
            interval_ms=config.checkpoint_interval_ms,
        )
        self.cleaner.before_removal.append(self._checkpointer.cover)

    def _make_reader(self, page_cache: PageCache) -> StoreReader:
        return StoreReader(
            self._log,
            self._queues,
            self.readable,
            self.index,
            page_cache,
            self.stats,
            cached_bytes=memory_bytes() * self.config.cached_memory_percent // 100,
            check_open=self._check_open,
        )

    def _make_raw(self) -> RawAppender:
        return RawAppender(
            self._log,
            self._steps,
            self.unit_flusher,
            self.due_times,
            self._queues,
            self.queue_tail,
            self._announce,
            message_bytes_max=self.config.message_bytes_max,
        )

    # -- opening and closing ---------------------------------------------------------------

    def open(
        self, on_progress: OnProgress = log_progress, *, trusts_stop: bool = False
    ) -> RecoveryReport:
        """Lock the folder, recover its content and prepare for appends; blocks.

        ``on_progress`` is called in this thread every two seconds with the start's progress.
        ``trusts_stop``: this process has just closed the folder, so that after a clean stop the
        last file is not read again; its records are checked when they are read.
        Raises StoreLockedError, StoreDamagedError, StoreFolderError, StoreHalfRestoredError,
        StoreFullError if there is no room for what a start must write, and other OSErrors
        unchanged.
        """
        try:
            return self._open(on_progress, trusts_stop=trusts_stop)
        except OSError as exc:
            if exc.errno in NO_ROOM:
                text = f"no room to open {self.config.directory}: {no_room_text(exc)}"
                raise StoreFullError(text) from exc
            if exc.filename is None:
                raise OSError(exc.errno, exc.strerror, self.config.directory) from exc
            raise

    def _open(self, on_progress: OnProgress, *, trusts_stop: bool) -> RecoveryReport:
        try:
            self._storage.make_directory(self.config.directory, durable=True)
            self._lock = self._storage.lock(f"{self.config.directory}/lock")
        except OSError as exc:
            if exc.errno not in NOT_USABLE:
                raise
            text = f"the store cannot use the folder {self.config.directory}: {exc.strerror}"
            raise StoreFolderError(text) from exc
        if self._lock is None:
            raise StoreLockedError(f"{self.config.directory} is open in another process")
        try:
            if self._state_files.is_half_restored():
                text = f"{self.config.directory} is a backup whose restore was not completed"
                raise StoreHalfRestoredError(text)
            meter = ProgressMeter(self._clock, on_progress)
            report = self._recover(meter, trusts_stop=trusts_stop)
        except BaseException:
            self._release()
            raise
        self._is_open = True
        return report

    def _recover(self, meter: ProgressMeter, *, trusts_stop: bool) -> RecoveryReport:
        state = self._state_files
        self._log.queue.load()
        was_clean = not state.has_abort()
        state.write_abort(os.getpid())
        self._find_queues()
        self.unit_flusher.open()
        checkpoint = state.read_checkpoint()
        self.index.load(state.read_index(), was_clean=was_clean, index_ms=checkpoint.index_ms)
        directory = self.config.directory
        queues = QueueRecovery(
            self._storage,
            directory,
            self._log,
            self._queues,
            self._make_queue,
            file_units=self.config.consume_queue_file_units,
        )
        recovery = Recovery(
            self._storage, directory, self._log, queues, self.index, self.due_times, meter
        )
        report = recovery.run(
            was_clean=was_clean,
            checkpoint=checkpoint,
            table=state.read_queues(),
            durable_offset=self._durable.read(),
            trusts_stop=trusts_stop,
        )
        last_ms = max(checkpoint.physic_ms, recovery.last_store_timestamp_ms)
        self._log.start_at(report.end_offset, last_ms)
        self.reader.opened_at = report.end_offset
        for queue in self._queues.values():
            queue.opened_at = queue.max_offset
        self._log.verified_from = report.scanned_from
        self._clock.not_before(last_ms)
        # Without a stored clock, time continues from the last message.
        known = state.read_clock() or ClockNotes(last_ms or self._clock.now_ms(), [])
        self._clock.go_on_from(known.shown_ms, known.jumps, dated_ms=last_ms)
        self._queue_of.update((queue.tail, queue) for queue in self._queues.values())
        self.unit_flusher.note_unsynced(q for q in self._queues.values() if q.is_unsynced)
        self.index.finish(meter)
        report.index_fault, report.index_from = self.index.fault, self.index.made_from
        self.disk_watch.check()
        # What recovery wrote must be on disk before a checkpoint that covers it.
        self._storage.sync_directory(f"{self.config.directory}/commitlog")
        self._sync_log(report.scanned_from, self._log.end_offset + 1)
        # Before the first append: the log may now end below the offset in the file.
        self._durable.reset(self._log.end_offset)
        self._flusher.start_at(self._log.end_offset)
        for queue in self._queues.values():
            self._checkpointer.note_queue(queue)
        self._checkpointer.write_at_open()
        return report

    def _find_queues(self) -> None:
        root = f"{self.config.directory}/consumequeue"
        self._storage.make_directory(root)
        for topic in self._storage.list_directory(root):
            if not topic.is_directory or not is_topic_name(topic.name):
                logger.warning(
                    "an entry of the ConsumeQueue folder is not a topic's directory and is "
                    "ignored; remove it if it is not needed path=%s/%s", root, topic.name,
                )  # fmt: skip
                continue
            for queue in self._storage.list_directory(f"{root}/{topic.name}"):
                if queue.name.isdecimal() and queue.is_directory:
                    key = (topic.name, int(queue.name))
                    self._queues[key] = self._make_queue(*key)

    def _make_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        root = f"{self.config.directory}/consumequeue"
        units = self.config.consume_queue_file_units
        return ConsumeQueue(self._files, root, topic, queue_id, units)

    def close(self) -> None:
        """Make everything durable, record a clean stop and release the folder; blocks.

        A fenced store keeps its abort file, so that the next start checks every record.
        """
        try:
            self._finish()
        finally:
            self._release()

    def _finish(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        # Here no other task waits for a slow file.
        self._log.queue.stop_making()
        if self._fence_reason is None:
            self._flush_log(self._flusher.durable_offset, self._log.end_offset)
            self._flusher.start_at(self._log.end_offset)
            try:
                self.unit_flusher.write_now()
            except OSError as exc:
                # The records are on disk; the next start rebuilds these units from them.
                self._fence(f"writing units failed: {exc}")
                return
            self._checkpointer.write_at_stop()
            self._state_files.remove_abort()
        else:
            # Anything that is written is more than a kill would leave of a write buffer.
            with suppress(OSError):
                self._log.commit()

    def _release(self) -> None:
        with ExitStack() as stack:
            # Done last, even if something else fails: a remaining lock would block every start.
            if self._lock is not None:
                stack.callback(self._lock.release)
                self._lock = None
            stack.callback(self._log.close)
            stack.callback(self.index.close)
            stack.callback(self.unit_flusher.close)
            stack.callback(self._files.close)
            stack.callback(self._durable.close)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush, checkpoint, clean and watch the disk until cancelled; then close the store."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_again, self._flusher.run)
                if self.config.write_buffer:
                    nursery.start_soon(run_again, self.committer.run)
                nursery.start_soon(run_again, self.unit_flusher.run)
                nursery.start_soon(run_again, self.quarantine.run)
                nursery.start_soon(run_again, self._checkpointer.run)
                nursery.start_soon(run_again, self.disk_watch.run)
                nursery.start_soon(run_again, self.cleaner.run)
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await run_in_thread(self._finish, or_here=True)
                finally:
                    # Not in the thread: nothing may read while the files are unmapped.
                    self._release()

    # -- append ----------------------------------------------------------------------------

    def queue_tail(self, topic: str, queue_id: int) -> QueueTail:
        """Return the tail with which messages for this queue are appended.

        From then on the queue exists, empty; its file is created with its first record. StoreError
        if the name is not valid for a topic.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not is_topic_name(topic):
                raise StoreError(f"{topic!r} is not a valid topic name")
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
        may_wait: bool = True,
    ) -> int:
        """Append a batch, all or nothing; return the physical offset after it.

        When it returns, the records below ``readable_offset`` can be read, and waiting readers have
        been woken; the batch is durable after ``wait_durable`` of the returned offset.
        ``placed`` gets (physical offset, queue offset) per message. ``store_timestamp_ms`` is a
        value of ``now_ms``, for callers that derive a due time from it. ``even_if_full`` is for
        appends that make room. RecordTooLargeError, StoreFullError (disk or memory) or
        StoreFencedError; without ``may_wait``, NextFileError if the next CommitLog file is missing.
        """
        full_reason = None if even_if_full else self.disk_watch.full_reason
        if self._fence_reason is not None or full_reason is not None or not self._is_open:
            raise self._refusal(len(messages), full_reason)
        if self.is_follower:
            raise StoreRoleError("this store follows a leader, which alone appends")
        log, flusher, steps = self._log, self.unit_flusher, self._steps
        placed_before = 0 if placed is None else len(placed)
        total = 0
        dirty: list[QueueTail] = []
        fresh: list[QueueTail] = []
        try:
            began_at, began_ns = log.end_offset, perf_counter_ns()
            total, largest, is_marked = measure(messages, 0, self.config.message_bytes_max)
            units_count = len(messages)
            indexed: list[Indexed] = []
            if is_marked and self.config.lmq:
                messages, indexed, units_count = place(messages, self.queue_tail)
                placed = [] if placed is None else placed
                total, largest, _ = measure(messages, 0, self.config.message_bytes_max)
            has_keys = any_keyed(messages)
            needs_file = began_at + total > log.room_end
            if needs_file or flusher.unwritten_units + units_count > flusher.units_max:
                steps.make_room(len(messages), units_count, total, largest, may_wait=may_wait)
            try:
                end_offset = log.write(messages, dirty, placed, store_timestamp_ms, fresh)
                if indexed:
                    assert placed is not None
                    add_units(indexed, messages, placed[placed_before:], log.size_at, dirty, fresh)
                flusher.note(fresh, units_count)
            except NO_MEMORY:
                raise
            except BaseException as exc:
                raise steps.half_done(exc, dirty) from exc
        except NO_MEMORY as exc:
            if placed is not None:
                del placed[placed_before:]
            raise steps.taken_back(total, dirty, fresh) from exc
        log.end_offset = end_offset
        self._announce(dirty, len(messages), began_at, began_ns, has_keys=has_keys)
        return end_offset

    def append_raw(self, offset: int, data: bytes | memoryview, *, may_wait: bool = True) -> int:
        """Append bytes of the leader's log, cut anywhere; return the log's new end.

        ``offset`` must be ``received_offset``. Whole records become part of the log, as those of
        ``append`` do; the rest is held back in memory. ReceivedOffsetError, or ReceivedRecordError
        for a record that is not intact or not in its place: then nothing is held back. After other
        errors, those of ``append``, ``received_offset`` says which bytes were taken. Only in a
        follower, else StoreRoleError.
        """
        if not self.is_follower:
            raise StoreRoleError("this store leads: it takes no bytes of another log")
        full_reason = self.disk_watch.full_reason
        if self._fence_reason is not None or full_reason is not None or not self._is_open:
            raise self._refusal(0, full_reason)
        try:
            return self._raw.append(offset, data, may_wait=may_wait)
        finally:
            self._clock.dated_elsewhere(self._log.last_store_timestamp_ms)

    @property
    def received_offset(self) -> int:
        """The physical offset of the next byte wanted: the log's end and what is held back."""
        return self._raw.received_offset

    def drop_received(self) -> None:
        """Forget what is held back, so that ``received_offset`` is the log's end."""
        self._raw.drop_received()

    def _refusal(self, messages_count: int, full_reason: str | None) -> StoreError:
        """Return why nothing is appended now; ``full_reason`` is that of the disk, if any."""
        if self._fence_reason is not None:
            return StoreFencedError(self._fence_reason)
        if full_reason is None or not self._is_open:
            return StoreError("the store is not open")
        self.disk_watch.refuse(messages_count)
        return StoreFullError(full_reason)

    def _announce(
        self,
        dirty: list[QueueTail],
        messages_count: int,
        began_at: int,
        began_ns: int,
        *,
        has_keys: bool,
    ) -> None:
        """Report a batch that is in the log to the index, the figures and the readers.

        If memory runs out, those that have not been informed find it with the next batch.
        """
        end_offset = self._log.end_offset
        try:
            if has_keys:
                self.index.note(began_at, messages_count)
            took_ns = perf_counter_ns() - began_ns
            self.stats.note_append(messages_count, end_offset - began_at, took_ns)
            self.readable.grew(dirty, began_at, end_offset)
            for listener in self.pieces.on_appended:
                listener()
        except NO_MEMORY:
            self._steps.refusals.fault("there is no memory to report new messages: free memory")

    def now_ms(self) -> int:
        """Return the store timestamp for a message appended now; it never goes back."""
        return max(self._clock.now_ms(), self._log.last_store_timestamp_ms)

    def jumped_ms(self, date_ms: int) -> int:
        """Return how far the clock was set forward since ``date_ms``; stops do not count."""
        return self._clock.jumped_ms(date_ms)

    @property
    def clock(self) -> SteadyClock:
        """The clock for store timestamps."""
        return self._clock

    def not_before(self, now_ms: int) -> None:
        """Use store timestamps of at least this time from now on."""
        self._clock.not_before(now_ms)

    @property
    def durable_offset(self) -> int:
        """Everything in the log below this is on disk."""
        return self._flusher.durable_offset

    async def wait_durable(self, physical_offset: int) -> None:
        """Return when the log is on disk up to ``physical_offset``; StoreFencedError if it fails.

        All waiting callers share one fdatasync. ``run`` must be running.
        """
        await self._flusher.wait(physical_offset)

    def want_durable(self, physical_offset: int) -> None:
        """Request a flush of the log up to ``physical_offset``; ``on_durable`` reports its end."""
        self._flusher.want(physical_offset)

    @property
    def on_durable(self) -> list[Callable[[], None]]:
        """Listeners, called whenever ``durable_offset`` grows and when the store is fenced.

        The flushing task calls them: a listener must not append.
        """
        return self._flusher.listeners

    # -- state -----------------------------------------------------------------------------

    def hide_below(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Hide a queue's messages below an offset, until the store is closed.

        They count as removed for readers of the queue and for lookups by key. Disk space is freed
        when the log's files are removed. Returns whether any of them is still in the log.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return False
        is_needed = queue.advance_min(self._log.begin_offset) < queue_offset
        if is_needed:
            queue.hide_below(queue_offset)
        return is_needed

    def queues(self) -> Iterator[tuple[str, int]]:
        """Yield (topic, queue id) of every queue."""
        return iter(list(self._queues))

    @property
    def begin_offset(self) -> int:
        return self._log.begin_offset

    @property
    def free_buffers_count(self) -> int | None:
        """The number of free write buffers; None in the mode without write buffers."""
        return self._log.queue.free_buffers_count

    @property
    def lacks_buffer(self) -> bool:
        """Whether appends use no write buffer because none is free: the disk lags far behind."""
        return self._log.queue.lacks_buffer

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log not yet covered by an index file; queues and readers have all of it."""
        return self._log.end_offset - self.index.indexed_offset

    @property
    def end_offset(self) -> int:
        """Where the next record will begin; readers use ``readable_offset``."""
        return self._log.end_offset

    @property
    def readable_offset(self) -> int:
        """Records that begin below this may be read; by default the log's end."""
        return self.readable.offset

    def sample(self) -> dict[str, float]:
        """Return the counters since the start and, named ``*_now``, the gauges."""
        mapped = self._log.queue.mapped_sizes() + self.index.mapped_sizes()
        return self.stats.sample() | {
            "store_mapped_bytes_now": sum(mapped),
            "store_mapped_files_now": len(mapped),
            "store_wrote_offset_now": self._log.end_offset,
            "store_committed_offset_now": self._log.committed_offset,
            "store_flushed_offset_now": self._flusher.durable_offset,
            "store_queue_files_rebuilt": self.quarantine.rebuilt_files,
            "store_queue_files_aside_now": self.quarantine.aside_count,
            "store_messages_refused_full": self.disk_watch.refused_count,
            "store_full_now": int(self.disk_watch.fault is not None),
            "store_disk_total_bytes_now": self.disk_watch.usage.total_bytes,
            "store_disk_free_bytes_now": self.disk_watch.usage.free_bytes,
            "store_disk_reserve_bytes_now": self.disk_watch.reserve_bytes,
            "store_retention_left_s_now": self.cleaner.retention_left_s(
                self.disk_watch.usage, self.stats.put_bytes_rates()[-1]
            ),
        }

    @property
    def committed_offset(self) -> int:
        """Everything in the log below this outlives the process; differs with a write buffer."""
        return self._log.committed_offset

    @property
    def fence_reason(self) -> str | None:
        """Why nothing can be appended until a restart; None while all is well."""
        return self._fence_reason

    @property
    def full_reason(self) -> str | None:
        """Why appends are refused; None while the disk has space."""
        return self.disk_watch.full_reason

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError("the store is not open")

    # -- what run does ---------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Acknowledge nothing more until a restart; reads continue."""
        self._fence(reason, "stop this broker")

    def _fence(self, reason: str, advice: str = "check the disk, then restart") -> None:
        if self._fence_reason is None:
            self._fence_reason = reason
            logger.critical(
                "the store is fenced until a restart: it acknowledges nothing more, but reads "
                "continue; %s reason=%s", advice, reason,
            )  # fmt: skip
            self._flusher.fence(reason)

    def _sync_log(self, begin: int, end: int) -> None:
        """Block until [begin, end) of the log is on disk."""
        began_ns = perf_counter_ns()
        self._log.sync(begin, end)
        self.stats.note_sync(perf_counter_ns() - began_ns)

    def _flush_log(self, begin: int, end: int) -> None:
        """Block until [begin, end) of the log is on disk, and record that in ``durable``."""
        self._sync_log(begin, end)
        try:
            self._durable.note(end)
        except OSError as exc:
            # A copy-on-write file system may have no room for this write. The offset in the file is
            # still true; the next write, or a later one, brings a newer one.
            if exc.errno not in NO_ROOM:
                raise

    async def checkpoint(self) -> None:
        """Flush log and ConsumeQueues, and record how far they are on disk."""
        await self._checkpointer.checkpoint()
