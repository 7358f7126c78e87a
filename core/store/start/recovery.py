"""Recovery at a start: finds the log's end, reports damage, repairs ConsumeQueues.

Owns: Recovery: the walk of the log, its damage and its end. Must not touch: units (queue_recovery),
the running store; it works before anything is appended.

    1. Choose where to begin: at the last file after a clean stop, unless it was this process that
       stopped; else where the checkpoint says that everything before is complete; else at the
       newest file whose first record is at least 3 s older than the time in RocketMQ's checkpoint,
       which has only times; else at the first.
    2. Walk the records from there to the end: layout, CRC, own physical offset. The log was on disk
       up to the durable offset, so the place of a bad record decides its meaning:

         scanned_from               durable offset                   last byte written
              |  records   XX  records   |   records   X   records       |
                           damage                      the log ends here

       Below that offset it is damage: the walk looks for the next intact record that names its own
       place; the bytes between are reported and are in no queue. From that offset on it is the
       result of a crash, and the log ends there. The rest is zeroed. If it contains records, it is
       saved first, since the kernel may have written later pages before earlier ones. After a
       clean stop, and in a folder without that offset, all of the log counts as below it.
    3. Each record's unit is placed at its queue offset. A queue whose units below the starting
       point do not reach that offset is rebuilt from the whole log.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from motelog.core.records.append import copy_in
from motelog.core.records.layout import RECORD_BYTES_MIN, ScanStop
from motelog.core.records.read import copy_out
from motelog.core.records.scan import collect, find_record, scan, zeros_from
from motelog.core.store.disk.files import Storage
from motelog.core.store.due_time import WAITING_TOPICS, DueTimes
from motelog.core.store.index.index import IndexItem
from motelog.core.store.index.index_service import IndexService
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.log.mapped_file_queue import MappedFile, MappedFileQueue
from motelog.core.store.start.queue_recovery import QueueRecovery
from motelog.core.store.state.checkpoint import QueueTable, StoreCheckpoint
from motelog.core.store.state.progress import ProgressMeter
from motelog.core.store.state.recovery_report import RecoveryReport

logger = logging.getLogger(__name__)

CHECKPOINT_MARGIN_MS: Final = 3_000
# Many, so that a run of units of one queue is long even if there are thousands of queues; but few
# enough that a step ends while the next one is being read from the disk.
RECORDS_PER_STEP: Final = 262_144
STEP_BYTES: Final = 67_108_864
RECORDS_PER_STEP_MIN: Final = 4_096
# Records with keys are objects for the index, and the process keeps the most memory that a start
# needed. So a step has few of them, but enough that the runs of each queue stay long.
KEYED_PER_STEP: Final = 4_096
KEYED_PER_QUEUE: Final = 32
OFFSET_MAX: Final = (1 << 63) - 1

IndexFeed = Callable[[list[IndexItem], int], None]


class Recovery:
    """One start; ``queues`` recovers the ConsumeQueues, with the same report."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        log: CommitLog,
        queues: QueueRecovery,
        index: IndexService,
        due_times: DueTimes,
        meter: ProgressMeter,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._log = log
        self._index = index
        self._meter = meter
        self._due_times = due_times
        self.report = queues.report
        self._queues = queues
        self.last_store_timestamp_ms = 0
        # The log is known to have been on disk up to ``_known_end``; a bad record from
        # ``_ends_from`` on ends the log.
        self._known_end = 0
        self._ends_from = OFFSET_MAX

    def run(
        self,
        *,
        was_clean: bool,
        checkpoint: StoreCheckpoint,
        table: QueueTable | None,
        durable_offset: int | None,
        trusts_stop: bool = False,
    ) -> RecoveryReport:
        """Recover; blocks for as long as reading the log since the checkpoint takes."""
        report = self.report
        report.was_clean = was_clean
        self._known_end = max(durable_offset or 0, table.end_offset if table is not None else 0)
        if not was_clean and durable_offset is not None:
            self._ends_from = self._known_end
        begin = self._choose_begin(checkpoint, reads_last=was_clean and not trusts_stop)
        report.scanned_from = begin
        self._queues.load(begin, table)
        self._index.begin_feed(begin)
        end, torn = self._walk(begin, feed=self._index.feed)
        report.end_offset = end
        self._cut_log(end, torn)
        if table is not None:
            self._queues.compare_with(table)
        self._queues.rebuild(lambda at: self._walk(at, feed=None))
        if table is not None:
            self._queues.keep_offsets_used(table)
        self._queues.cut()
        self._log_report()
        return report

    # -- the log ---------------------------------------------------------------------------

    def _choose_begin(self, checkpoint: StoreCheckpoint, *, reads_last: bool) -> int:
        files = self._log.queue.files
        if not files:
            return 0
        if reads_last:
            # Files after it may have been created ahead and never used: RocketMQ leaves such files,
            # and after a power cut those that a stop removed may be back.
            return next(file.begin for file in reversed(files) if self._is_used(file))
        at = checkpoint.complete_offset
        if at is not None and files[0].begin <= at <= files[-1].end and self._may_begin(at):
            return at
        for file in reversed(files):
            first, _, _ = scan(file.view, 0, file.size, file.begin, 1)
            if first and first[0][7] <= checkpoint.safe_ms - CHECKPOINT_MARGIN_MS:
                return file.begin
        return files[0].begin

    def _is_used(self, file: MappedFile) -> bool:
        _, _, stop = scan(file.view, 0, file.size, file.begin, 1)
        return stop is not ScanStop.EMPTY or file is self._log.queue.files[0]

    def _may_begin(self, at: int) -> bool:
        """Return whether a record may begin at ``at``; not always in a folder made by hand."""
        file = self._log.queue.find(at)
        if file is None or at >= self._ends_from:
            return True
        found, _, stop = scan(file.view, at - file.begin, file.size, file.begin, 1)
        return bool(found) or stop in (ScanStop.BLANK, ScanStop.EMPTY)

    def _walk(self, begin: int, *, feed: IndexFeed | None) -> tuple[int, ScanStop]:
        """Take every intact record from ``begin`` on; return where the log ends, and why there.

        ``feed`` gets the records with keys, step by step, and where each step ended.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="recovery-prefetch") as worker:
            return self._walk_ahead(begin, feed, worker)

    def _walk_ahead(
        self, begin: int, feed: IndexFeed | None, worker: Executor
    ) -> tuple[int, ScanStop]:
        at = begin
        count_max = RECORDS_PER_STEP_MIN
        data_end = self._data_end()
        coming = worker.submit(self._prefetch, at, data_end)
        asked_end = at + STEP_BYTES
        self._meter.begin(
            "reading the log" if feed is not None else "rebuilding ConsumeQueues",
            data_end - begin,
        )
        while (file := self._log.queue.find(at)) is not None:
            keyed: list[IndexItem] = []
            if at + STEP_BYTES >= asked_end:
                coming.result()
                coming = worker.submit(self._prefetch, asked_end, data_end)
                asked_end += STEP_BYTES
            runs, position, stop, count, last_ms = collect(
                file.view, at - file.begin, file.size, file.begin, count_max,
                WAITING_TOPICS, self._due_times.due_ms, keyed if feed is not None else None,
            )  # fmt: skip
            self.report.records += count
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, last_ms)
            for run in runs:
                self._queues.place(run)
            if feed is not None:
                feed(keyed, file.begin + position)
            self._meter.advance(file.begin + position - begin)
            if count:
                bytes_per_record = (file.begin + position - at) // count
                fitting = STEP_BYTES // bytes_per_record
                if keyed:
                    keyed_max = max(KEYED_PER_STEP, KEYED_PER_QUEUE * self._queues.count)
                    fitting = min(fitting, keyed_max * count // len(keyed))
                count_max = min(max(fitting, RECORDS_PER_STEP_MIN), RECORDS_PER_STEP)
            at = file.begin + position
            match stop:
                case ScanStop.COUNT:
                    continue
                case ScanStop.BLANK | ScanStop.END:
                    at = file.end
                    continue
            good = self._find_next(file, position) if at < self._ends_from else None
            if good is None:
                return at, stop
            reason = f"{stop.name}; the log continues at {good}"
            self.report.note_damage(file, at, good - at, reason)
            at = good
        return at, ScanStop.END

    def _prefetch(self, at: int, data_end: int) -> None:
        """Let the disk begin to read the bytes from ``at`` on, which are examined next."""
        stop = min(at + STEP_BYTES, data_end)
        for file in self._log.queue.between(at, stop):
            begin = max(at - file.begin, 0)
            self._storage.prefetch(file.path, begin, min(stop - file.begin, file.size))

    def _data_end(self) -> int:
        """Return where the last file's data ends, as far as the file system knows."""
        for file in reversed(self._log.queue.files):
            ends = [stop for _, stop in file.region.data_ranges(0)]
            if ends:
                return file.begin + ends[-1]
        return self._log.begin_offset

    def _find_next(self, file: MappedFile, position: int) -> int | None:
        """Return the physical offset of the next intact record after a bad one."""
        good = find_next(self._log.queue, file, position)
        if good is None or good <= self._ends_from:
            return good
        # The log was on disk up to here. A hole may follow; nothing after a hole is kept.
        end = self._log.queue.find(self._ends_from)
        if end is not None and _begins_at(end, self._ends_from - end.begin):
            return self._ends_from
        return None

    def _cut_log(self, end: int, torn: ScanStop) -> None:
        """Make the log end at ``end``; the bytes after it are no longer part of it."""
        files = self._log.queue.files
        keep = [file for file in files if file.begin <= end]
        if files and self._known_end > end:
            self._report_damage_at_end(end)
        self._count_behind(end)
        # The last file goes first: a crash between two must not leave a gap.
        for file in reversed(files[len(keep) :]):
            self._set_aside_or_remove(file)
        self._log.queue.drop_from(len(keep))
        if keep and end < keep[-1].end:
            self._zero_behind(keep[-1], end - keep[-1].begin, torn)

    def _report_damage_at_end(self, end: int) -> None:
        """Report that the log was longer when it was last synced."""
        file = self._log.queue.find(end) or self._log.queue.files[-1]
        reason = f"no record here, but the log reached up to {self._known_end}"
        self.report.note_damage(file, end, self._known_end - end, reason)

    def _count_behind(self, end: int) -> None:
        """Count the intact records that are given up because bytes before them are lost."""
        report = self.report
        files, begin = self._log.queue, end
        while (good := next(_intact_from(files, begin), None)) is not None:
            file = files.find(good)
            assert file is not None
            _, position, _, count, _ = collect(
                file.view, good - file.begin, file.size, file.begin, RECORDS_PER_STEP,
                (), self._due_times.due_ms,
            )  # fmt: skip
            report.given_up_records += count
            begin = file.begin + position
            report.given_up_bytes += begin - good
        if report.given_up_records:
            logger.warning(
                "the log ends at offset=%d: what follows was not on disk yet when the crash came, "
                "and is given up records=%d bytes=%d",
                end, report.given_up_records, report.given_up_bytes,
            )  # fmt: skip

    def _zero_behind(self, file: MappedFile, position: int, torn: ScanStop) -> None:
        remains = bytes_behind(file, position)
        if not remains:
            return
        report = self.report
        # A torn record is normal after a crash; anything else may need a look.
        if report.was_clean or report.damage or report.given_up_records:
            name = self._aside(f"{file.begin + position:020d}", ".cut")
            self._storage.replace_file(name, copy_out(file.view, position, position + remains))
        copy_in(file.writable().view, position, bytes(remains))
        report.cut_bytes = remains
        logger.warning(
            "the bytes after the log's last intact record were zeroed; after a crash that is "
            "normal path=%s offset=%d bytes=%d reason=%s",
            file.path, position, remains, torn.name,
        )  # fmt: skip

    def _set_aside_or_remove(self, file: MappedFile) -> None:
        """Remove a file after the log's end; set it aside for a human if it has bytes in it."""
        holds_bytes = any(
            zeros_from(file.view, start, stop) > start for start, stop in file.region.data_ranges(0)
        )
        file.close()
        if not holds_bytes:
            self._storage.remove_file(file.path)
            return
        aside = self._aside(f"{file.begin:020d}", "")
        # A sync of the other directory must not remove this file before those after it.
        self._storage.sync_directory(os.path.dirname(file.path))
        self._storage.rename(file.path, aside)

    def _aside(self, stem: str, suffix: str) -> str:
        path = path_aside(self._storage, self._directory, stem, suffix)
        self.report.moved_aside.append(path)
        return path

    def _log_report(self) -> None:
        report = self.report
        for damage in report.damage:
            logger.error(
                "the log is damaged: the messages in these bytes are lost, all others can be read; "
                "check the disk path=%s offset=%d bytes=%d reason=%s",
                damage.path, damage.offset_bytes, damage.size, damage.reason,
            )  # fmt: skip
        for name in report.moved_aside:
            logger.warning(
                "bytes that are no longer part of the log are kept in a file; remove it if it is "
                "not needed path=%s", name,
            )  # fmt: skip
        logger.info(
            "the store is recovered clean=%s from=%d end=%d records=%d repaired=%d rebuilt=%d",
            report.was_clean, report.scanned_from, report.end_offset, report.records,
            len(report.repaired_queues), len(report.rebuilt_queues),
        )  # fmt: skip


