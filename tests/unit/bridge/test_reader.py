"""Reading a queue: which broker is asked next and when; what late answers do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
import trio.testing

from motelog.bridge.pull_request import PullResult, PullStatus
from motelog.bridge.push.process_queue import Limits, ProcessQueue
from motelog.bridge.queue_requests import QueueRequests
from motelog.bridge.reader import RETRY_S, SLAVE_AVOIDED_S, Reader
from motelog.bridge.selector import SELECT_ALL
from motelog.core.errors import BrokerError
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import ResponseCode
from motelog.core.spare_memory import NO_MEMORY

READ_TO, ANSWERED_TO = 32, 64


class Answering:
    """Requests whose pulls are answered by ``results``; ``before`` happens with each answer."""

    def distrust(self, topic: str) -> None:
        pass

    def __init__(self, results: list[PullResult], before: list[Callable[[], None]]) -> None:
        self._results = iter(results)
        self._before = iter(before)

    async def pull(self, *_: object, **__: object) -> PullResult:
        await trio.lowlevel.checkpoint()
        result = next(self._results)
        next(self._before)()
        return result


def answered(status: PullStatus, next_offset: int) -> PullResult:
    return PullResult(status, next_offset, 0, next_offset, b"")


@pytest.mark.parametrize(
    "last",
    [
        answered(PullStatus.NO_MATCHED_MESSAGE, ANSWERED_TO),
        answered(PullStatus.OFFSET_ILLEGAL, ANSWERED_TO),
    ],
    ids=["answered", "moved"],
)
async def test_an_answer_to_a_queue_that_is_given_up_moves_no_offset(
    last: PullResult, autojump_clock: trio.testing.MockClock
) -> None:
    state = ProcessQueue(MessageQueue("T", "b", 0), 0, SELECT_ALL, Limits())
    first = answered(PullStatus.NO_MATCHED_MESSAGE, READ_TO)
    requests = Answering([first, last], [lambda: None, state.drop])
    await reader_of(requests).run(state)
    assert state.offset == READ_TO


@pytest.mark.parametrize("error", NO_MEMORY)
async def test_a_pull_that_lacks_memory_is_made_again(
    autojump_clock: trio.testing.MockClock, error: type[Exception]
) -> None:
    def fail() -> None:
        raise error

    state = ProcessQueue(MessageQueue("T", "b", 0), 0, SELECT_ALL, Limits())
    found = answered(PullStatus.NO_MATCHED_MESSAGE, READ_TO)
    requests = Answering([found, found, found], [fail, lambda: None, state.drop])
    await reader_of(requests).run(state)
    assert state.offset == READ_TO


@pytest.mark.parametrize(
    ("next_offset", "log", "told"),
    [
        (5, (0, 40), "INFO.*the group's offset was reset; .* offset=32 next=5"),
        (36, (0, 40), "INFO.*the group's offset was reset; .* offset=32 next=36"),
        (
            20,
            (0, 20),
            "WARNING.*messages between the two are read again .* offset=32 .* max=20 next=20",
        ),
        (
            50,
            (50, 60),
            "WARNING.*messages between the two are skipped .* offset=32 min=50 .* next=50",
        ),
    ],
)
async def test_why_reading_goes_on_elsewhere_is_told(
    next_offset: int,
    log: tuple[int, int],
    told: str,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    caplog.set_level(logging.INFO)
    state = ProcessQueue(MessageQueue("T", "b", 0), READ_TO, SELECT_ALL, Limits())
    moved = PullResult(PullStatus.OFFSET_ILLEGAL, next_offset, *log, b"")
    last = answered(PullStatus.NO_MATCHED_MESSAGE, next_offset)
    await reader_of(Answering([moved, last], [lambda: None, state.drop])).run(state)
    assert re.search(told, caplog.text)


def reader_of(requests: object) -> Reader:
    return Reader(
        cast("QueueRequests", requests),
        hold_s=1,
        version=lambda: 0,
        resolve=cast("Any", None),
        added=lambda reading, count: None,
        ends=lambda reading, exc: False,
    )


class Group:
    """A master, which sends each of its readers to slave 1, and that one; notes who is asked when.

    Each message is an answer of its own.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []
        self.is_slave_failing = False
        self.is_empty = False
        self._state = ProcessQueue(MessageQueue("T", "b", 0), 0, SELECT_ALL, Limits())

    async def read(self, count: int) -> list[tuple[int, float]]:
        """Have a reader ask so many times."""
        self.asked.clear()
        self._count = count
        self._state.scope = trio.CancelScope()
        await reader_of(self).run(self._state)
        return self.asked

    async def pull(
        self, queue: MessageQueue, queue_offset: int, *, broker_id: int, **_: object
    ) -> PullResult:
        await trio.lowlevel.checkpoint()
        self.asked.append((broker_id, trio.current_time()))
        if len(self.asked) == self._count:
            self._state.scope.cancel()
        if broker_id == 1 and self.is_slave_failing:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "not there yet")
        next_offset = queue_offset + (not self.is_empty)
        status = PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, next_offset, 0, next_offset, b"", suggested_broker_id=1)

    def distrust(self, topic: str) -> None:
        pass


async def test_reads_go_where_the_last_answer_says(autojump_clock: trio.testing.MockClock) -> None:
    asked = await Group().read(3)
    assert [broker_id for broker_id, _ in asked] == [0, 1, 1]


async def test_a_slave_that_fails_is_left_alone_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    group = Group()
    group.is_slave_failing = True
    asked = await group.read(4)
    assert [broker_id for broker_id, _ in asked] == [0, 1, 0, 0]
    (_, failed_at), (_, again_at), _ = asked[1:]
    assert again_at - failed_at == pytest.approx(RETRY_S)
    await trio.sleep(SLAVE_AVOIDED_S)
    assert [broker_id for broker_id, _ in await group.read(2)] == [0, 1]


async def test_a_member_that_gives_nothing_is_not_asked_in_a_tight_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    group = Group()
    group.is_empty = True
    times = [at for _, at in await group.read(5)]
    waits = [later - earlier for earlier, later in pairwise(times)]
    # Once more at once: the answer may have named the member that has it.
    assert waits == pytest.approx([0, RETRY_S, RETRY_S, RETRY_S])
    group.is_empty = False
    times = [at for _, at in await group.read(3)]
    assert times[-1] - times[0] == pytest.approx(0)
