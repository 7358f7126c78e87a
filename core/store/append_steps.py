"""The steps around the write of a batch: room before it, and the way back if it fails.

Owns: AppendSteps: what may fail before the first byte, what a failure half way leaves. Must not
touch: the bytes of records, when an append is refused and who hears of it (message_store).
"""

from __future__ import annotations

import logging

from motelog.core.errors import StoreError, StoreFencedError, StoreFullError
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import QueueTail
from motelog.core.store.disk.disk_watch import DiskWatch
from motelog.core.store.disk.files import NO_ROOM, no_room_text
from motelog.core.store.parts import StoreParts
from motelog.core.store.queues.unit_flusher import UnitFlusher

logger = logging.getLogger(__name__)

REFUSAL_PERIOD_S = 60.0


class AppendSteps:
    """The steps of one open store; all in the thread of the trio run."""

    def __init__(self, parts: StoreParts, unit_flusher: UnitFlusher, disk_watch: DiskWatch) -> None:
        self._log = parts.log
        self._flusher = parts.flusher
        self._on_failure = parts.on_failure
        self._unit_flusher = unit_flusher
        self._disk_watch = disk_watch
        self.refusals = LimitedLog(logger, lines_max=1, period_s=REFUSAL_PERIOD_S)

    def make_room(
        self, messages_count: int, units_count: int, total: int, largest: int, *, may_wait: bool
    ) -> None:
        """Make room for a batch, in the log's files and for units in memory.

        Everything that can fail for lack of space or descriptors comes before the first byte.
        """
        try:
            self._log.make_room(total, largest, may_wait=may_wait)
            if self._unit_flusher.unwritten_units + units_count > self._unit_flusher.units_max:
                self._unit_flusher.write_now()
        except OSError as exc:
            raise self._no_room(exc, messages_count) from exc

    def begin_log_at(self, offset: int) -> None:
        """Let the log, which has no record, begin at ``offset``, where a file begins."""
        try:
            self._log.begin_at(offset)
        except OSError as exc:
            raise self._fenced(f"making the log begin at {offset} failed: {exc}") from exc
        self._flusher.start_at(offset)

    def _no_room(self, exc: OSError, messages_count: int) -> StoreError:
        """Return the error for a batch for which no room could be made."""
        if exc.errno not in NO_ROOM:
            return self._fenced(f"making room for a batch failed: {exc}")
        text = no_room_text(exc)
        self._disk_watch.refuse(messages_count, text)
        self.refusals.warning(
            "messages are refused until there is room; reads continue reason=%s", text
        )
        return StoreFullError(f"no room for a batch: {text}")

    def half_done(self, exc: BaseException, dirty: list[QueueTail]) -> StoreFencedError:
        """Hide a batch that may have been written in part, and fence the store."""
        for tail in dirty:
            tail.take_back(self._log.end_offset)
        return self._fenced(f"an append failed half way: {exc!r}")

    def taken_back(
        self, total_bytes: int, dirty: list[QueueTail], fresh: list[QueueTail]
    ) -> StoreError:
        """Undo the written part of a batch that ran out of memory; if that fails, fence the store.

        Queues that grew are in ``dirty`` before they do, and in ``fresh`` if they held no unit.
        """
        self.refusals.fault("an append is refused for lack of memory: free memory")
        try:
            for tail in dirty:
                tail.take_back(self._log.end_offset)
            self._unit_flusher.forget(fresh)
            self._log.take_back(total_bytes)
        except BaseException as exc:
            raise self._fenced("an append failed half way for lack of memory") from exc
        return StoreFullError("no room for a batch: free memory")

    def _fenced(self, reason: str) -> StoreFencedError:
        """Fence the store; return the error that says so."""
        self._on_failure(reason)
        return StoreFencedError(reason)
