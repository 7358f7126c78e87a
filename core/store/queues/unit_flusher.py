"""When ConsumeQueue units are written: they stay in memory for a while after their append.

Owns: UnitFlusher: which queues hold units that are not on file, the number of these units, the
order in which they are written, which files are not synced. Must not touch: the log, the checkpoint
file.
Spec: RocketMQ DefaultMessageStore.FlushConsumeQueueService.

    append -> units in the queue's tail, where reads find them
    each second                 queues with 2 pages of units or more are written
    each checkpoint             all are written, then synced
    32 MiB in memory            all are written at once
    64 MiB in memory            the next append writes them itself, or is refused

The log has the content of every unit: after a crash the next start rebuilds unwritten ones.

Invariants: units leave memory only when they are on file; no checkpoint covers a record whose
unit is not. A write that fails for lack of space is retried; after any other failure the store is
fenced.
Concurrency: everything runs in the trio thread, except ``write_now`` before and after ``run``. The
worker thread gets copies of units and returns nothing; one ``write`` runs at a time. A
``write_now`` in the meantime writes the same bytes to the same places, and more. It waits for the
worker's call to end: if both made the same file, the later one would replace the other's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from motelog.core.flag import Flag
from motelog.core.records.append import QueueTail
from motelog.core.records.layout import UNIT_BYTES
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import NO_ROOM, FileSystem, Piece, Storage
from motelog.core.store.queues.consume_queue import ConsumeQueue, Unsynced
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
# One call of the worker writes at most this many queues, and stops when it reaches the bytes.
QUEUES_PER_CALL: Final = 512
BYTES_PER_CALL: Final = 4_194_304
# More files than these are synced by syncing the file system: one journal commit, not one each.
SYNC_EACH_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The files written since the last sync; without paths the whole file system is synced."""

    queues: list[tuple[ConsumeQueue, Unsynced]]
    paths: list[str] | None


