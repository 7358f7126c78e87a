"""Reading a queue: what an answer does that comes as the queue is given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from motelog.bridge.pull_request import PullResult, PullStatus
from motelog.bridge.push.process_queue import Limits, ProcessQueue
from motelog.bridge.queue_requests import QueueRequests
from motelog.bridge.reader import Reader
from motelog.bridge.selector import SELECT_ALL
from motelog.core.message import MessageQueue

READ_TO, ANSWERED_TO = 32, 64


class Answering:
    """Requests whose pulls are answered by ``results``; ``before`` happens with each answer."""

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
    reader = Reader(
        cast("QueueRequests", cast("Any", requests)),
        hold_s=1,
        version=lambda: 0,
        resolve=cast("Any", None),
        added=lambda reading, count: None,
        ends=lambda reading, exc: False,
    )
    await reader.run(state)
    assert state.offset == READ_TO
