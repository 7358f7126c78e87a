"""Pull consumers that share the queues of their group, against our name server and broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from motelog.bridge.asyncio import AsyncioPullConsumer
from motelog.bridge.errors import ClientError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.sync import SyncPullConsumer
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


async def filled(stack: Stack) -> MessageQueue:
    """Return a queue of topic T with ten messages, which clients are told of."""
    async with Producer(namesrv=stack.namesrv_address) as producer:
        queue = (await producer.send(Message("T", b"0"))).queue
        for number in range(1, 10):
            await producer.send(Message("T", b"%d" % number), queue=queue)
    await routed(stack, "T")
    return queue


@pytest.mark.parametrize(
    ("taken_over_within_s", "seeks", "kept"), [(30.0, False, 5), (0.0, False, 2), (30.0, True, 2)]
)
async def test_what_the_member_before_has_saved_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken_over_within_s: float,
    seeks: bool,
    kept: int,
) -> None:
    """After a while a lower offset counts at Apache's, and so it does when somebody asks for it."""
    monkeypatch.setattr("motelog.bridge.queue_requests.ONLY_FORWARD", "not known")
    monkeypatch.setattr("motelog.bridge.pull.TAKEN_OVER_WITHIN_S", taken_over_within_s)
    async with started_stack(tmp_path) as stack:
        queue = await filled(stack)
        async with member(stack) as consumer, member(stack) as before:
            consumer.subscribe("T")
            await until([consumer], [4])
            if seeks:
                consumer.seek(queue, 0)
            with trio.fail_after(TIMEOUT_S):
                assert len(await consumer.poll(timeout_s=TIMEOUT_S, count_max=2)) == 2
            # The member before hands the queue over late.
            await before.commit({queue: 5})
            await consumer.commit()
            assert await before.committed(queue) == kept
            # What a caller names is what it means.
            await consumer.commit({queue: 1})
            assert await before.committed(queue) == 1


async def test_two_members_with_one_queue_do_not_take_the_group_back(tmp_path: Path) -> None:
    """Members hear of a new division at different times."""
    async with started_stack(tmp_path) as stack:
        queue = await filled(stack)
        async with member(stack) as slow, member(stack) as quick:
            for consumer, count in ((slow, 2), (quick, 5)):
                consumer.assign([queue])
                with trio.fail_after(TIMEOUT_S):
                    assert len(await consumer.poll(timeout_s=TIMEOUT_S, count_max=count)) == count
                await consumer.commit()
            await slow.poll(timeout_s=TIMEOUT_S, count_max=1)
            await slow.commit()
            assert await quick.committed(queue) == 7
            # One that has gone back itself means it.
            slow.seek(queue, 0)
            await slow.poll(timeout_s=TIMEOUT_S, count_max=1)
            await slow.commit()
            assert await quick.committed(queue) == 1


async def test_a_group_ahead_of_a_log_that_lost_its_end_goes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would skip what comes at these offsets when it starts again."""
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
        member(stack) as consumer,
    ):
        queue = (await producer.send(Message("T", b"handled"))).queue
        await routed(stack, "T")
        await consumer.commit({queue: 5})
        consumer.subscribe("T")
        with trio.fail_after(TIMEOUT_S):
            while "no message at this offset" not in caplog.text:
                await consumer.poll(timeout_s=0.1)
            await producer.send(Message("T", b"new"), queue=queue)
            while not (messages := await consumer.poll(timeout_s=0.1)):
                pass
        assert [message.body for message in messages] == [b"new"]
        await consumer.commit()
        assert await consumer.committed(queue) == 2


async def test_blocking_and_asyncio_forms_keep_what_the_member_before_has_saved(
    tmp_path: Path,
) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        queue = await filled(stack)

        def block() -> None:
            with SyncPullConsumer(namesrv=namesrv, group="G", hold_s=2) as consumer:
                consumer.subscribe("T")
                for message in consumer:
                    if message.queue_offset == 2:
                        consumer.commit({queue: 5})
                        consumer.commit()
                        assert consumer.committed(queue) == 5
                        consumer.commit({queue: 0})
                        break

        async def loop() -> None:
            async with AsyncioPullConsumer(namesrv=namesrv, group="G", hold_s=2) as consumer:
                await consumer.subscribe("T")
                async for message in consumer:
                    if message.queue_offset == 2:
                        await consumer.commit({queue: 5})
                        await consumer.commit()
                        assert await consumer.committed(queue) == 5
                        break

        with trio.fail_after(TIMEOUT_S):
            await trio.to_thread.run_sync(block)
            await trio.to_thread.run_sync(lambda: asyncio.run(loop()))


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
            with pytest.raises(ClientError, match="has subscriptions"):
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
