"""ConsumeQueue files that differ from what was written: put aside and rebuilt from the log.

Owns: Quarantine: which files are aside, rebuilding them, waking the reads that wait.
Must not touch: when a file is doubtful (consume_queue).

    file before     file that is aside      file after
    ... unit |  ?  ?  ?  ?  ?  ?  ?  ?  ?  | unit ...
          |                                   |
    --[record]---- all of it is walked ----[record]---   the log

Invariants: a file is read again only when each of its records in the log has its unit, and all
other places hold fillers; other files are read meanwhile. A crash before that leaves a file that
differs from its CRC in queues.json: its first reader after the next start puts it aside.
Concurrency: runs in the trio thread, a slice at a time, over places that a thread has paged in; a
thread writes the file. The units of one file are in memory at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

import trio

from motelog.core.errors import StoreError
from motelog.core.flag import Flag
from motelog.core.records.layout import FILLER_SIZE, UNIT_BYTES, ScanStop
from motelog.core.records.scan import UnitRun, collect
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.store.disk.files import Storage
from motelog.core.store.disk.page_cache import NotInMemoryError, Pageable, Places
from motelog.core.store.due_time import WAITING_TOPICS, DueTimes
from motelog.core.store.parts import StoreParts
from motelog.core.store.queues.consume_queue import FILLER, UNIT, ConsumeQueue
from motelog.core.store.queues.unit_flusher import UnitFlusher
from motelog.core.store.start.queue_recovery import names_its_record
from motelog.core.store.start.recovery import find_next
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

# Bytes of the log that are walked before other tasks get to run.
SLICE_BYTES: Final = 1_048_576
RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class AsideFile:
    """A file that is aside, named by the queue offset of its first unit."""

    queue: ConsumeQueue
    begin: int
    back: trio.Event = field(default_factory=trio.Event)

    @property
    def where(self) -> tuple[str, int]:
        return self.queue.directory, self.begin

    def page_in(self, storage: Storage) -> None:
        """Do nothing: only Quarantine can bring the file back."""


class UnitsAsideError(NotInMemoryError, StoreError):
    """Units are in a file that is aside: try again when it is back.

    Reads that may wait for the disk raise it too; for callers that do not page in it is a
    StoreError.
    """

    def __init__(self, file: AsideFile) -> None:
        super().__init__([file])

    def __str__(self) -> str:
        return "units of {} from {} on are being rebuilt: try again later".format(
            *self.missing[0].where
        )


class Quarantine:
    """The files of one open store that are aside."""

    def __init__(
        self,
        parts: StoreParts,
        due_times: DueTimes,
        unit_flusher: UnitFlusher,
        page_in: Callable[[Sequence[Pageable]], Awaitable[None]],
    ) -> None:
        self._log = parts.log
        self._due_times = due_times
        self._unit_flusher = unit_flusher
        self._page_in = page_in
        self._files_lock = parts.files_lock
        self._aside: dict[tuple[ConsumeQueue, int], AsideFile] = {}
        self._wanted = Flag()
        self.rebuilt_files = 0

    @property
    def aside_count(self) -> int:
        return len(self._aside)

    def put_aside(self, queue: ConsumeQueue, begin: int) -> NoReturn:
        """Put a file aside until ``run`` has rebuilt it, and raise UnitsAsideError."""
        file = self._aside.get((queue, begin))
        if file is None:
            file = self._aside[queue, begin] = AsideFile(queue, begin)
            self._wanted.set()
            logger.warning(
                "a ConsumeQueue file has changed on the disk; it is being rebuilt from the log, "
                "and its messages cannot be read until then; none is lost; if this recurs, check "
                "the disk "
                "directory=%s offset=%d", queue.directory, begin,
            )  # fmt: skip
        raise UnitsAsideError(file)

    async def run(self) -> None:
        """Rebuild files until cancelled."""
        while True:
            await self._wanted.take()
            if not await self.rebuild():
                await trio.sleep(RETRY_S)
                self._wanted.set()

    async def rebuild(self) -> bool:
        """Rebuild all files that are aside now; return whether all could be rebuilt."""
        is_done = True
        for key, file in list(self._aside.items()):
            try:
                await self._rebuild(*key)
            except (OSError, StoreError, *NO_MEMORY) as exc:
                is_done = False
                logger.error(
                    "rebuilding a ConsumeQueue file failed, and its messages cannot be read yet; "
                    "retrying in %d s; fix the cause directory=%s offset=%d reason=%s",
                    RETRY_S, file.queue.directory, file.begin, exc,
                )  # fmt: skip
            else:
                del self._aside[key]
                file.back.set()
        return is_done

    async def _rebuild(self, queue: ConsumeQueue, begin: int) -> None:
        end = queue.file_end(begin)
        units = await self._units(queue, begin, end)
        # Under the lock: a file that cleaning has removed must not come back.
        async with self._files_lock:
            if begin >= queue.begin_offset:
                await run_in_thread(queue.rewrite, begin, units)
                queue.trust(begin)
                self._unit_flusher.note_unsynced([queue])
        self.rebuilt_files += 1
        logger.warning(
            "a ConsumeQueue file has been rebuilt from the log, and its messages can be read again "
            "directory=%s offset=%d units=%d", queue.directory, begin, end - begin,
        )  # fmt: skip

    async def _units(self, queue: ConsumeQueue, begin: int, end: int) -> bytes:
        """Return units [begin, end) as the log has them, with fillers for missing ones."""
        log = self._log
        at, stop = log.begin_offset, log.end_offset
        is_behind_another = begin > queue.begin_offset and names_its_record(log, queue, begin - 1)
        if is_behind_another:
            at = sum(queue.unit(begin - 1)[:2])
        if end < queue.max_offset and names_its_record(log, queue, end):
            stop = queue.unit(end)[0]
        units = bytearray(FILLER * (end - begin))
        missing = end - begin
        count_max = 1
        while missing and (at := max(at, log.begin_offset)) < stop:
            file = log.queue.find(at)
            assert file is not None
            position = at - file.begin
            places = Places(file.path, ((position, min(position + SLICE_BYTES, file.size)),))
            await self._page_in([places])
            if at < log.begin_offset:
                continue  # removed meanwhile
            runs, position, reason, count, _ = collect(
                file.view, position, min(file.size, log.end_offset - file.begin), file.begin,
                count_max, WAITING_TOPICS, self._due_times.due_ms,
            )  # fmt: skip
            for run in runs:
                if run[:2] == (queue.tail.topic, queue.tail.queue_id):
                    missing -= _put(units, run, begin)
            count_max = max(SLICE_BYTES * count // max(file.begin + position - at, 1), 1)
            if reason is ScanStop.COUNT:
                at = file.begin + position
            elif reason in (ScanStop.BLANK, ScanStop.END):
                at = file.end
            else:
                at = find_next(log.queue, file, position) or stop
        if not is_behind_another:
            _keep_removed(units, queue.read_files(begin, end - begin), log.begin_offset)
        return bytes(units)


def _put(units: bytearray, run: UnitRun, begin: int) -> int:
    """Put a run's units where none are yet and return how many; the first of an offset counts."""
    count = 0
    at = (run.first_offset - begin) * UNIT_BYTES
    for here in range(max(at, 0), min(at + len(run.units), len(units)), UNIT_BYTES):
        if units[here : here + UNIT_BYTES] == FILLER:
            units[here : here + UNIT_BYTES] = run.units[here - at : here - at + UNIT_BYTES]
            count += 1
    return count


def _keep_removed(units: bytearray, old: bytes, log_begin: int) -> None:
    """Keep the first units if their records are removed: they show where the others begin."""
    for at in range(0, len(old), UNIT_BYTES):
        physical_offset, size, _ = UNIT.unpack_from(old, at)
        is_removed = physical_offset < log_begin and 0 < size < FILLER_SIZE
        if not is_removed or units[at : at + UNIT_BYTES] != FILLER:
            break
        units[at : at + UNIT_BYTES] = old[at : at + UNIT_BYTES]
