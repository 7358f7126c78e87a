"""What a start does with a store folder: find the log's end, report damage, repair ConsumeQueues.

Owns: Recovery and its report. Must not touch: the running store; it works before anything is
appended. The log is the truth: nothing in a ConsumeQueue is believed that the log contradicts.

    1. Choose the file to begin with: the last one after a clean stop, else the newest whose first
       record is older than the checkpoint by 3 s, else the first.
    2. Walk the records from there to the end: layout, CRC, own physical offset. Where a record is
       bad, look for the next intact one that names its own place. If there is one, the bytes
       between are reported as damage and stay out of every queue; if not, the log ends here and
       the rest is zeroed (a torn tail).
    3. Each record's unit goes where its queue offset says. A queue whose units below the starting
       point do not lead up to that offset is made anew from the whole log.

Invariant afterwards: each queue's units are exactly those of the log's records, with fillers for
the ones that are lost, and no unit points into damage or beyond the end of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from core.record import (
    FILLER_SIZE,
    RECORD_BYTES_MIN,
    UNIT_BYTES,
    QueueTail,
    ScanStop,
    collect,
    find_record,
    scan,
    zeros_from,
)
from core.store.checkpoint import QueueTable, StateFiles, StoreCheckpoint
from core.store.commitlog import CommitLog
from core.store.consume_queue import FILLER, UNIT, ConsumeQueue, is_topic_name
from core.store.due_time import WAITING_TOPICS, DueTimes
from core.store.files import Storage
from core.store.mapped_file_queue import MappedFile

logger = logging.getLogger(__name__)

CHECKPOINT_MARGIN_MS: Final = 3_000
RECORDS_PER_STEP: Final = 65_536

QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are no records although the log goes on behind them."""

    path: str
    offset_bytes: int
    physical_offset: int
    size: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did."""

    was_clean: bool = True
    scanned_from: int = 0
    end_offset: int = 0
    records: int = 0
    cut_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    repaired_queues: list[QueueKey] = field(default_factory=list)
    rebuilt_queues: list[QueueKey] = field(default_factory=list)
    moved_aside: list[str] = field(default_factory=list)


class Recovery:
    """One start. ``queues`` holds the queues found on disk and gets those found in the log."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        log: CommitLog,
        queues: dict[QueueKey, ConsumeQueue],
        make_queue: Callable[[str, int], ConsumeQueue],
        due_times: DueTimes,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._log = log
        self._queues = queues
        self._make_queue = make_queue
        self._due_times = due_times
        # Queues to be made anew from the whole log, with the reason.
        self._broken: dict[QueueKey, str] = {}
        self._only: set[QueueKey] | None = None
        # Queues that the current walk has met; and whether it began at the log's first byte.
        self._met: set[QueueKey] = set()
        self._is_whole = False
        self._lost_bytes = 0
        self.report = RecoveryReport()
        self.last_store_timestamp_ms = 0

    def run(
        self, *, was_clean: bool, checkpoint: StoreCheckpoint, table: QueueTable | None
    ) -> RecoveryReport:
        """Recover; blocks for as long as reading the log since the checkpoint takes."""
        report = self.report
        report.was_clean = was_clean
        begin = self._choose_begin(was_clean, checkpoint)
        report.scanned_from = begin
        self._is_whole = begin == self._log.begin_offset
        self._load_queues(begin)
        end, torn = self._walk(begin)
        report.end_offset = end
        self._cut_log(end, torn, table)
        if table is not None:
            self._compare_with(table)
        if self._broken:
            self._rebuild()
        if table is not None:
            self._keep_offsets_used(table)
        self._cut_queues()
        self._log_report()
        return report

    # -- the log ---------------------------------------------------------------------------

    def _choose_begin(self, was_clean: bool, checkpoint: StoreCheckpoint) -> int:
        files = self._log.queue.files
        if not files:
            return 0
        if was_clean:
            return files[-1].begin
        for file in reversed(files):
            first, _, _ = scan(file.view, 0, file.size, file.begin, 1)
            if first and first[0][7] <= checkpoint.safe_ms - CHECKPOINT_MARGIN_MS:
                return file.begin
        return files[0].begin

    def _walk(self, begin: int) -> tuple[int, ScanStop]:
        """Take every intact record from ``begin`` on; return where the log ends, and why there."""
        self._met.clear()
        at = begin
        while (file := self._log.queue.find(at)) is not None:
            runs, position, stop, count, last_ms = collect(
                file.view, at - file.begin, file.size, file.begin, RECORDS_PER_STEP,
                WAITING_TOPICS, self._due_times.due_ms,
            )  # fmt: skip
            self.report.records += count
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, last_ms)
            for run in runs:
                self._place(run)
            at = file.begin + position
            match stop:
                case ScanStop.COUNT:
                    continue
                case ScanStop.BLANK | ScanStop.END:
                    at = file.end
                    continue
            good = self._find_next(file, position)
            if good is None:
                return at, stop
            self._report_damage(at, good, f"{stop.name}; the log goes on at {good}")
            at = good
        return at, ScanStop.END

    def _find_next(self, file: MappedFile, position: int) -> int | None:
        """Return the physical offset of the next intact record behind a bad one."""
        # A body may hold bytes that look like a record, so the bad record's own size comes first.
        after = position + int.from_bytes(file.view[position : position + 4], "big")
        if position + RECORD_BYTES_MIN <= after <= file.size:
            found, _, stop = scan(file.view, after, file.size, file.begin, 1)
            if found or stop is ScanStop.BLANK:
                return file.begin + after
        for start, stop_at in file.region.data_ranges(position + 1):
            hit = find_record(file.view, start, stop_at, file.size, file.begin)
            if hit >= 0:
                return file.begin + hit
        for later in self._log.queue.between(file.end, 1 << 63):
            for start, stop_at in later.region.data_ranges(0):
                hit = find_record(later.view, start, stop_at, later.size, later.begin)
                if hit >= 0:
                    return later.begin + hit
        return None

    def _report_damage(self, begin: int, end: int, reason: str) -> None:
        if any(known.physical_offset == begin for known in self.report.damage):
            return
        file = self._log.queue.find(begin)
        assert file is not None
        self._lost_bytes += end - begin
        self.report.damage.append(Damage(file.path, begin - file.begin, begin, end - begin, reason))

    def _cut_log(self, end: int, torn: ScanStop, table: QueueTable | None) -> None:
        """Make the log end at ``end``: what lies behind it holds no record."""
        files = self._log.queue.files
        keep = [file for file in files if file.begin <= end]
        expected = table.end_offset if table is not None else 0
        if files and expected > end:
            self._report_damage_at_end(end, expected)
        # The last one first: a crash between two must not leave a gap in the row.
        for file in reversed(files[len(keep) :]):
            self._set_aside_or_remove(file)
        self._log.queue.drop_from(len(keep))
        if keep and end < keep[-1].end:
            self._zero_behind(keep[-1], end - keep[-1].begin, torn)

    def _report_damage_at_end(self, end: int, expected: int) -> None:
        """The log was longer when the store was last closed or checkpointed."""
        file = self._log.queue.find(end) or self._log.queue.files[-1]
        self._lost_bytes += expected - end
        self.report.damage.append(
            Damage(
                file.path, end - file.begin, end, expected - end,
                f"no record here, but the log reached up to {expected}",
            )
        )  # fmt: skip

    def _zero_behind(self, file: MappedFile, position: int, torn: ScanStop) -> None:
        remains = 0
        for start, stop in file.region.data_ranges(position):
            behind = zeros_from(file.view, start, stop)
            if behind > start:
                remains = behind - position
        if not remains:
            return
        # After a crash a torn tail is what one expects; at any other time it may be worth a look.
        if self.report.was_clean or self.report.damage:
            name = f"{self._aside()}/{file.begin + position:020d}.cut"
            self._storage.replace_file(name, bytes(file.view[position : position + remains]))
            self.report.moved_aside.append(name)
        file.view[position : position + remains] = bytes(remains)
        self.report.cut_bytes = remains
        logger.warning(
            "cut the end of the log path=%s offset=%d bytes=%d reason=%s",
            file.path, position, remains, torn.name,
        )  # fmt: skip

    def _set_aside_or_remove(self, file: MappedFile) -> None:
        """A file behind the end of the log: one with bytes in it is kept for a human to look at."""
        holds_bytes = any(
            bytes(file.view[start:stop]).strip(b"\0") for start, stop in file.region.data_ranges(0)
        )
        file.close()
        if not holds_bytes:
            self._storage.remove_file(file.path)
            return
        name = f"{self._aside()}/{file.begin:020d}"
        self._storage.rename(file.path, name)
        self.report.moved_aside.append(name)

    def _aside(self) -> str:
        path = f"{self._directory}/damaged"
        self._storage.make_directory(path)
        return path

    # -- the queues ------------------------------------------------------------------------

    def _load_queues(self, begin: int) -> None:
        """Believe of each queue what lies below ``begin`` and leads up to a record that agrees."""
        for key, queue in self._queues.items():
            reason = queue.load()
            if reason is None and queue.begin_offset > 0 and self._log.begin_offset == 0:
                reason = "its first file is missing although the log has its first record"
            if reason is None:
                queue.set_max_offset(queue.find_end(begin))
                reason = self._contradiction(queue)
            if reason is not None:
                self._break(key, reason)

    def _break(self, key: QueueKey, reason: str) -> None:
        self._broken[key] = reason
        if self._is_whole:
            # The walk that is about to begin, or is going on, sees all of its records anyway.
            self._queues[key].wipe()

    def _contradiction(self, queue: ConsumeQueue) -> str | None:
        """Compare the last unit believed with the record it names."""
        offset = queue.max_offset - 1
        while offset >= queue.begin_offset:
            physical_offset, size, _ = queue.unit(offset)
            if size != FILLER_SIZE:
                break
            offset -= 1
        else:
            return None
        file = self._log.queue.find(physical_offset)
        if file is None or physical_offset < self._log.begin_offset:
            return None
        at = physical_offset - file.begin
        found, _, _ = scan(file.view, at, file.size, file.begin, 1)
        wanted = (queue.tail.topic, queue.tail.queue_id, offset, physical_offset, size)
        if found and found[0][:5] == wanted:
            return None
        return f"unit {offset} names no record of this queue at {physical_offset}"

    def _place(self, run: QueueTail) -> None:
        """Put a run of units where its first record's queue offset says."""
        first = run.next_offset - run.pending
        units = run.take_units()
        physical_offset = int.from_bytes(units[:8], "big")
        topic = run.topic.decode(errors="replace")
        if not is_topic_name(topic):
            self._refuse(physical_offset, units, "no topic can have its name")
            return
        key = (topic, run.queue_id)
        if self._only is not None and key not in self._only:
            return
        if key in self._broken and not self._is_whole:
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._make_queue(*key)
        gap = first - queue.max_offset
        # One more than is known to be lost: a record whose queue id has changed left a gap here.
        possible = self._lost_bytes // RECORD_BYTES_MIN + 1
        if gap and key not in self._met:
            if not self._is_whole:
                self._break(key, f"has {queue.max_offset} units below record {first}")
                return
            # When the log no longer begins at 0, the records before this one may have been
            # cleaned away with their files.
            is_cleaned = self._log.begin_offset > 0
            queue.wipe(first if is_cleaned else 0)
            gap = first - queue.max_offset
            possible = gap if is_cleaned else possible
        self._met.add(key)
        if gap < 0:
            # Only the records whose place is taken: those behind them may be in theirs.
            taken = min(-gap, len(units) // UNIT_BYTES)
            self._refuse(
                physical_offset, units[: taken * UNIT_BYTES], f"queue offset {first} is taken"
            )
            units = units[taken * UNIT_BYTES :]
            if not units:
                return
            physical_offset = int.from_bytes(units[:8], "big")
            first += taken
            gap = first - queue.max_offset
        if not 0 <= gap <= possible:
            self._refuse(physical_offset, units, f"expected queue offset {queue.max_offset}")
        elif queue.repair(first, units) and key not in self._broken:
            self._note_repaired(key)

    def _refuse(self, physical_offset: int, units: bytes, reason: str) -> None:
        """Records whose header contradicts the log before them get no units."""
        sizes = [unit[1] for unit in UNIT.iter_unpack(units)]
        self._report_damage(
            physical_offset, physical_offset + sum(sizes), f"{reason}; records={len(sizes)}"
        )

    def _note_repaired(self, key: QueueKey) -> None:
        if key not in self.report.repaired_queues:
            self.report.repaired_queues.append(key)

    def _compare_with(self, table: QueueTable) -> None:
        """Find queues that have fewer units than when the table was written."""
        for topic, queue_id, max_offset in table.queues:
            key = (topic, queue_id)
            if not is_topic_name(topic) or queue_id < 0:
                continue
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = self._make_queue(topic, queue_id)
            if queue.max_offset < max_offset and key not in self._broken and not self._is_whole:
                self._break(key, f"has {queue.max_offset} units, had {max_offset}")

    def _rebuild(self) -> None:
        """Make the broken queues anew from the whole log."""
        self.report.rebuilt_queues = sorted(self._broken)
        for key, reason in self._broken.items():
            logger.warning("rebuilding a ConsumeQueue topic=%s queue_id=%d reason=%s", *key, reason)
        if self._is_whole:
            return
        # A crash before all is rewritten must not have the next start believe half of it.
        StateFiles(self._storage, self._directory).write_checkpoint(StoreCheckpoint())
        for key in self._broken:
            self._queues[key].wipe()
        self._is_whole = True
        self._only = set(self._broken)
        records = self.report.records
        self._walk(self._log.begin_offset)
        self.report.records = records
        self._only = None

    def _keep_offsets_used(self, table: QueueTable) -> None:
        """Put fillers where a queue's last records are lost: no offset is given out twice."""
        for topic, queue_id, max_offset in table.queues:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                continue
            if queue.max_offset == 0 < max_offset and self._log.begin_offset > 0:
                # Its records have all been cleaned away, and then its files were lost.
                queue.wipe(max_offset)
                queue.repair(queue.max_offset, FILLER * (max_offset - queue.max_offset))
                self._note_repaired((topic, queue_id))
            lacking = max_offset - queue.max_offset
            if 0 < lacking <= self._lost_bytes // RECORD_BYTES_MIN:
                queue.repair(queue.max_offset, FILLER * lacking)
                self._note_repaired((topic, queue_id))

    def _cut_queues(self) -> None:
        """Zero the units that no record backs; find where each queue begins now."""
        for key, queue in self._queues.items():
            offset = queue.max_offset
            while offset < queue.end_on_file and self._is_lost(queue.unit(offset)):
                offset += 1
            if offset > queue.max_offset:
                # Units into damage at the queue's end: their offsets stay used.
                queue.repair(queue.max_offset, FILLER * (offset - queue.max_offset))
            was_dirty = queue.is_dirty
            queue.truncate(queue.max_offset)
            if queue.is_dirty and not was_dirty:
                self._note_repaired(key)
            queue.advance_min(self._log.begin_offset)

    def _is_lost(self, unit: tuple[int, int, int]) -> bool:
        physical_offset, size, _ = unit
        if size == FILLER_SIZE:
            return True
        return size > 0 and any(
            damage.physical_offset <= physical_offset < damage.physical_offset + damage.size
            for damage in self.report.damage
        )

    def _log_report(self) -> None:
        report = self.report
        for damage in report.damage:
            logger.error(
                "damage in the log path=%s offset=%d bytes=%d reason=%s",
                damage.path, damage.offset_bytes, damage.size, damage.reason,
            )  # fmt: skip
        for name in report.moved_aside:
            logger.warning("kept bytes that are no longer part of the log path=%s", name)
        logger.info(
            "store recovered clean=%s from=%d end=%d records=%d repaired=%d rebuilt=%d",
            report.was_clean, report.scanned_from, report.end_offset, report.records,
            len(report.repaired_queues), len(report.rebuilt_queues),
        )  # fmt: skip
