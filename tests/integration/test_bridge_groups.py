"""Pull consumers that share the queues of their group, against our name server and broker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from motelog.bridge.errors import ClientError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.core.message import Message, MessageQueue, string_hash
from motelog.core.remoting.frames import RequestCode, loads
from tests.support.broker_stack import Stack, connected, routed, started_stack

TIMEOUT_S = 20


async def send(stack: Stack, bodies: Iterable[bytes], topic: str = "T") -> None:
    async with Producer(namesrv=stack.namesrv_address) as producer:
        for number, body in enumerate(bodies):
            queues = await producer.queues(topic)
            await producer.send(Message(topic, body), queue=queues[number % len(queues)])
    await routed(stack, topic)


async def until(consumers: Iterable[PullConsumer], counts: list[int]) -> list[set[MessageQueue]]:
    """Return the queues of each once they have as many."""
    consumers = list(consumers)
    with trio.fail_after(TIMEOUT_S):
        while [len(one.assigned) for one in consumers] != counts:  # noqa: ASYNC110  # no event
            await trio.sleep(0.01)
    return [set(one.assigned) for one in consumers]


async def read(consumers: Iterable[PullConsumer], count: int) -> list[bytes]:
    bodies: list[bytes] = []
    with trio.fail_after(TIMEOUT_S):
        while len(bodies) < count:
            for consumer in consumers:
                bodies += [message.body for message in await consumer.poll(timeout_s=0.1)]
    return bodies


def member(stack: Stack) -> PullConsumer:
    return PullConsumer(namesrv=stack.namesrv_address, group="G", hold_s=2)


async def test_members_share_the_queues_and_inherit_them(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(40)]
    async with started_stack(tmp_path) as stack:
        await send(stack, bodies[:20])
        async with member(stack) as first:
            first.subscribe("T")
            await until([first], [4])
            async with member(stack) as second:
                second.subscribe("T")
                mine, theirs = await until([first, second], [2, 2])
                assert not mine & theirs
                # One with assigned queues shares with nobody, and takes none.
                async with member(stack) as third:
                    third.assign(await third.queues("T"))
                    assert len(await read([third], 20)) == 20
                    assert await until([first, second], [2, 2]) == [mine, theirs]
                assert sorted(await read([first, second], 20)) == sorted(bodies[:20])
                await first.commit()
                await second.commit()
            await until([first], [4])
            await send(stack, bodies[20:])
            # What the other one had committed does not come again.
            assert sorted(await read([first], 20)) == sorted(bodies[20:])


async def test_paused_queues_wait_and_both_ways_are_not_mixed(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await send(stack, [b"x"])
        async with member(stack) as consumer:
            consumer.subscribe("T")
            await until([consumer], [4])
            consumer.pause(consumer.assigned)
            assert await consumer.poll(timeout_s=0.3) == []
            consumer.resume(consumer.assigned)
            assert await read([consumer], 1) == [b"x"]
            with pytest.raises(ClientError, match="subscribes"):
                consumer.assign([])
        async with member(stack) as consumer:
            consumer.assign(await consumer.queues("T"))
            with pytest.raises(ClientError, match="assigned"):
                consumer.subscribe("T")


async def test_member_tells_the_broker_its_tags_and_what_it_reads(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await send(stack, [b"x"])
        async with member(stack) as consumer:
            consumer.subscribe("T", tags="Aa || C")
            await until([consumer], [4])
            group = stack.broker.tables.consumers.get("G")
            assert group is not None
            assert group.consume_type == "CONSUME_ACTIVELY"
            codes = [string_hash("Aa"), string_hash("C")]
            assert group.subscriptions["T"].code_set == codes
            async with connected(stack.broker_address) as peer:
                answer = await peer.ask(
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}
                )
                (client_id,) = loads(answer.body)["consumerIdList"]
        assert client_id
        assert stack.broker.tables.consumers.get("G") is None
