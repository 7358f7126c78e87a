"""Locks of queues: who is asked for them."""

from __future__ import annotations

from typing import cast

from motelog.bridge.client import Client
from motelog.bridge.push.queue_locks import QueueLocks
from motelog.bridge.queue_requests import QueueRequests
from motelog.bridge.routes import TopicRoute
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
