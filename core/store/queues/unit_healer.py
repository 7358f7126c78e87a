"""Units that a bad disk has changed, made again from the log while the store is open.

Owns: UnitHealer: comparing units with their records, finding the record of one that leads nowhere.
Must not touch: when a unit is in doubt (consume_queue, store_reader), records.

        unit k - 1        unit k        unit k + 1
            |                ?               |
      ------[record]----- searched ----------[record]------   the log

Invariants: a unit on file changes only into that of a record which names its topic, queue id and
queue offset. Where there is none, the file stays as it is, and readers get a filler.
Concurrency: runs in the trio thread. A read searches SEARCH_BYTES_MAX of the log and then fails;
``run`` goes on with the search, in pages that a thread has loaded, and a later read finds what it
found. Where nothing runs, each read goes on where the one before has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from motelog.core.errors import StoreError
from motelog.core.records.append import QueueTail
from motelog.core.records.layout import FILLER_SIZE, UNIT_BYTES, ScanStop
from motelog.core.records.scan import UnitRun, collect, find_record
from motelog.core.store.disk.page_cache import Pageable, Places
from motelog.core.store.due_time import WAITING_TOPICS, DueTimes
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.queues.consume_queue import FILLER, UNIT, ConsumeQueue

logger = logging.getLogger(__name__)

SEARCH_BYTES_MAX: Final = 4_194_304
RECORDS_PER_STEP: Final = 64
UNITS_PER_STEP: Final = 1_024
NEIGHBOURS_MAX: Final = 64
LOST_MAX: Final = 65_536
SOUGHT_MAX: Final = 1_024

Place = tuple[bytes, int, int]  # (topic, queue id, queue offset)
PageIn = Callable[[Sequence[Pageable]], Awaitable[None]]


class UnitHealer:
    """Makes units of one open store right."""

    def __init__(
        self, log: CommitLog, due_times: DueTimes, on_repaired: Callable[[ConsumeQueue], None]
    ) -> None:
        self._log = log
        self._due_times = due_times
        self._on_repaired = on_repaired
        # Of searches that a read has begun: where the next read goes on, and their end.
        self._searched: dict[Place, tuple[int, int]] = {}
        # The same of those that ``run`` goes on with. What wakes it; None while it does not run.
        self._sought: dict[Place, tuple[int, int]] = {}
        self._wanted: trio.Event | None = None
        # Places that the log has no record for.
        self._lost: set[Place] = set()
        self.repaired_units = 0

    def heal_file(self, queue: ConsumeQueue, offset: int) -> None:
        """Compare all units of the file that holds ``offset`` with their records.

        StoreError when a search takes longer; the next call goes on.
        """
        begin, end = queue.file_range(offset)
        for at in range(begin, end, UNITS_PER_STEP):
            count = min(UNITS_PER_STEP, end - at)
            self.verified(queue, at, queue.read(at, count))
        # Units whose records are removed cannot be compared, and are not needed either.
        queue.trust_file(offset)

    def verified(self, queue: ConsumeQueue, offset: int, units: bytes) -> bytes:
        """Return units as their records say they are, fillers where there is no record.

        Those on file are made so, too. StoreError when a search takes longer: try again.
        """
        checked = bytearray()
        for at in range(0, len(units), UNIT_BYTES):
            unit = units[at : at + UNIT_BYTES]
            here = offset + at // UNIT_BYTES
            if not (self._is_removed(queue, here, unit) or self._is_right(queue, here, unit)):
                unit = self._find(queue, here, unit)
            checked += unit
        return bytes(checked)

    def _is_right(self, queue: ConsumeQueue, offset: int, unit: bytes) -> bool:
        return self._unit_at(UNIT.unpack(unit)[0], queue.tail, offset) == unit

    def _is_removed(self, queue: ConsumeQueue, offset: int, unit: bytes) -> bool:
        """Say whether this and the next unit are of records below the log's begin."""
        begin = self._log.begin_offset
        if UNIT.unpack(unit)[0] >= begin or UNIT.unpack(unit)[1] == FILLER_SIZE:
            return False
        following = queue.unit(offset + 1)
        return following[1] > 0 and following[0] < begin

    def _unit_at(self, physical_offset: int, tail: QueueTail, offset: int) -> bytes | None:
        """Return the unit of the record at a place of the log if it is this queue's ``offset``."""
        if not self._log.begin_offset <= physical_offset < self._log.end_offset:
            return None
        runs, _, _ = self._collect(physical_offset, 1)
        for run in runs:
            if run[:3] == (tail.topic, tail.queue_id, offset):
                return run.units
        return None

    def _collect(self, at: int, count: int) -> tuple[list[UnitRun], int, ScanStop]:
        """Return the runs of records from ``at`` on, where they end, and why."""
        file = self._log.queue.find(at)
        assert file is not None
        end = min(file.size, self._log.end_offset - file.begin)
        runs, position, stop, _, _ = collect(
            file.view, at - file.begin, end, file.begin, count, WAITING_TOPICS,
            self._due_times.due_ms,
        )  # fmt: skip
        return runs, file.begin + position, stop

    def _find(self, queue: ConsumeQueue, offset: int, unit: bytes) -> bytes:
        """Return the unit of the record with this queue offset, a filler if there is none."""
        place = (queue.tail.topic, queue.tail.queue_id, offset)
        if place in self._lost:
            return FILLER
        if place in self._sought:
            raise _not_yet(place)
        known = self._searched.pop(place, None)
        if known is None:
            known = self._neighbour_end(queue, offset), self._next_begin(queue, offset)
        at, end = known
        found = self._search(place, at, end)
        if found is None:
            self._note_lost(place)
            return FILLER
        if found != unit:
            self._repair(queue, offset, found)
        return found

    def _repair(self, queue: ConsumeQueue, offset: int, unit: bytes) -> None:
        logger.warning(
            "a unit is made anew from its record topic=%s queue_id=%d offset=%d",
            queue.tail.topic, queue.tail.queue_id, offset,
        )  # fmt: skip
        self.repaired_units += 1
        try:
            queue.repair(offset, unit)
        except OSError as exc:
            # Readers get what is right all the same, and the next one tries again.
            logger.warning("a unit cannot be written error=%s", exc)
        self._on_repaired(queue)

    def _neighbour_end(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the end of the record of a unit before this one."""
        for before in range(
            offset - 1, max(offset - 1 - NEIGHBOURS_MAX, queue.begin_offset - 1), -1
        ):
            physical_offset, size, _ = queue.unit(before)
            if self._unit_at(physical_offset, queue.tail, before) is not None:
                return physical_offset + size
        return self._log.begin_offset

    def _next_begin(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the begin of the record of a unit behind this one."""
        for behind in range(offset + 1, min(offset + 1 + NEIGHBOURS_MAX, queue.max_offset)):
            physical_offset = queue.unit(behind)[0]
            if self._unit_at(physical_offset, queue.tail, behind) is not None:
                return physical_offset
        return self._log.end_offset

    def _search(self, place: Place, begin: int, end: int) -> bytes | None:
        """Return the unit of the record of ``place`` in [begin, end), None if it is not there."""
        # What an earlier read has begun may have been removed since.
        at = begin = max(begin, self._log.begin_offset)
        while at < end:
            if at - begin >= SEARCH_BYTES_MAX:
                self._put_off(place, at, end)
                raise _not_yet(place)
            found, at = self._look(place, at, end)
            if found is not None:
                return found
        return None

    def _look(self, place: Place, at: int, end: int) -> tuple[bytes | None, int]:
        """Return the unit if one of the next records is its; and where that is, or to go on."""
        runs, behind, stop = self._collect(at, RECORDS_PER_STEP)
        for run in runs:
            at_unit = (place[2] - run.first_offset) * UNIT_BYTES
            if run[:2] == place[:2] and 0 <= at_unit < len(run.units):
                return run.units[at_unit : at_unit + UNIT_BYTES], at
        if stop is not ScanStop.COUNT:
            behind = self._behind(behind, end, stop)
        return None, behind

    def _put_off(self, place: Place, at: int, end: int) -> None:
        if self._wanted is not None and len(self._sought) < SOUGHT_MAX:
            self._sought[place] = at, end
            self._wanted.set()
        else:
            self._note_searched(place, at, end)

    def _note_searched(self, place: Place, at: int, end: int) -> None:
        if len(self._searched) >= LOST_MAX:
            self._searched.clear()
        self._searched[place] = at, end

    def _note_lost(self, place: Place) -> None:
        logger.error("a unit has no record topic=%s queue_id=%d offset=%d", *place)
        if len(self._lost) >= LOST_MAX:
            self._lost.clear()
        self._lost.add(place)

    async def run(self, page_in: PageIn) -> None:
        """Go on with searches that take longer than a read may, until cancelled.

        ``page_in`` brings places into memory and waits meanwhile.
        """
        self._wanted = trio.Event()
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self._sought:
                    place, where = next(iter(self._sought.items()))
                    try:
                        await self._search_on(place, *where, page_in)
                    except (OSError, StoreError) as exc:
                        # The read that comes next begins anew, and says so if it fails as well.
                        logger.warning("a search for a unit's record failed error=%s", exc)
                    # Not before something is known of it: until then no read looks for it too.
                    del self._sought[place]
        finally:
            self._wanted = None
            self._sought.clear()

    async def _search_on(self, place: Place, at: int, end: int, page_in: PageIn) -> None:
        while at < end:
            at = max(at, self._log.begin_offset)
            file = self._log.queue.find(at)
            if file is None:
                break
            begin = at - file.begin
            stop = min(begin + SEARCH_BYTES_MAX, file.size)
            await page_in([Places(file.path, ((begin, stop),))])
            # Meanwhile the file may have been removed: then this begins again at the next.
            while self._log.begin_offset <= at < min(file.begin + stop, end):
                found, at = self._look(place, at, end)
                if found is not None:
                    # Whoever reads next begins there, and puts it on file.
                    self._note_searched(place, at, end)
                    return
                await trio.lowlevel.checkpoint()
        self._note_lost(place)

    def _behind(self, at: int, end: int, stop: ScanStop) -> int:
        """Return where records go on behind what is none."""
        file = self._log.queue.find(at)
        if file is None or stop in (ScanStop.BLANK, ScanStop.END):
            return file.end if file is not None and at < file.end else end
        limit = min(file.size, self._log.end_offset - file.begin)
        for start, stop_at in file.region.data_ranges(at - file.begin + 1):
            found = find_record(file.view, start, min(stop_at, limit), limit, file.begin)
            if found >= 0:
                return file.begin + found
        return file.end


def _not_yet(place: Place) -> StoreError:
    topic, queue_id, offset = place
    return StoreError(
        f"unit {offset} of {topic.decode()}/{queue_id} is wrong, and its record is being looked "
        "for: try again"
    )
