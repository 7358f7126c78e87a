"""Checkpoints of an open store: what each syncs and records, and what happens on a full disk.

Owns: Checkpointer: the order units -> log -> syncs -> small files, the work that a checkpoint
without room leaves to the next one. Must not touch: the bytes of the small files (checkpoint), how
units are written and synced (unit_flusher, index_service).

    each 10 s   units written -> plan, in the event loop -> log flushed -> executed, in a thread
    open, stop  the same without the event loop; the caller has flushed the log

Invariant: a checkpoint records the state at its plan, after that state has reached the disk.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

import trio

from motelog.core.store.disk.files import NO_ROOM
from motelog.core.store.index.index_service import IndexService
from motelog.core.store.parts import StoreParts
from motelog.core.store.queues.consume_queue import ConsumeQueue
from motelog.core.store.queues.unit_flusher import SyncPlan, UnitFlusher
from motelog.core.store.state.checkpoint import (
    ClockNotes,
    IndexTable,
    QueueTable,
    StateFiles,
    StoreCheckpoint,
)
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)


class Checkpointer:
    """Writes the checkpoints of one store; plans are made in the thread that appends."""

    def __init__(
        self,
        parts: StoreParts,
        state_files: StateFiles,
        index: IndexService,
        unit_flusher: UnitFlusher,
        *,
        interval_ms: int,
    ) -> None:
        self._storage = parts.storage
        self._state_files = state_files
        self._log = parts.log
        self._index = index
        self._unit_flusher = unit_flusher
        self._flusher = parts.flusher
        self._clock = parts.clock
        self._files_lock = parts.files_lock
        self._on_failure = parts.on_failure
        self._interval_s = interval_ms / 1000
        self._limiter = trio.CapacityLimiter(1)
        # According to the last checkpoint everything below this is on disk.
        self._covered_offset = 0
        # The line of each queue in queues.json, and whether the file must be written again.
        self._table: dict[ConsumeQueue, tuple[tuple[str, int, int], list[int]]] = {}
        self._table_is_stale = True
        # Paths that a checkpoint on a full disk did not sync; the next one does.
        self._unsynced_paths: list[str] = []
        self._unsynced_directories: set[str] = set()

    async def run(self) -> None:
        """Write a checkpoint each interval, until the store is fenced."""
        while not self._flusher.is_fenced:
            await trio.sleep(self._interval_s)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Sync log and ConsumeQueues to disk and record how far they are."""
        async with self._files_lock:
            # The checkpoint records the present state; the syncs may cover younger records too.
            last_ms, end_offset = self._log.last_store_timestamp_ms, self._log.end_offset
            if not await self._unit_flusher.write():
                return  # the disk is full, and the last one is still true; or the store is fenced
            plan = self._plan(last_ms, end_offset)
            await self._flusher.flush()
            if self._flusher.is_fenced:
                return
            try:
                await run_in_thread(self._try, plan, limiter=self._limiter)
            except OSError as exc:
                self._on_failure(f"writing a checkpoint failed: {exc}")

    async def cover(self, begin: int, end: int) -> None:
        """Write a checkpoint that covers [begin, end) of the log, before it is removed.

        Otherwise a crash could lose units that can no longer be rebuilt. That would leave holes
        among the units, or assign queue offsets twice. If there is no room for a checkpoint,
        cleaning continues anyway, since it frees space.
        """
        del begin
        if end > self._covered_offset:
            await self.checkpoint()

    def write_at_open(self) -> None:
        """Write a checkpoint after a start, if there is room; the log is on disk. Blocks."""
        self._try(self._plan(self._log.last_store_timestamp_ms, self._log.end_offset))

    def write_at_stop(self) -> None:
        """Write the last checkpoint; log and units are on file. Blocks."""
        last_ms, end_offset = self._log.last_store_timestamp_ms, self._log.end_offset
        self._write(self._plan(last_ms, end_offset, is_closed=True))

    def note_queue(self, queue: ConsumeQueue) -> None:
        """Record in ``queues.json`` how much of a queue is on file."""
        tail, end_offset = queue.tail, queue.written_offset
        if end_offset:
            self._table[queue] = (tail.topic.decode(), tail.queue_id, end_offset), queue.crcs()

    def _plan(
        self, last_ms: int, complete_offset: int, *, is_closed: bool = False
    ) -> _CheckpointPlan:
        """Return, without blocking, the paths to sync and the state to record after that.

        The units of all records up to ``last_ms``, and below ``complete_offset``, are on file. The
        caller then flushes the log to its end, which may include younger records.
        """
        units = self._unit_flusher.plan_sync()
        paths, self._unsynced_paths = self._unsynced_paths, []
        directories, self._unsynced_directories = self._unsynced_directories, set()
        index = self._index.plan()
        table = None
        if units.queues or is_closed or self._table_is_stale:
            for queue, _ in units.queues:
                self.note_queue(queue)
            self._table_is_stale = False
            table = QueueTable(
                end_offset=self._log.end_offset,
                is_closed=is_closed,
                queues=[row for row, _ in self._table.values()],
                crcs=[crcs for _, crcs in self._table.values()],
            )
        return _CheckpointPlan(
            units,
            paths + index.paths,
            directories | set(index.directories),
            table,
            StoreCheckpoint(last_ms, last_ms, index.index_ms, complete_offset),
            index.table,
            ClockNotes(self._clock.now_ms(), self._clock.jumps),
        )

    def _try(self, plan: _CheckpointPlan) -> None:
        """Write a checkpoint, or leave it to the next one if there is no room; blocks."""
        try:
            self._write(plan)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
            # No sync has failed, and the last checkpoint is still true.
            logger.warning(
                "there is no room for a checkpoint; it is retried, until then a start has to read "
                "more of the log reason=%s",
                exc,
            )
            self._unit_flusher.sync_later(plan.units)
            self._unsynced_paths = plan.paths
            self._unsynced_directories = plan.directories
            self._table_is_stale = True
            self._index.write_again()

    def _write(self, plan: _CheckpointPlan) -> None:
        """Sync the plan's paths, then write the small files; blocks."""
        self._unit_flusher.sync(plan.units)
        for path in plan.paths:
            # It was cleaned up since an earlier plan named it.
            with suppress(FileNotFoundError):
                self._storage.sync_file(path)
        for directory in sorted(plan.directories):
            self._storage.sync_directory(directory)
        if plan.table is not None:
            self._state_files.write_queues(plan.table)
        if plan.index is not None:
            self._state_files.write_index(plan.index)
        self._state_files.write_clock(plan.clock)
        self._state_files.write_checkpoint(plan.checkpoint)
        self._covered_offset = plan.checkpoint.complete_offset or 0


@dataclass(frozen=True, slots=True)
class _CheckpointPlan:
    """Files and directories to sync, and the state to record after that."""

    units: SyncPlan
    paths: list[str]
    directories: set[str]
    table: QueueTable | None
    checkpoint: StoreCheckpoint
    index: IndexTable | None
    clock: ClockNotes