class UnitFlusher:
    """Writes the units of one store's queues."""

    def __init__(
        self,
        storage: Storage,
        config: StoreConfig,
        queue_of: Mapping[QueueTail, ConsumeQueue],
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        self._storage = storage
        self._root = f"{config.directory}/consumequeue"
        self._file_bytes = config.consume_queue_file_units * UNIT_BYTES
        self._interval_s = config.consume_queue_flush_interval_ms / 1000
        self._least_units = -(-config.consume_queue_flush_least_pages * PAGE_BYTES // UNIT_BYTES)
        #: Units that may be in memory; an append that would add more writes them first.
        self.units_max = config.consume_queue_memory_bytes_max // UNIT_BYTES
        self._queue_of = queue_of
        self._on_failure = on_failure
        self._file_system: FileSystem | None = None
        # Dictionaries, because as sets their order would depend on addresses.
        self._unwritten: dict[QueueTail, None] = {}
        #: Not less than the number of units in memory: a prepared record has none.
        self.unwritten_units = 0
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._left: list[SyncPlan] = []
        self._wanted = Flag()
        self._lock = trio.Lock()
        # Held for one call of ``write_files``, by whichever thread makes it.
        self._calling = threading.Lock()
        self._limiter = trio.CapacityLimiter(1)
        self.sync_each_max = SYNC_EACH_MAX
        self.has_room = True

    def open(self) -> None:
        """Begin to watch for errors of the disk; the root directory must exist."""
        self._file_system = self._storage.file_system(self._root)

    def close(self) -> None:
        if self._file_system is not None:
            self._file_system.close()
            self._file_system = None

    # -- append ----------------------------------------------------------------------------

    def note(self, fresh: list[QueueTail], count: int) -> None:
        """Note that tails got at most ``count`` units; the ``fresh`` ones were empty before."""
        self._unwritten.update(dict.fromkeys(fresh))
        self.unwritten_units += count
        if self.unwritten_units > self.units_max // 2:
            self._wanted.set()

    def forget(self, fresh: Iterable[QueueTail]) -> None:
        """Undo ``note``: the tails have dropped their units."""
        for tail in fresh:
            self._unwritten.pop(tail, None)

    # -- writing ---------------------------------------------------------------------------

    def write_now(self) -> None:
        """Write all units; blocks. OSError if some cannot be written: they stay in memory."""
        for pieces, ends in self._calls(list(self._unwritten)):
            self._write_files(pieces)
            self._note_written(ends)

    async def run(self) -> None:
        """Write units that have waited long enough or have become too many, until cancelled."""
        while True:
            with trio.move_on_after(self._interval_s):
                await self._wanted.wait()
            is_much = self._wanted.is_set()
            if not await self.write(0 if is_much else self._least_units):
                # The disk is full, or the store is fenced: do not retry at once.
                await trio.sleep(self._interval_s)

    async def write(self, least_units: int = 0) -> bool:
        """Write the queues with ``least_units`` or more; return whether that succeeded."""
        async with self._lock:
            self._wanted.clear()
            for pieces, ends in self._calls(self._choose(least_units)):
                error = await run_in_thread(self._attempt, pieces, limiter=self._limiter)
                if error is not None:
                    return self._failed(error)
                self._note_written(ends)
            self.has_room = True
            return True

    def _attempt(self, pieces: list[Piece]) -> OSError | None:
        try:
            self._write_files(pieces)
        except OSError as exc:
            return exc
        return None

    def _write_files(self, pieces: list[Piece]) -> None:
        with self._calling:
            self._storage.write_files(pieces, self._file_bytes)

    def _failed(self, error: OSError) -> bool:
        if error.errno not in NO_ROOM:
            self._on_failure(f"writing units failed: {error}")
        elif self.has_room:
            logger.warning(
                "no disk space for ConsumeQueue units: they are held in memory, and appends are "
                "refused once that memory is full; free some space reason=%s",
                error,
            )
        self.has_room = False
        return False

    def _choose(self, least_units: int) -> list[QueueTail]:
        """Return the tails with so many units; always including those with the most."""
        total = 0
        chosen = []
        for tail in self._unwritten:
            pending = tail.pending
            total += pending
            if pending >= least_units:
                chosen.append(tail)
        self.unwritten_units = total
        return chosen

    def _calls(
        self, tails: Iterable[QueueTail]
    ) -> Iterator[tuple[list[Piece], list[tuple[QueueTail, int]]]]:
        """Yield (pieces, tails with the end offsets of these) for one call at a time."""
        pieces: list[Piece] = []
        ends: list[tuple[QueueTail, int]] = []
        size = 0
        for tail in tails:
            if len(ends) >= QUEUES_PER_CALL or size >= BYTES_PER_CALL:
                yield pieces, ends
                pieces, ends, size = [], [], 0
            found, end = self._queue_of[tail].unwritten()
            pieces += found
            ends.append((tail, end))
            size += sum(len(piece[2]) for piece in found)
        if ends:
            yield pieces, ends

    def _note_written(self, ends: list[tuple[QueueTail, int]]) -> None:
        for tail, end in ends:
            queue = self._queue_of[tail]
            before = tail.pending
            queue.note_written(end)
            self.unwritten_units -= before - tail.pending
            self._unsynced[queue] = None
            if not tail.pending:
                self._unwritten.pop(tail, None)

    # -- syncing ---------------------------------------------------------------------------

    def note_unsynced(self, queues: Iterable[ConsumeQueue]) -> None:
        """Note that other code has written to these queues."""
        self._unsynced.update(dict.fromkeys(queues))

    def plan_sync(self) -> SyncPlan:
        """Return the files written so far; once they are synced, these writes are on the disk."""
        while self._left:
            for queue, unsynced in self._left.pop().queues:
                queue.put_back_unsynced(unsynced)
                self._unsynced[queue] = None
        queues = [(queue, queue.take_unsynced()) for queue in self._unsynced]
        self._unsynced.clear()
        if len(queues) > self.sync_each_max and self._file_system is not None:
            return SyncPlan(queues, None)
        paths: list[str] = []
        directories: set[str] = set()
        for queue, unsynced in queues:
            paths += queue.paths_from(unsynced.offset)
            if unsynced.has_new_file:
                directories |= {queue.directory, os.path.dirname(queue.directory)}
        if directories:
            directories.add(self._root)
        return SyncPlan(queues, sorted(paths) + sorted(directories))

    def sync(self, plan: SyncPlan) -> None:
        """Block until the files of the plan are on the disk; OSError if some may not be."""
        if plan.paths is None:
            assert self._file_system is not None
            self._file_system.sync()
        elif plan.paths:
            self._storage.sync_files(plan.paths)

    def sync_later(self, plan: SyncPlan) -> None:
        """Make the next plan include this one, which was not synced; from any thread."""
        self._left.append(plan)

    def _check(self) -> None:
        """Assert that the tails to be written are those with units."""
        with_units = {tail for tail in self._queue_of if tail.pending}
        assert self._unwritten.keys() == with_units
        assert self.unwritten_units >= sum(tail.pending for tail in with_units)
