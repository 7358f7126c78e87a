"""Recovery of ConsumeQueues at a start: which units are kept, corrected, rebuilt or zeroed.

Owns: QueueRecovery. Must not touch: where the log begins and ends, the walk of its records
(recovery), the running store. The log is authoritative: a unit that contradicts it is discarded.

The walk collects units in the queues' tails. They are compared in batches with those on file, and
written if they differ.

Invariant after a start: each queue's units are exactly those of the log's records, with fillers for
lost records, and no unit points into damage or beyond the end of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from motelog.core.records.dispatch import LMQ_QUEUE_ID, dispatch_places
from motelog.core.records.layout import FILLER_SIZE, RECORD_BYTES_MIN, UNIT_BYTES
from motelog.core.records.scan import UnitRun, scan, zeros_from
from motelog.core.store.disk.files import Piece, Storage
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.queues.consume_queue import FILLER, UNIT, ConsumeQueue
from motelog.core.store.state.checkpoint import QueueTable, StateFiles
from motelog.core.store.state.recovery_report import QueueKey, RecoveryReport
from motelog.core.topic_names import is_topic_name

# Units in memory before they are compared and written: 32 MiB.
UNITS_MAX: Final = 1_677_721
PIECES_PER_CALL: Final = 512

logger = logging.getLogger(__name__)


class QueueRecovery:
    """One start. ``queues`` has the queues found on disk; those found in the log are added."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        log: CommitLog,
        queues: dict[QueueKey, ConsumeQueue],
        make_queue: Callable[[str, int], ConsumeQueue],
        *,
        file_units: int,
    ) -> None:
        self._storage = storage
        self._file_bytes = file_units * UNIT_BYTES
        self._directory = directory
        self._log = log
        self._queues = queues
        self._make_queue = make_queue
        self.report = RecoveryReport()
        # Queues to rebuild from the whole log, with the reason.
        self._broken: dict[QueueKey, str] = {}
        self._only: set[QueueKey] | None = None
        # Queues seen by the current walk, and whether it began at the log's first byte.
        self._met: set[QueueKey] = set()
        self._is_whole = False
        # Whether the first walk began there, in a log whose first record was already removed.
        self._is_cleaned = False
        # Queues with units in their tails, and how many these are.
        self._touched: dict[QueueKey, ConsumeQueue] = {}
        self._pending = 0
        # The units that each queue is known to have had on file, and the CRCs of its files.
        self._known: dict[QueueKey, int] = {}
        self._crcs: dict[QueueKey, list[int]] = {}

    @property
    def count(self) -> int:
        """The number of queues in the log as read so far."""
        return len(self._queues)

    def load(self, begin: int, table: QueueTable | None) -> None:
        """Keep each queue's units below ``begin`` if the last one names a matching record.

        A walk of the log from ``begin`` on follows.
        """
        if table is not None:
            self._known = {(topic, queue_id): end for topic, queue_id, end in table.queues}
            if len(table.crcs) == len(table.queues):
                self._crcs = dict(zip(self._known, table.crcs, strict=False))
        self._is_whole = begin == self._log.begin_offset
        self._is_cleaned = self._is_whole and begin > 0
        for key, queue in self._queues.items():
            reason = queue.load()
            if reason is None and queue.begin_offset > 0 and self._log.begin_offset == 0:
                reason = "its first file is missing although the log has its first record"
            if reason is None:
                queue.set_max_offset(queue.find_end(begin, self._known.get(key)))
                reason = self._contradiction(queue)
                known = self._known.get(key, queue.max_offset)
                queue.adopt_crcs(known, self._crcs.get(key, []))
            if reason is not None:
                self._break(key, reason)

    def _break(self, key: QueueKey, reason: str) -> None:
        self._broken[key] = reason
        if self._is_whole:
            # The walk that begins now, or continues, sees all records of this queue anyway.
            self._wipe(key)

    def _wipe(self, key: QueueKey, begin_offset: int = 0) -> None:
        queue = self._queues[key]
        self._pending -= queue.tail.pending
        queue.wipe(begin_offset)

    def _contradiction(self, queue: ConsumeQueue) -> str | None:
        """Compare the last kept unit with the record that it names."""
        offset = queue.max_offset - 1
        while offset >= queue.begin_offset:
            physical_offset, size, _ = queue.unit(offset)
            if size != FILLER_SIZE:
                break
            offset -= 1
        else:
            return None
        if self._log.queue.find(physical_offset) is None or names_its_record(
            self._log, queue, offset
        ):
            return None
        return f"unit {offset} names no record of this queue at {physical_offset}"

    def place(self, run: UnitRun) -> None:
        """Place a run of units at its first record's queue offset."""
        first, units = run.first_offset, run.units
        physical_offset = int.from_bytes(units[:8], "big")
        topic = run.topic.decode(errors="replace")
        if not is_topic_name(topic):
            self._refuse(physical_offset, units, "its topic name is not valid")
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
        # One more than the known losses: a record whose queue id was changed leaves a gap.
        possible = self.report.lost_bytes // RECORD_BYTES_MIN + 1
        if gap and key not in self._met:
            if not self._is_whole:
                self._break(key, f"has {queue.max_offset} units below record {first}")
                return
            # If the log no longer begins at 0, the records before this one may have been removed
            # with their files.
            is_cleaned = self._log.begin_offset > 0
            self._wipe(key, first if is_cleaned else 0)
            gap = first - queue.max_offset
            possible = gap if is_cleaned else possible
        if key not in self._met:
            self._fill_holes(queue, first)
        self._met.add(key)
        if gap < 0:
            # Only records whose place is taken; the places of later ones may be free.
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
        else:
            self._put(key, FILLER * gap + units)

    def _fill_holes(self, queue: ConsumeQueue, end: int) -> None:
        """Fill holes in the units of removed records, which are all units below ``end``.

        If cleaning went beyond the last checkpoint, their units may not be on disk.
        """
        if self._is_cleaned and queue.fill_holes(end):
            self.report.note_repaired((queue.tail.topic.decode(), queue.tail.queue_id))

    def _put(self, key: QueueKey, units: bytes) -> None:
        """Add units to a queue."""
        queue = self._queues[key]
        queue.tail.extend(units)
        self._touched[key] = queue
        self._pending += len(units) // UNIT_BYTES
        if self._pending > UNITS_MAX:
            self._write()

    def _write(self) -> None:
        """Write all units that are in memory to the files."""
        pieces: list[Piece] = []
        queues: list[ConsumeQueue] = []

        def call() -> None:
            if pieces:
                self._storage.write_files(pieces, self._file_bytes)
            for queue in queues:
                queue.note_written(queue.max_offset)
            pieces.clear()
            queues.clear()

        for key, queue in self._touched.items():
            tail = queue.tail
            first, count = tail.first_offset, tail.pending
            units = tail.units(first, count)
            there = queue.read_files(first, count)
            if there != units:
                known = max(self._known.get(key, 0) - first, 0) * UNIT_BYTES
                if units[:known] != there[:known]:
                    queue.forget_crcs(first)
                pieces += queue.pieces(first, units)
                if key not in self._broken and self._was_wrong(key, first, units, there):
                    self.report.note_repaired(key)
            queues.append(queue)
            if len(pieces) >= PIECES_PER_CALL:
                call()
        call()
        self._touched.clear()
        self._pending = 0

    def _was_wrong(self, key: QueueKey, first: int, units: bytes, there: bytes) -> bool:
        """Return whether the units on file differ from these; zeros are units never written."""
        known = min((self._known.get(key, 0) - first) * UNIT_BYTES, len(units))
        written = -(-zeros_from(there, 0, len(there)) // UNIT_BYTES) * UNIT_BYTES
        end = max(known, written)
        there = there.ljust(len(units), b"\0")
        if there[:end] == units[:end]:
            return False
        for at in range(0, end, UNIT_BYTES):
            unit = there[at : at + UNIT_BYTES]
            if unit != units[at : at + UNIT_BYTES] and (at < known or unit.strip(b"\0")):
                return True
        return False

    def _refuse(self, physical_offset: int, units: bytes, reason: str) -> None:
        """Refuse units for records whose header contradicts the log before them."""
        sizes = [unit[1] for unit in UNIT.iter_unpack(units)]
        file = self._log.queue.find(physical_offset)
        assert file is not None
        self.report.note_damage(
            file, physical_offset, sum(sizes), f"{reason}; records={len(sizes)}"
        )

    def compare_with(self, table: QueueTable) -> None:
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

    def rebuild(self, walk: Callable[[int], object]) -> None:
        """Rebuild the broken queues; ``walk`` places every record from an offset on."""
        if not self._broken:
            return
        self.report.rebuilt_queues = sorted(self._broken)
        for key, reason in self._broken.items():
            logger.warning(
                "a ConsumeQueue does not match the log and is rebuilt from it; this start takes "
                "longer, but no message is lost topic=%s queue_id=%d reason=%s",
                *key, reason,
            )  # fmt: skip
        if self._is_whole:
            return
        # If a crash comes before all is rewritten, the next start must not keep some of it.
        StateFiles(self._storage, self._directory).forget_checkpoint()
        for key in self._broken:
            self._wipe(key)
        self._is_whole = True
        self._only = set(self._broken)
        self._met.clear()
        records = self.report.records
        walk(self._log.begin_offset)
        self.report.records = records
        self._only = None

    def keep_offsets_used(self, table: QueueTable) -> None:
        """Put fillers for lost records at a queue's end, so that no offset is assigned twice."""
        for topic, queue_id, max_offset in table.queues:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                continue
            if queue.max_offset == 0 < max_offset and self._log.begin_offset > 0:
                # All its records were removed by cleaning, and then its files were lost.
                self._wipe((topic, queue_id), max_offset)
                self._put((topic, queue_id), FILLER * (max_offset - queue.max_offset))
                self.report.note_repaired((topic, queue_id))
            missing = max_offset - queue.max_offset
            if 0 < missing <= self.report.lost_bytes // RECORD_BYTES_MIN:
                self._put((topic, queue_id), FILLER * missing)
                self.report.note_repaired((topic, queue_id))

    def cut(self) -> None:
        """Write the units in memory, and zero those without a record."""
        self._write()
        for key, queue in self._queues.items():
            if key not in self._met:
                self._fill_holes(queue, queue.max_offset)
        for key, queue in self._queues.items():
            count = 0
            while self._is_lost(queue, queue.max_offset + count):
                count += 1
            if count:
                # Units that point into damage at the queue's end: their offsets are not reused.
                self._put(key, FILLER * count)
        self._write()
        for key, queue in self._queues.items():
            queue.settle_crcs()
            if queue.truncate():
                self.report.note_repaired(key)

    def _is_lost(self, queue: ConsumeQueue, offset: int) -> bool:
        data = queue.read_files(offset, 1)
        if not data:
            return False
        physical_offset, size, _ = UNIT.unpack(data)
        if size == FILLER_SIZE:
            return True
        return size > 0 and any(
            damage.physical_offset <= physical_offset < damage.physical_offset + damage.size
            for damage in self.report.damage
        )


def names_its_record(log: CommitLog, queue: ConsumeQueue, offset: int) -> bool:
    """Return whether the unit at ``offset`` leads to a record with this queue and offset."""
    physical_offset, size, _ = queue.unit(offset)
    file = log.queue.find(physical_offset)
    if file is None:
        return False
    found, _, _ = scan(file.view, physical_offset - file.begin, file.size, file.begin, 1)
    tail = queue.tail
    if not found or found[0][3:5] != (physical_offset, size):
        return False
    if found[0][:3] == (tail.topic, tail.queue_id, offset):
        return True
    further = dispatch_places(found[0][0], found[0][8])
    return tail.queue_id == LMQ_QUEUE_ID and (tail.topic, offset) in further
