"""The workers that call the user's function with messages.

Owns: which queue is next, how many messages a worker takes at once, calling the function in a task
or a thread, the outcome. Must not touch: requests; what happens to a failed message (``settle``,
bridge.push.consumer).
Invariants: of an orderly queue at most one batch is in work, and nothing after a failed message;
there is no task per message.
Spec: RocketMQ ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, TypeAlias

import trio

from motelog.bridge.errors import raised_at
from motelog.bridge.push.process_queue import Batch, ProcessQueue
from motelog.bridge.push.rates import Rates
from motelog.core.records.decode import StoredMessage

logger = logging.getLogger(__name__)

WORKERS: Final = 20
BATCH_MAX: Final = 32
#: A worker takes more single messages than that if recent ones were fast enough: handing a batch to
#: a thread costs as much as a dozen fast ones.
QUICK_S: Final = 0.002
#: The lowest time per message that is assumed.
EACH_S_MIN: Final = 1e-6
#: After this time the rest of a batch of single messages goes back, for the other workers.
LONG_S: Final = 0.05
#: The time per message is measured over this many. The fastest such part counts: others may have
#: waited for unrelated threads of this process.
PART: Final = 32

# The user's function, for one message or for several of one queue.
HandleOne: TypeAlias = (
    Callable[[StoredMessage], object] | Callable[[StoredMessage], Awaitable[object]]
)
HandleSome: TypeAlias = (
    Callable[[list[StoredMessage]], object] | Callable[[list[StoredMessage]], Awaitable[object]]
)


@dataclass(frozen=True, slots=True)
class Handler:
    """The user's function, and how it is called.

    A plain function runs in a thread, an ``async def`` in the worker's task. ``in_batches`` says
    that it takes a list of messages, which fail together.
    """

    function: Callable[[Any], Any]
    in_batches: bool

    @property
    def is_async(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004  # objects may have one
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)


class Workers:
    """Take batches from queues in turn and handle them; ``count`` workers, each in a ``run``."""

    def __init__(
        self,
        handler: Handler,
        *,
        count: int,
        batch_max: int,
        is_orderly: bool,
        needs_lock: bool,
        rates: Rates,
        settle: Callable[[Batch], Awaitable[None]],
    ) -> None:
        self.is_paused = False
        self._handler = handler
        self._is_async = handler.is_async
        self._count = count
        self._batch_max = batch_max
        self._is_orderly = is_orderly
        self._needs_lock = needs_lock
        self._rates = rates
        self._settle = settle
        self._turn: deque[ProcessQueue] = deque()
        self._parked = trio.lowlevel.ParkingLot()
        self._in_work: dict[trio.CancelScope, Batch] = {}
        self._idle_watch = trio.lowlevel.ParkingLot()
        self._threads = trio.CapacityLimiter(count)
        #: The function's recent time per message.
        self._each_s = QUICK_S

    def offer(self, queue: ProcessQueue) -> None:
        """Let workers handle the queue's messages, if it has any and may be handled now."""
        if not queue.is_in_turn and self._may_take(queue):
            queue.is_in_turn = True
            self._turn.append(queue)
        if self._turn and not self.is_paused:
            self._parked.unpark(count=self._wanted(queue))

    def abandon(self) -> None:
        """Abandon all messages in work; a thread continues, but its result is ignored."""
        for scope, batch in list(self._in_work.items()):
            batch.is_given_up = True
            scope.cancel()

    async def run(self) -> None:
        """Handle messages until cancelled; a message in work is then ended by ``abandon``."""
        with trio.CancelScope() as scope:
            while True:
                batch = self._next()
                if batch is None:
                    await self._parked.park()
                    continue
                scope.shield = True
                self._in_work[scope] = batch
                if self._idle_watch:
                    self._idle_watch.unpark()
                try:
                    await self._handle(batch)
                finally:
                    del self._in_work[scope]
                    scope.shield = False
                self.offer(batch.process_queue)
                if self._turn:
                    # A function that never waits must not stop the readers.
                    await trio.lowlevel.checkpoint()

    async def _handle(self, batch: Batch) -> None:
        """Call the function with a batch, record the time it took, and settle the result."""
        if self._is_async:
            await self._await_handler(batch)
        else:
            await trio.to_thread.run_sync(
                self._call_handler, batch, limiter=self._threads, abandon_on_cancel=True
            )
        took_s = time.monotonic() - batch.begun_at
        each_s = max(min(batch.each_s, took_s / max(batch.done, 1)), EACH_S_MIN)
        self._each_s = (self._each_s + each_s) / 2
        self._rates.consumed(
            batch.process_queue.queue.topic,
            batch.done - len(batch.failed),
            len(batch.failed),
            took_s,
        )
        if not batch.is_given_up:
            await self._settle(batch)

    async def watch(self) -> None:
        """Watch the batches in work, and return the rest of slow ones to other workers.

        This avoids reading a clock for each message. With nothing in work it sleeps.
        """
        while True:
            if not self._in_work:
                await self._idle_watch.park()
            await trio.sleep(LONG_S / 2)
            now = time.monotonic()
            for batch in self._in_work.values():
                if batch.done != batch.seen_done:
                    batch.seen_done = batch.done
                    batch.moved_at = now
                if now - batch.begun_at > LONG_S and not self._is_orderly:
                    batch.is_cut = True

    async def call_once(self, message: StoredMessage) -> None:
        """Call the function with one message outside of any queue; its errors are raised."""
        argument = [message] if self._handler.in_batches else message
        function = self._handler.function
        if self._is_async:
            _check_result(await function(argument))
        else:
            await trio.to_thread.run_sync(
                lambda: _check_result(function(argument)), abandon_on_cancel=True
            )

    def _next(self) -> Batch | None:
        while self._turn and not self.is_paused:
            queue = self._turn.popleft()
            queue.is_in_turn = False
            if not self._may_take(queue):
                continue
            batch = queue.take(self._share(queue))
            if self._may_take(queue):
                queue.is_in_turn = True
                self._turn.append(queue)
            return batch
        return None

    def _may_take(self, queue: ProcessQueue) -> bool:
        if queue.is_dropped or not queue.ready_count:
            return False
        return not self._is_orderly or (
            queue.is_idle
            and queue.suspended_until <= trio.current_time()
            and (not self._needs_lock or queue.is_locked())
        )

    def _wanted(self, queue: ProcessQueue) -> int:
        """Return how many workers can handle a queue's messages."""
        if self._is_orderly:
            return 1
        return max(1, min(self._count, -(-queue.ready_count // self._share(queue))))

    def _share(self, queue: ProcessQueue) -> int:
        """Return how many messages to take; a few slow ones are divided among the workers."""
        if self._handler.in_batches or self._is_orderly:
            return self._batch_max
        part = min(self._batch_max, queue.ready_count // self._count)
        return max(1, part, min(queue.ready_count, int(QUICK_S / self._each_s)))

    async def _await_handler(self, batch: Batch) -> None:
        function = self._handler.function
        if self._handler.in_batches:
            try:
                _check_result(await function(batch.messages))
            except Exception as exc:
                self._refuse_all(batch, exc)
            else:
                batch.done = len(batch.messages)
            return
        for part in self._parts(batch):
            for message in part:
                try:
                    result = await function(message)
                    if result is not None:
                        _check_result(result)
                except Exception as exc:
                    if self._refuse(batch, message, exc):
                        return
                batch.done += 1
                # Not before the first one, so that each batch makes progress.
                if batch.is_cut:
                    return

    def _call_handler(self, batch: Batch) -> None:
        """Do as ``_await_handler``, in a thread."""
        function = self._handler.function
        if self._handler.in_batches:
            try:
                _check_result(function(batch.messages))
            except Exception as exc:
                self._refuse_all(batch, exc)
            else:
                batch.done = len(batch.messages)
            return
        for part in self._parts(batch):
            for message in part:
                try:
                    result = function(message)
                    if result is not None:
                        _check_result(result)
                except Exception as exc:
                    if self._refuse(batch, message, exc):
                        return
                batch.done += 1
                if batch.is_cut:
                    return

    def _parts(self, batch: Batch) -> Iterator[list[StoredMessage]]:
        """Yield the messages in parts until the batch has taken long, and time each part.

        ``watch`` sees slow batches too, but not if an async function never waits.
        """
        begun_at = time.monotonic()
        for begin in range(0, len(batch.messages), PART):
            part = batch.messages[begin : begin + PART]
            yield part
            ended_at = time.monotonic()
            batch.each_s = min(batch.each_s, (ended_at - begun_at) / len(part))
            begun_at = ended_at
            if ended_at - batch.begun_at > LONG_S and not self._is_orderly:
                return

    def _refuse(self, batch: Batch, message: StoredMessage, exc: Exception) -> bool:
        """Record a failed message; return True if later ones must not be handled before it."""
        _log_failure(batch, message, 1, exc)
        batch.failed.append(message)
        return self._is_orderly

    def _refuse_all(self, batch: Batch, exc: Exception) -> None:
        _log_failure(batch, batch.messages[0], len(batch.messages), exc)
        batch.failed = list(batch.messages)
        if not self._is_orderly:
            batch.done = len(batch.messages)


def _check_result(result: object) -> None:
    """TypeError if the result must still be awaited or iterated for the work to be done."""
    is_awaitable = inspect.isawaitable(result)
    if not is_awaitable and not isinstance(result, GeneratorType | AsyncGeneratorType):
        return
    if inspect.iscoroutine(result):
        result.close()  # it is not awaited, and Python would warn of that
    wanted = "an async def function" if is_awaitable else "a function without yield"
    raise TypeError(
        f"the function returned a {type(result).__name__}, which is not run: use {wanted}"
    )


def _log_failure(batch: Batch, message: StoredMessage, count: int, exc: Exception) -> None:
    """Log what the user's function raised, and where, in one line."""
    if batch.is_given_up:
        return  # its messages were settled, and logged, without it
    logger.warning(
        "the function failed for a message, which is delivered again queue=%s offset=%d "
        "messages=%d times=%d message_id=%s error=%r at=%s",
        batch.process_queue.queue,
        message.queue_offset,
        count,
        message.reconsume_times,
        message.message_id,
        exc,
        raised_at(exc),
    )
