"""Locks of queues: who is asked for them, and when again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import trio
import trio.testing

from motelog.bridge.client import Client
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.push.process_queue import LOCK_EXPIRES_S, Limits, ProcessQueue
from motelog.bridge.push.queue_locks import RENEW_S, QueueLocks
from motelog.bridge.queue_requests import QueueRequests
from motelog.bridge.routes import TopicRoute
from motelog.bridge.selector import SELECT_ALL
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import RemotingCommand, RequestCode, dumps, loads

QUEUE = MessageQueue("T", "b", 0)


class FakeClient:
    """Knows a broker's group by ``members``, each of which grants every lock."""

    client_id = "c1"

    def __init__(self, members: dict[int, str]) -> None:
        self.members = members
        self.asked: list[tuple[str, int]] = []

    async def route(self, topic: str, *, newer_than: float | None = None) -> TopicRoute:
        return TopicRoute(topic, (QUEUE,), (QUEUE,), {"b": self.members})

    async def request(
        self, address: str, request: RemotingCommand, *, timeout_s: float
    ) -> RemotingCommand:
        self.asked.append((address, request.code))
        wanted = loads(request.body)["mqSet"]
        return request.answer(body=dumps({"lockOKMQSet": wanted}))


class AwayLocks:
    """A broker that is away until ``back_at``, and then grants every lock."""

    def __init__(self, back_at: float) -> None:
        self._back_at = back_at

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        is_away = trio.current_time() < self._back_at
        return {} if is_away else dict.fromkeys(queues, True)


async def test_a_broker_that_is_away_for_a_moment_takes_no_lock_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    consumer = PushConsumer(group="G", is_orderly=True)
    state = ProcessQueue(QUEUE, 0, SELECT_ALL, Limits())
    state.locked_at = trio.current_time()
    consumer._queues[QUEUE] = state
    consumer._locks = cast("QueueLocks", AwayLocks(trio.current_time() + RENEW_S + 5))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer._renew_locks)
        await trio.sleep(LOCK_EXPIRES_S + 1)
        assert state.is_locked()
        await trio.sleep(10 * RENEW_S)
        assert state.is_locked()
        nursery.cancel_scope.cancel()
    assert not state.is_dropped


async def test_a_lock_is_the_masters_alone() -> None:
    client = FakeClient({1: "slave:1"})
    requests = QueueRequests(cast("Client", client), group="G", timeout_s=1)
    locks = QueueLocks(cast("Client", client), requests, group="G")
    # Another member may hold it at the master, which the name servers have lost for a moment.
    assert await locks.lock([QUEUE]) == {}
    await locks.unlock([QUEUE])
    assert client.asked == []
    client.members[0] = "master:1"
    assert await locks.lock([QUEUE]) == {QUEUE: True}
    await locks.unlock([QUEUE])
    codes = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
    assert client.asked == [("master:1", code) for code in codes]
