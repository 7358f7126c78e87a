"""When and from what a member finds its queues, against a client that answers as told."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from motelog.bridge.client import Client
from motelog.bridge.errors import RouteError
from motelog.bridge.groups.allocation import Allocate, average
from motelog.bridge.groups.rebalance import Rebalance
from motelog.bridge.routes import TopicRoute
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import RemotingCommand, ResponseCode, dumps

QUEUES = tuple(MessageQueue("T", "b", queue_id) for queue_id in range(4))


class FakeClient:
    """Knows topic T on one broker, which knows ``members``."""

    client_id = "c1"

    def __init__(self, *members: str) -> None:
        self.members = list(members)
        self.heartbeats = 0
        self.is_failing = False

    async def route(self, topic: str) -> TopicRoute:
        if topic != "T":
            raise RouteError("none", topic=topic)
        return TopicRoute("T", QUEUES, QUEUES, {"b": {0: "broker:1"}})

    async def request(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if self.is_failing or not self.members:
            return request.answer(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return request.answer(body=dumps({"consumerIdList": self.members}))

    async def send_heartbeat(self, address: str) -> None:
        self.heartbeats += 1
        if not self.is_failing:
            self.members.append(self.client_id)


class Applied:
    def __init__(self) -> None:
        self.queues: list[tuple[float, list[int]]] = []
        self.answer = True

    async def __call__(self, topic: str, queues: list[MessageQueue]) -> bool:
        self.queues.append((trio.current_time(), [queue.queue_id for queue in queues]))
        return self.answer


def rebalance(client: FakeClient, applied: Applied, **options: Any) -> Rebalance:
    options = {"topics": lambda: ["T"], "allocate": average, **options}
    return Rebalance(cast("Client", client), group="G", apply=applied, **options)


async def test_every_twenty_seconds_and_on_notice(autojump_clock: trio.testing.MockClock) -> None:
    client, applied = FakeClient("c2", "c1"), Applied()
    async with trio.open_nursery() as nursery:
        shared = rebalance(client, applied)
        nursery.start_soon(shared.run)
        await trio.sleep(41)
        assert [at - applied.queues[0][0] for at, _ in applied.queues] == [0, 20, 40]
        assert applied.queues[0][1] == [0, 1]
        assert shared.has_others
        client.members.append("c0")
        shared.wake()
        await trio.sleep(1)
        assert applied.queues[-1][1] == [2]
        nursery.cancel_scope.cancel()


async def test_sooner_while_not_all_queues_could_be_taken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client, applied = FakeClient("c1"), Applied()
    applied.answer = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rebalance(client, applied).run)
        await trio.sleep(60)
        begin = applied.queues[0][0]
        assert [at - begin for at, _ in applied.queues] == [0, 1, 3, 7, 15, 31, 51]
        nursery.cancel_scope.cancel()


async def test_broker_that_does_not_know_this_member_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for members in ((), ("c0",)):
        client, applied = FakeClient(*members), Applied()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rebalance(client, applied).run)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert client.heartbeats == 1
        assert applied.queues[0][1] == ([2, 3] if members else [0, 1, 2, 3])


async def test_nothing_changes_without_members_or_route_or_with_a_broken_rule(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> list[MessageQueue]:
        raise ZeroDivisionError

    client, applied = FakeClient("c1"), Applied()
    client.is_failing = True
    cases: list[dict[str, Any]] = [
        {},
        {"topics": lambda: ["Nowhere"]},
        {"allocate": cast("Allocate", broken)},
    ]
    for options in cases:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rebalance(client, applied, **options).run)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        client.is_failing = False
    assert applied.queues == []
    assert caplog.text.count("does not exist") == 1
    assert "a group's allocation rule failed" in caplog.text


async def test_without_a_rule_each_member_gets_all(autojump_clock: trio.testing.MockClock) -> None:
    client, applied = FakeClient("c0", "c1"), Applied()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rebalance(client, applied, allocate=None).run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert applied.queues[0][1] == [0, 1, 2, 3]