def bytes_behind(file: MappedFile, position: int) -> int:
    """Return how many bytes of a file follow a position, the zeros at its end aside."""
    remains = 0
    for start, stop in file.region.data_ranges(position):
        behind = zeros_from(file.view, start, stop)
        if behind > start:
            remains = behind - position
    return remains


def path_aside(storage: Storage, directory: str, stem: str, suffix: str) -> str:
    """Return a new path in ``damaged/``, which is made: files that are there stay."""
    directory = f"{directory}/damaged"
    storage.make_directory(directory, durable=True)
    known = {entry.name for entry in storage.list_directory(directory)}
    name = next(
        name
        for number in itertools.count()
        if (name := f"{stem}{f'-{number}' if number else ''}{suffix}") not in known
    )
    return f"{directory}/{name}"


def find_next(files: MappedFileQueue, file: MappedFile, position: int) -> int | None:
    """Return the physical offset of the next intact record after a bad one of ``file``."""
    # A body may hold bytes that look like a record, so the bad record's own size comes first.
    size = copy_out(file.view, position, min(position + 4, file.size))
    after = position + int.from_bytes(size, "big")
    if position + RECORD_BYTES_MIN <= after <= file.size and _begins_at(file, after):
        return file.begin + after
    return next(_intact_from(files, file.begin + position + 1), None)


def _begins_at(file: MappedFile, position: int) -> bool:
    """Return whether an intact record or a blank one begins at ``position``."""
    found, _, stop = scan(file.view, position, file.size, file.begin, 1)
    return bool(found) or stop is ScanStop.BLANK


def _intact_from(files: MappedFileQueue, begin: int) -> Iterator[int]:
    """Yield where the next intact record at or after ``begin`` is, in each stretch of data."""
    for file in files.between(begin, OFFSET_MAX):
        at = max(begin - file.begin, 0)
        for start, stop in file.region.data_ranges(at):
            hit = find_record(file.view, start, stop, file.size, file.begin)
            if hit >= 0:
                yield file.begin + hit
