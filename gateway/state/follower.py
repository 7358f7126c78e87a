"""Reading back: applies a topic's state records to the view's rows, from where the view is.

Owns: the reads of one topic's queue, waiting reads, the check that view and log belong together.
Must not touch: the meaning of a record; the given part applies it.
Invariant: the rows and the offset up to which records are applied change in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from motelog.core.limited_log import LimitedLog
from motelog.core.records.decode import decode_brief
from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle
from motelog.gateway.log.reads import Reads
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.state.view import Applied, View, ViewBusyError, ViewError, ViewPart

logger = logging.getLogger(__name__)

_BYTES_MAX: Final = 262_144


class ReadBack(NamedTuple):
    """One record of the topic, read back; ``topic_name`` is that of an MQTT message."""

    queue_offset: int
    topic_name: str | None
    properties: bytes
    body: bytes
    store_ms: int


class FollowerPart(ViewPart, Protocol):
    """The owner of a topic's rows."""

    def apply(self, records: Sequence[ReadBack], *, begin_offset: int, limit: int) -> int:
        """Apply records to the rows; return how many were applied, at least one.

        Runs in a transaction. It stops after the record with which it has changed ``limit`` rows.
        All records from ``begin_offset`` on have been applied before.
        """
        ...

    def rolled_back(self) -> None:
        """Forget the transaction's data in memory, since it failed."""
        ...


class Follower:
    """Keeps one part of a view up to date with the single queue of ``topic``."""

    def __init__(self, log: LogPort, view: View, topic: str, part: FollowerPart) -> None:
        self._log_port = log
        self._view = view
        self._topic = topic
        self._part = part
        self._faults = LimitedLog(logger, lines_max=1, period_s=60.0)
        # The next refresh, a second later, reads again.
        self._reads: Reads[str] = Reads(log, read_again=lambda _: None)
        self._is_checked = False
        # The log's end when the view was opened or rebuilt; None while it is not known.
        self._target: int | None = None
        self._target_life = -1
        # The view's state of the topic, and the view's generation in which it was read.
        self._applied = Applied(-1, 0, 0, 0)
        self._applied_life = -1
        self.next_offset = 0
        view.add(part)

    @property
    def is_current(self) -> bool:
        """Whether the view has everything that was in the log when it was opened or rebuilt."""
        is_known = self._target is not None and self._target_life == self._view.life
        return is_known and self.next_offset >= (self._target or 0)

    def refresh(self, limit: int) -> bool:
        """Apply about ``limit`` changes from the log; return whether more can be read at once."""
        queues = self._log_port.queues(self._topic)
        if not queues:
            return False
        try:
            if self._view.fault is not None:
                self._rebuild(self._view.fault)
            if not self._is_checked and not self._check(queues[0]):
                return False
            self._aim(queues[0])
            return self._apply(queues[0], limit)
        except ViewBusyError:
            return False
        except ViewError as exc:
            self._faults.warning("the view cannot be brought up to date: %s", exc)
            return False

    def begin_behind(self, queue_offset: int) -> int:
        """Return where the queue begins if the record at ``queue_offset`` has been deleted.

        Otherwise ``queue_offset``, as far as is known without waiting.
        """
        queues = self._log_port.queues(self._topic)
        if not queues:
            return queue_offset
        read = self._log_port.read(queues[0], queue_offset, count_max=1, bytes_max=1)
        return read.begin_offset if isinstance(read, LogRead) else queue_offset

    def _aim(self, queue: QueueHandle) -> None:
        """Ask for the log's end, once for each opening of the view."""
        life = self._view.life
        if self._target_life == life:
            return

        def known(tail: int) -> None:
            if life == self._view.life:
                self._target = tail

        self._target_life = life
        self.next_offset = 0
        self._target = self._log_port.tail(queue, known)

    def _apply(self, queue: QueueHandle, limit: int) -> bool:
        if self._applied_life != self._view.life:
            self._applied = self._view.applied(self._topic) or Applied(-1, 0, 0, 0)
            self._applied_life = self._view.life
        applied = self._applied
        if applied.next_offset and self._log_port.tail(queue) == applied.next_offset:
            self.next_offset = applied.next_offset
            return False  # the usual case: a replay asks before each slice
        read = self._read(queue, applied.next_offset, limit)
        if read is None:
            return False
        if not read.records and read.next_offset <= applied.next_offset:
            self.next_offset = applied.next_offset
            return False  # nothing is written when there is nothing new
        if applied.begin_offset < 0:
            applied = Applied(read.begin_offset, read.begin_offset, 0, 0)
        elif read.begin_offset > applied.next_offset:
            logger.warning(
                "state records were deleted before they were read: their content is lost"
                " topic=%s queue_offset=%d count=%d",
                self._topic,
                applied.next_offset,
                read.begin_offset - applied.next_offset,
            )
        self.next_offset = applied.next_offset
        records = read_back(read.records)
        taken = len(records)
        try:
            with self._view.transaction():
                if records:
                    taken = self._part.apply(
                        records, begin_offset=applied.begin_offset, limit=limit
                    )
                    last = records[taken - 1]
                    applied = Applied(
                        applied.begin_offset, last.queue_offset + 1, last.store_ms, crc32(last.body)
                    )
                if taken == len(records) and read.next_offset > applied.next_offset:
                    # After the last record there may be offsets without one.
                    applied = Applied(applied.begin_offset, read.next_offset, 0, 0)
                self._view.set_applied(self._topic, applied)
        except BaseException:
            self._part.rolled_back()
            raise
        self._applied = applied
        self.next_offset = applied.next_offset
        return taken < len(records) or read.is_more

    def _check(self, queue: QueueHandle) -> bool:
        """Rebuild the view if it is not of this log; return False while that is not known."""
        applied = self._view.applied(self._topic)
        if applied is not None and applied.next_offset:
            read = self._read(queue, applied.next_offset - 1, 1)
            if read is None:
                return False
            if read.begin_offset < applied.next_offset and not _ends_with(read, applied):
                self._rebuild(f"the log does not have its last record topic={self._topic}")
        self._is_checked = True
        return True

    def _rebuild(self, reason: str) -> None:
        self._view.rebuild(reason)
        self._reads.forget(self._topic)

    def _read(self, queue: QueueHandle, queue_offset: int, count: int) -> LogRead | None:
        """Return the records from ``queue_offset`` on; None while they are not in memory."""
        return self._reads.read(
            self._topic, queue, queue_offset, count_max=count, bytes_max=_BYTES_MAX
        )


def read_back(records: bytes) -> list[ReadBack]:
    """Return the records of a read."""
    brief: list[tuple[Any, ...]] = decode_brief(records, TOPIC_PROPERTY)
    return [
        ReadBack(r[0], None if r[1] is None else r[1].decode(errors="replace"), r[3], r[4], r[6])
        for r in brief
    ]


def _ends_with(read: LogRead, applied: Applied) -> bool:
    """Return whether the last applied record is the one that was read."""
    found = read_back(read.records)
    if not found:
        # An offset without a record is unchanged, unless the log ends before it.
        return not applied.store_ms and read.next_offset >= applied.next_offset
    last = found[0]
    return (last.queue_offset + 1, last.store_ms, crc32(last.body)) == (
        applied.next_offset,
        applied.store_ms,
        applied.crc,
    )
