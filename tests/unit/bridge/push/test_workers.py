"""How many messages a worker takes at once, and what it leaves to the others."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from motelog.bridge.push.process_queue import Batch, Limits, ProcessQueue
from motelog.bridge.push.rates import Rates
from motelog.bridge.push.workers import BATCH_MAX, LONG_S, PART, Handler, Workers
from motelog.bridge.selector import SELECT_ALL
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage
from tests.unit.bridge.push.test_process_queue import messages

COUNT = 4


class Stage:
    """Workers with one queue; ``batches`` are those that have ended."""

    def __init__(
        self, function: Callable[[Any], object], *, is_orderly: bool, in_batches: bool
    ) -> None:
        self.queue = ProcessQueue(MessageQueue("T", "b", 0), 0, SELECT_ALL, Limits())
        self.batches: list[Batch] = []
        self._all_handled = trio.Event()
        self.workers = Workers(
            Handler(function, in_batches=in_batches),
            count=COUNT,
            batch_max=BATCH_MAX,
            is_orderly=is_orderly,
            needs_lock=False,
            rates=Rates(),
            settle=self._settle,
        )

    async def _settle(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.queue.put_back(batch)
        if not self.queue.count:
            self._all_handled.set()

    async def handle(self, begin: int, end: int) -> list[Batch]:
        """Have messages handled; return the batches in which they were."""
        self.batches.clear()
        self._all_handled = trio.Event()
        self.queue.add(messages(begin, end), end)
        self.workers.offer(self.queue)
        await self._all_handled.wait()
        assert sum(batch.done for batch in self.batches) == end - begin
        return self.batches


@asynccontextmanager
async def stage(
    function: Callable[[Any], object], *, is_orderly: bool = False, in_batches: bool = False
) -> AsyncIterator[Stage]:
    made = Stage(function, is_orderly=is_orderly, in_batches=in_batches)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.workers.watch)
        for _ in range(COUNT):
            nursery.start_soon(made.workers.run)
        yield made
        nursery.cancel_scope.cancel()


async def quick(message: StoredMessage) -> None:
    """Handle a message in an instant."""


async def test_of_messages_that_are_handled_quickly_one_worker_takes_many() -> None:
    async with stage(quick) as made:
        taken = 0
        for begin in range(0, 6_400, 640):
            batches = await made.handle(begin, begin + 640)
            taken = max(taken, *(batch.done for batch in batches), 0)
        assert taken > BATCH_MAX


async def test_what_is_left_when_the_function_becomes_slow_goes_to_others() -> None:
    slow_from = 6_400

    def handle(message: StoredMessage) -> None:
        while message.queue_offset >= slow_from and not is_cut(message):
            time.sleep(0.001)

    def is_cut(message: StoredMessage) -> bool:
        return any(
            batch.is_cut and batch.offset == message.queue_offset for batch in made.queue.in_work
        )

    async with stage(handle) as made:
        for begin in range(0, slow_from, 640):
            await made.handle(begin, begin + 640)
        with trio.fail_after(30):
            batches = await made.handle(slow_from, slow_from + 12)
        assert [batch.done for batch in batches] == [1] * 12


async def test_an_async_function_that_never_waits_is_cut_after_a_part() -> None:
    async def handle(message: StoredMessage) -> None:
        if message.queue_offset == 6_400:
            time.sleep(LONG_S * 1.1)  # noqa: ASYNC251  # it keeps everybody waiting

    async with stage(handle) as made:
        for begin in range(0, 6_400, 640):
            await made.handle(begin, begin + 640)
        batches = await made.handle(6_400, 7_040)
        assert batches[0].done == PART
        assert len(batches) > 1


async def test_in_order_nothing_is_left_to_others() -> None:
    def handle(message: StoredMessage) -> None:
        time.sleep(LONG_S * 1.1)

    async with stage(handle, is_orderly=True) as made:
        (batch,) = await made.handle(0, 4)
        assert not batch.is_cut


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_a_dropped_queue_is_left_when_the_message_in_work_has_ended(
    is_orderly: bool,
) -> None:
    handled = []

    async def handle(message: StoredMessage) -> None:
        handled.append(message.queue_offset)
        if message.queue_offset == 6_402:
            made.queue.drop()

    async with stage(handle, is_orderly=is_orderly) as made:
        for begin in range(0, 6_400, 640):
            await made.handle(begin, begin + 640)
        made.queue.add(messages(6_400, 6_420), 6_420)
        made.workers.offer(made.queue)
        await trio.testing.wait_all_tasks_blocked()
        assert handled[-1] == 6_402
        assert made.queue.offset == 6_403


async def coroutine(message: StoredMessage) -> None:
    """Work that is not done until somebody awaits it."""


def generator(message: StoredMessage) -> Iterator[StoredMessage]:
    yield message


async def async_generator(message: StoredMessage) -> AsyncIterator[StoredMessage]:
    yield message


class Awaitable:
    """What frameworks return for work that has begun elsewhere."""

    def __await__(self) -> Generator[None]:
        yield


async def forgets_to_await(message: StoredMessage) -> object:
    return coroutine(message)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda message: coroutine(message), "a coroutine, .*: use an async def function"),
        (forgets_to_await, "a coroutine, .*: use an async def function"),
        (lambda message: Awaitable(), "a Awaitable, .*: use an async def function"),
        (generator, "a generator, .*: use a function without yield"),
        (async_generator, "a async_generator, .*: use a function without yield"),
    ],
)
@pytest.mark.parametrize("in_batches", [False, True])
async def test_a_result_that_is_work_still_to_be_done_refuses_the_message(
    function: Callable[[object], object],
    told: str,
    in_batches: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stage(function, in_batches=in_batches) as made:
        (batch,) = await made.handle(0, 1)
        assert [message.queue_offset for message in batch.failed] == [0]
        assert re.search(told, caplog.text)
        with pytest.raises(TypeError, match=told):
            await made.workers.call_once(batch.messages[0])


async def test_the_place_of_an_error_in_a_nursery_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def handle(message: StoredMessage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    line = fail.__code__.co_firstlineno + 1
    async with stage(handle) as made:
        await made.handle(0, 1)
    assert re.search(rf"error=ExceptionGroup.* at=.*/test_workers\.py:{line}$", caplog.text)


@pytest.mark.parametrize("result", [None, False, "text", [1]])
async def test_any_other_result_is_of_no_interest(result: object) -> None:
    async with stage(lambda message: result) as made:
        (batch,) = await made.handle(0, 1)
        assert batch.failed == []
