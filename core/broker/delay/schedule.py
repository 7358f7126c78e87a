"""Delivers delayed messages: those of a delay level, and those with a due time of their own.

Owns: what is due and in which order, the progress of delivery (delayOffset.json, timerOffset.json),
and keeping waiting messages when the log is cleaned. Must not touch: which message waits (delays),
the order of messages with their own due time (timer_queue), the messages made from waiting records
(waiting_records), files of the store.
Spec: RocketMQ ScheduleMessageService; its delayOffset.json.

    SCHEDULE_TOPIC_XXXX     one queue per level, in the order of due times; one offset for each
    rmq_sys_motelog_timer   one queue per slot of ten minutes: timer_queue

Invariants: a message is appended to its own topic before its progress is noted, and progress is
saved only when that record is on disk. So none is lost, but those delivered since the last save,
one second ago, may be delivered twice. The topic of a record says whether the message waits, never
its properties: those of a delivered message still ask for a delay.
Concurrency: ``_lock`` is held while messages are delivered, and while the log's cleaning saves
messages that wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
import trio

from motelog.core.broker.delay.recalls import Recalls
from motelog.core.broker.delay.timer_queue import OFFSET_MAX, TimerQueue, is_recall
from motelog.core.broker.delay.waiting_records import decode_intact, moved, restored
from motelog.core.errors import (
    RecordTooLargeError,
    StoreError,
    StoreFencedError,
)
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import AppendMessage
from motelog.core.records.layout import UNIT_BYTES
from motelog.core.remoting.fields import Int64
from motelog.core.store.message_store import MessageStore
from motelog.core.store.queues.consume_queue import UNIT
from motelog.core.store.readable import Growth
from motelog.core.threads import run_in_thread
from motelog.core.topic_names import SCHEDULE_TOPIC, TIMER_TOPIC

logger = logging.getLogger(__name__)

BATCH_COUNT: Final = 256
BATCH_BYTES: Final = 1 << 20
# A step of the wall clock is noticed at most this late.
WAIT_S_MAX: Final = 0.5
RETRY_S: Final = 1.0
FAULT_PERIOD_S: Final = 60.0
LAST_SAVE_S_MAX: Final = 10.0
LEVELS_FILE: Final = "delayOffset.json"
TIMER_FILE: Final = "timerOffset.json"
_WAITING: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
_TOPICS: Final = frozenset(topic.encode() for topic in _WAITING)


Content = TypeVar("Content")


class ProgressFile(Protocol):
    """A small file that is replaced as a whole (StateFile)."""

    is_current: bool

    def load(self, take: Callable[[dict[str, Any]], Content]) -> Content | None: ...
    def say_missing(self) -> None: ...
    def save(self, value: Any) -> None: ...


class ScheduleService:
    """One store's waiting messages; ``load`` in a thread, then ``run``."""

    def __init__(
        self,
        store: MessageStore,
        *,
        levels_file: ProgressFile,
        timer_file: ProgressFile,
        save_interval_s: float = 1.0,
        near_max: int = 100_000,
    ) -> None:
        self._store = store
        self._reader = store.reader
        self._levels_file = levels_file
        self._timer_file = timer_file
        self._save_interval_s = save_interval_s
        self._levels: dict[int, int] = {}
        self._timer = TimerQueue(store, TIMER_TOPIC, near_max=near_max)
        self._recalls = Recalls()
        self._saved: tuple[dict[int, int] | None, tuple[int, int] | None] = (None, None)
        self._grown = Flag()
        self._lock = trio.Lock()
        self._faults = LimitedLog(logger, lines_max=1, period_s=FAULT_PERIOD_S)
        self._unsaved = LimitedLog(logger, lines_max=1, period_s=FAULT_PERIOD_S)
        # A full disk refuses every try, for as long as it is full.
        self._late = LimitedLog(logger, lines_max=1, period_s=FAULT_PERIOD_S)
        self.delivered_count = 0
        #: Messages that were due but are not delivered, because their producers recalled them.
        self.recalled_count = 0

    @property
    def near_count(self) -> int:
        """The number of messages with their own due time held in memory."""
        return len(self._timer.near)

    def level_offsets(self) -> dict[int, int]:
        """Return the next queue offset to deliver of each level, as delayOffset.json has them."""
        return _by_level(self._levels)

    def progress(self) -> dict[str, Any]:
        """Return the content of both files as it is now: the log has what was delivered."""
        return _contents(self._levels, self._timer.mark)

    def load(self) -> None:
        """Read the progress of delivery; blocks.

        Without a file everything in the log is delivered, even messages delivered before.
        StoreDamagedError for a damaged file.
        """
        waiting = {topic for topic, queue_id in self._store.queues() if topic in _WAITING}
        levels = self._levels_file.load(_levels)
        if levels is None and SCHEDULE_TOPIC in waiting:
            self._levels_file.say_missing()
        progress = self._timer_file.load(_timer_progress)
        if progress is None and TIMER_TOPIC in waiting:
            self._timer_file.say_missing()
        table = levels or {}
        queue_ids = set(range(len(self._store.due_times.levels_ms)))
        queue_ids |= {
            queue_id for topic, queue_id in self._store.queues() if topic == SCHEDULE_TOPIC
        }
        self._levels = {queue_id: table.get(queue_id + 1, 0) for queue_id in sorted(queue_ids)}
        self._timer.start(None if progress is None else (progress.due_ms, progress.queue_offset))
        self._saved = (
            dict(self._levels) if self._levels_file.is_current else None,
            self._timer.mark if self._timer_file.is_current else None,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver due messages until cancelled, then save; ends early if the store is fenced."""
        growth = self._store.readable.follow(_TOPICS, self._hear)
        self._store.cleaner.before_removal.append(self._keep)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._save_regularly)
                task_status.started()
                await self._deliver(growth)
                nursery.cancel_scope.cancel()
        finally:
            self._store.readable.unfollow(growth)
            self._store.cleaner.before_removal.remove(self._keep)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SAVE_S_MAX):
                await self._save()

    def _hear(self) -> None:
        self._grown.set()

    # -- delivery --------------------------------------------------------------------------

    async def _deliver(self, growth: Growth) -> None:
        while True:
            self._grown.clear()
            growth.take()
            try:
                async with self._lock:
                    next_ms = min(await self._deliver_levels(), await self._deliver_timer())
            except StoreFencedError:
                # The store has logged the reason; only a restart helps.
                return
            except StoreError as exc:
                self._late.warning(
                    "the store takes no messages: delayed ones are late, but none is lost"
                    " reason=%s",
                    exc,
                )
                await trio.sleep(RETRY_S)
                continue
            except Exception:
                # A failure that a message causes must not end a process that serves others.
                self._faults.fault(
                    "delivery of delayed messages failed and is retried, a fault of this broker"
                )
                await trio.sleep(RETRY_S)
                continue
            wait_s = (next_ms - self._store.now_ms()) / 1000
            with trio.move_on_after(min(max(wait_s, 0.0), WAIT_S_MAX)):
                await self._grown.wait()

    async def _deliver_levels(self) -> int:
        """Deliver the due messages of each level; return when the next message is due."""
        return min([await self._deliver_level(queue_id) for queue_id in self._levels])

    async def _deliver_level(self, queue_id: int) -> int:
        while True:
            offset = self._level_offset(queue_id)
            units = await self._units(SCHEDULE_TOPIC, queue_id, offset)
            if not units:
                return OFFSET_MAX
            count, next_ms = self._count_due(queue_id, units)
            if not count:
                return next_ms
            read = partial(self._reader.read, SCHEDULE_TOPIC, queue_id, offset)
            result = await self._reader.when_in_memory(
                partial(read, count_max=count, bytes_max=BATCH_BYTES)
            )
            self._append(result.records)
            self._levels[queue_id] = max(result.next_offset, offset + 1)
            await trio.lowlevel.checkpoint()

    def _level_offset(self, queue_id: int) -> int:
        """Return the next queue offset of a level; it skips messages that cleaning removed."""
        low = self._reader.min_offset(SCHEDULE_TOPIC, queue_id)
        high = self._reader.max_offset(SCHEDULE_TOPIC, queue_id)
        offset = min(max(self._levels[queue_id], low), high)
        self._levels[queue_id] = offset
        return offset

    def _count_due(self, queue_id: int, units: bytes) -> tuple[int, int]:
        """Return how many units are due, and when the first of the others will be."""
        now_ms = self._store.now_ms()
        for index, (_, _, code) in enumerate(UNIT.iter_unpack(units)):
            due_ms = self._level_due_ms(queue_id, code, now_ms)
            if due_ms > now_ms:
                return index, due_ms
        return len(units) // UNIT_BYTES, 0

    def _level_due_ms(self, queue_id: int, due_ms: int, now_ms: int) -> int:
        """Return when a message of a level is really due; its unit says ``due_ms``."""
        levels_ms = self._store.due_times.levels_ms
        level_ms = levels_ms[queue_id] if queue_id < len(levels_ms) else 0
        # No message waits longer than its level, even if the clock was ahead when it was stored.
        latest_ms = now_ms + level_ms if level_ms else OFFSET_MAX
        # Nor does it wait for less time if the clock was set forward since.
        return min(due_ms + self._store.jumped_ms(due_ms - level_ms), latest_ms)

    async def _deliver_timer(self) -> int:
        """Deliver the messages that are due by their own time; return when to check again."""
        timer = self._timer
        while True:
            await timer.fill()
            due = timer.due(self._store.now_ms())
            if due:
                for at in range(0, len(due), BATCH_COUNT):
                    batch = due[at : at + BATCH_COUNT]
                    records = await timer.records(batch)
                    left = self._recalls.left(batch, records)
                    self._append(b"".join(left))
                    waited_count = sum(not is_recall(unit) for unit in batch)
                    self.recalled_count += waited_count - len(left)
                    timer.pass_over(batch)
                    await trio.lowlevel.checkpoint()
            elif not timer.go_on(self._store.now_ms()):
                return timer.next_ms
            await trio.lowlevel.checkpoint()

    def _append(self, records: bytes) -> None:
        """Append waiting records to the queues of their own topics."""
        messages = [
            message
            for fields in decode_intact(records)
            for message in restored(self._store, fields)
        ]
        self.delivered_count += self._append_all(messages)

    def _append_all(self, messages: list[AppendMessage], *, even_if_full: bool = False) -> int:
        """Append; a message that the store can never accept does not stop the others."""
        if not messages:
            return 0
        try:
            self._store.append(messages, even_if_full=even_if_full, may_wait=False)
        except (RecordTooLargeError, ValueError) as exc:
            if len(messages) == 1:
                topic = messages[0][0].topic.decode()
                logger.error(
                    "the store can never take this delayed message: it is not delivered"
                    " topic=%s reason=%s",
                    topic,
                    exc,
                )
                return 0
            return sum(self._append_all([one], even_if_full=even_if_full) for one in messages)
        return len(messages)

    # -- cleaning of the log ---------------------------------------------------------------

    async def _keep(self, _begin: int, end: int) -> None:
        """Append waiting messages below ``end`` again: their file is about to be removed."""
        async with self._lock:
            for queue_id in self._levels:
                await self._keep_level(queue_id, end)
            await self._timer.move(end, self._keep_timers)

    async def _keep_level(self, queue_id: int, end: int) -> None:
        while True:
            offset = self._level_offset(queue_id)
            units = await self._units(SCHEDULE_TOPIC, queue_id, offset)
            found = [unit for unit in UNIT.iter_unpack(units) if unit[0] < end]
            if not found:
                return
            read = partial(self._reader.read, SCHEDULE_TOPIC, queue_id, offset)
            result = await self._reader.when_in_memory(partial(read, count_max=len(found)))
            now_ms = self._store.now_ms()
            # Before the timer's mark it would never be delivered.
            due_of = {
                physical: max(self._level_due_ms(queue_id, due_ms, now_ms), now_ms)
                for physical, _, due_ms in found
            }
            again = [
                message
                for fields in decode_intact(result.records)
                for message in moved(self._store, fields, due_of[fields[3]])
            ]
            self._append_all(again, even_if_full=True)
            self._levels[queue_id] = max(result.next_offset, offset + 1)
            await trio.lowlevel.checkpoint()

    def _keep_timers(self, found: list[tuple[int, bytes]]) -> None:
        again = [
            message
            for due_ms, record in found
            for fields in decode_intact(record)
            for message in moved(self._store, fields, due_ms)
        ]
        self._append_all(again, even_if_full=True)

    async def _units(self, topic: str, queue_id: int, queue_offset: int) -> bytes:
        """Return the next units of a queue of waiting messages."""
        units = partial(self._reader.units, topic, queue_id, queue_offset, BATCH_COUNT)
        return await self._reader.when_in_memory(units)

    # -- progress --------------------------------------------------------------------------

    async def _save_regularly(self) -> None:
        while True:
            await trio.sleep(self._save_interval_s)
            await self._save()

    async def _save(self) -> None:
        """Save the progress of delivery, once the delivered records are on disk."""
        progress = (dict(self._levels), self._timer.mark)
        if progress == self._saved:
            return
        try:
            await self._store.wait_durable(self._store.end_offset)
            await run_in_thread(self._write, *progress)
        except StoreFencedError:
            return
        except OSError as exc:
            self._unsaved.warning(
                "the progress of delayed messages is not saved: after a kill, those delivered since"
                " then are delivered again; it is retried each %g s error=%s",
                self._save_interval_s,
                exc,
            )
            return
        self._saved = progress

    def _write(self, levels: dict[int, int], mark: tuple[int, int]) -> None:
        contents = _contents(levels, mark)
        if levels != self._saved[0]:
            self._levels_file.save(contents[LEVELS_FILE])
        if mark != self._saved[1]:
            self._timer_file.save(contents[TIMER_FILE])


class _TimerProgress(msgspec.Struct, frozen=True, rename="camel"):
    """timerOffset.json: everything up to (due time, queue offset) has been delivered."""

    due_ms: Int64
    queue_offset: Int64


def _by_level(levels: Mapping[int, int]) -> dict[int, int]:
    """Return queue offsets by level from those by queue id."""
    return {queue_id + 1: offset for queue_id, offset in levels.items()}


def _contents(levels: Mapping[int, int], mark: tuple[int, int]) -> dict[str, Any]:
    """Return the content of delayOffset.json and of timerOffset.json."""
    return {
        LEVELS_FILE: {"offsetTable": _by_level(levels)},
        TIMER_FILE: _TimerProgress(due_ms=mark[0], queue_offset=mark[1]),
    }


def _levels(content: dict[str, Any]) -> dict[int, int]:
    """Return delayOffset.json: the next queue offset by level."""
    return msgspec.convert(content.get("offsetTable", {}), dict[int, Int64], strict=False)


def _timer_progress(content: dict[str, Any]) -> _TimerProgress:
    return msgspec.convert(content, _TimerProgress)
