"""Messages of a topic in the order of their due times: the next ones in memory, others in the log.

Owns: TimerQueue: which messages are due and in which order, the progress of delivery, which
messages have been appended again elsewhere. Must not touch: the delivery of due messages, where the
mark is kept.

    one queue per slot of ten minutes (due_time.timer_queue), in the order of arrival

               slot before            slot of now                    slots to come
          ------ all over -------|--- mark ---> near ... horizon ---|--- only in the log ---

``near`` holds, sorted, the units of the current slot that are above the mark. If there are more
than ``near_max``, it holds the earliest; the units beyond the horizon are read again when near is
empty. All units up to the mark, (due time, queue offset), are over.
A unit with a negative due time recalls a message of that time. In ``near`` the recalls of a time
come before its messages, in any order of arrival; after a restart those of the mark's time are read
again, because messages of that time may not be delivered yet.
Concurrency: one task at a time calls the methods that wait (``fill``, ``records``, ``move``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio
from sortedcontainers import SortedList

from motelog.core.records.layout import UNIT_BYTES
from motelog.core.store.disk.page_cache import read_all
from motelog.core.store.due_time import TIMER_SLOT_MS, timer_queue
from motelog.core.store.message_store import MessageStore
from motelog.core.store.queues.consume_queue import UNIT

SCAN_UNITS: Final = 4096
MOVED_UNITS: Final = 256
OFFSET_MAX: Final = (1 << 63) - 1

# The queue offset of a recall is counted from here up.
_RECALLS: Final = -(1 << 62)

Unit = tuple[int, int]  # due time, queue offset


def is_recall(unit: Unit) -> bool:
    return unit[1] < 0


class TimerQueue:
    """A topic as a sequence of slots; the current slot is the first that is not over."""

    def __init__(self, store: MessageStore, topic: str, *, near_max: int) -> None:
        self._store = store
        self._topic = topic
        self._reader = store.reader
        self._near_max = near_max
        self.near: SortedList[Unit] = SortedList()
        # Units of the slot above it are not in near; None if near has all of them.
        self._horizon: Unit | None = None
        # The queue offset up to which the slot's queue has been read; -1 before the first read.
        self._seen_end = -1
        self._slot = 0
        self.mark = (0, OFFSET_MAX)
        # Recalls up to this unit have been taken.
        self._recalls_mark = (0, OFFSET_MAX)
        # Per queue: units below this have been appended again, and are not delivered from here.
        self._void: dict[int, int] = {}

    def start(self, mark: tuple[int, int] | None) -> None:
        """Begin after ``mark``; without a mark, at the earliest existing message."""
        self.mark = mark or (self._earliest_ms() - 1, OFFSET_MAX)
        self._recalls_mark = (self.mark[0], _RECALLS - 1)
        self._slot = self.mark[0] // TIMER_SLOT_MS
        # A due time is later than the time of its message: no new message may be below the mark.
        self._store.not_before(self.mark[0])

    def _earliest_ms(self) -> int:
        earliest_ms = self._store.now_ms()
        for topic, queue_id in self._store.queues():
            if topic == self._topic:
                for begin in range(
                    self._reader.min_offset(topic, queue_id),
                    self._reader.max_offset(topic, queue_id),
                    SCAN_UNITS,
                ):
                    units = self._reader.units(topic, queue_id, begin, SCAN_UNITS)
                    dues = [due_ms for _, _, due_ms in UNIT.iter_unpack(units) if due_ms > 0]
                    earliest_ms = min(earliest_ms, *dues) if dues else earliest_ms
        return earliest_ms

    @property
    def _queue_id(self) -> int:
        return timer_queue(self._slot * TIMER_SLOT_MS)

    async def fill(self) -> None:
        """Read the units of the slot that have not been read yet."""
        queue_id = self._queue_id
        offset = self._seen_end
        if offset < 0:
            offset = max(self._reader.min_offset(self._topic, queue_id), self._void_of(queue_id))
        while units := await self._units(queue_id, offset, SCAN_UNITS):
            self._take(units, offset)
            offset += len(units) // UNIT_BYTES
            await trio.lowlevel.checkpoint()
        self._seen_end = offset

    def _take(self, units: bytes, offset: int) -> None:
        begin_ms = self._slot * TIMER_SLOT_MS
        end_ms = begin_ms + TIMER_SLOT_MS
        near, horizon = self.near, self._horizon
        for queue_offset, (_, _, code) in enumerate(UNIT.iter_unpack(units), offset):
            due_ms = abs(code)
            # Units of an earlier round of the ring are here too.
            if begin_ms <= due_ms < end_ms:
                if code < 0:
                    unit, mark = (due_ms, _RECALLS + queue_offset), self._recalls_mark
                else:
                    unit, mark = (due_ms, queue_offset), self.mark
                if unit > mark and (horizon is None or unit < horizon):
                    near.add(unit)
                if len(near) > self._near_max:
                    horizon = near.pop()
        self._horizon = horizon

    def due(self, now_ms: int) -> list[Unit]:
        """Return the units that are due, in the order of their times."""
        return list(self.near.irange(maximum=(now_ms, OFFSET_MAX)))

    def pass_over(self, units: list[Unit]) -> None:
        """Note that ``units`` have been delivered; they are the first of those that were due."""
        self._recalls_mark = units[-1]
        self.mark = max(self.mark, units[-1])
        del self.near[: len(units)]

    def go_on(self, now_ms: int) -> bool:
        """Move to where the next messages may be; False if nothing is due before next_ms."""
        if self.near:
            return False
        if self._horizon is not None:
            self._rescan()
            return True
        end_ms = (self._slot + 1) * TIMER_SLOT_MS
        if now_ms < end_ms:
            return False
        self.mark = (end_ms - 1, OFFSET_MAX)
        self._void.pop(self._queue_id, None)
        self._slot += 1
        self._rescan()
        return True

    @property
    def next_ms(self) -> int:
        """When the next known message is due, or else when the slot ends."""
        return self.near[0][0] if self.near else (self._slot + 1) * TIMER_SLOT_MS

    def _rescan(self) -> None:
        """Begin again at the start of the slot."""
        self.near.clear()
        self._horizon = None
        self._seen_end = -1

    async def move(self, end: int, append: Callable[[list[tuple[int, bytes]]], None]) -> None:
        """Call ``append`` with waiting messages below the physical offset ``end``, to append again.

        It gets (due time, record) of some messages at a time; for recalls the time is negative. The
        new records then replace the old ones.
        """
        queue_ids = sorted(
            queue_id for topic, queue_id in self._store.queues() if topic == self._topic
        )
        for queue_id in queue_ids:
            offset = max(self._void_of(queue_id), self._reader.min_offset(self._topic, queue_id))
            # The records appended below come after this offset.
            last = self._reader.max_offset(self._topic, queue_id)
            while offset < last:
                units = await self._units(queue_id, offset, MOVED_UNITS)
                found = [unit for unit in UNIT.iter_unpack(units) if unit[0] < end]
                if not found:
                    break
                waiting = [
                    (code, at)
                    for at, (_, _, code) in enumerate(found, offset)
                    if self._waits(code, at)
                ]
                records = await self._reader.when_in_memory(
                    partial(self._records, waiting, queue_id)
                )
                codes = [code for code, _ in waiting]
                append(list(zip(codes, records, strict=True)))
                offset += len(found)
                self._void[queue_id] = offset
                await trio.lowlevel.checkpoint()
        self._rescan()

    def _waits(self, code: int, queue_offset: int) -> bool:
        """Return whether a unit is above the mark; a recall is valid as long as its time is."""
        return -code >= self.mark[0] if code < 0 else (code, queue_offset) > self.mark

    async def _units(self, queue_id: int, queue_offset: int, count: int) -> bytes:
        units = partial(self._reader.units, self._topic, queue_id, queue_offset, count)
        return await self._reader.when_in_memory(units)

    async def records(self, units: list[Unit]) -> list[bytes]:
        """Return the records of units of the slot; b"" for a lost one."""
        return await self._reader.when_in_memory(partial(self._records, units, self._queue_id))

    def _records(self, units: list[Unit], queue_id: int, *, may_wait: bool) -> list[bytes]:
        def record(unit: Unit) -> bytes:
            queue_offset = unit[1] - _RECALLS if is_recall(unit) else unit[1]
            return self._reader.read(
                self._topic, queue_id, queue_offset, count_max=1, may_wait=may_wait
            ).records

        return read_all(record, units)

    def _void_of(self, queue_id: int) -> int:
        return self._void.get(queue_id, 0)
