"""Our SimpleConsumer, against our broker and Apache RocketMQ's; a broker that is killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import trio

import motelog
from motelog import (
    AsyncioSimpleConsumer,
    BrokerError,
    ClientError,
    Message,
    Producer,
    RouteError,
    SimpleConsumer,
    SyncSimpleConsumer,
)
from motelog.core.errors import RemotingConnectError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import joined, routed, started_stack
from tests.support.fake_cluster import fake_cluster
from tests.support.java import VERSION_5, ApacheServer

COUNT = 10
AGAIN_S = 60
HANDED_OVER_S = 20
SAVED_SOON = {"flushConsumerOffsetInterval": 200}


async def send(namesrv: str, topic: str, count: int) -> set[bytes]:
    """Send to all queues of a topic, which the first message creates; return the bodies."""
    bodies = [b"%s %d" % (topic.encode(), i) for i in range(count)]
    async with Producer(namesrv=namesrv, group="P", timeout_s=10) as producer:
        for i, body in enumerate(bodies):
            await producer.send(Message(topic, body, "AB"[i % 2]))
    return set(bodies)


async def subscribed(consumer: SimpleConsumer, topic: str) -> None:
    """Subscribe as soon as the name server knows the topic."""
    with trio.fail_after(20):
        while True:
            try:
                return await consumer.subscribe(topic)
            except RouteError:
                await trio.sleep(0.1)


async def receive_all(
    consumer: SimpleConsumer, count: int, *, invisible_s: float = 60
) -> list[motelog.PoppedMessage]:
    found: list[motelog.PoppedMessage] = []
    with trio.fail_after(AGAIN_S):
        while len(found) < count:
            found += await consumer.receive(32, invisible_s=invisible_s, wait_s=5)
    return found


async def check_consumer(namesrv: str) -> None:
    """Receive, acknowledge in every way, and have the others come again."""
    bodies = await send(namesrv, "Simple", COUNT)
    async with SimpleConsumer(namesrv=namesrv, group="G") as consumer:
        await subscribed(consumer, "Simple")
        # Long enough for a busy machine to acknowledge in time.
        first = await receive_all(consumer, COUNT, invisible_s=8)
        assert {message.body for message in first} == bodies
        assert {message.delivery_attempt for message in first} == {1}
        assert {message.topic for message in first} == {"Simple"}
        for message in first[:3]:
            await consumer.ack(message)
        await consumer.ack_many(first[3:8])
        changed = await consumer.change_invisible(first[8], 1)
        assert changed.receipt != first[8].receipt
        again = await receive_all(consumer, 2)
        assert {message.body for message in again} == {m.body for m in first[8:]}
        assert {message.delivery_attempt for message in again} == {2}
        assert {message.topic for message in again} == {"Simple"}
        await consumer.ack_many(again)
        assert await consumer.receive(wait_s=1) == []


async def check_order(namesrv: str) -> None:
    """Receive in order: what is acknowledged does not come again, what follows comes then."""
    await send(namesrv, "Ordered", 12)
    async with SimpleConsumer(namesrv=namesrv, group="H", in_order=True) as consumer:
        await subscribed(consumer, "Ordered")
        offsets: dict[int, list[int]] = {}
        with trio.fail_after(AGAIN_S):
            while sum(map(len, offsets.values())) < 12:
                for message in await consumer.receive(2, wait_s=5):
                    offsets.setdefault(message.queue_id, []).append(message.queue_offset)
                    await consumer.ack(message)
        assert all(found == list(range(len(found))) for found in offsets.values())


async def test_simple_consumer_works_with_our_broker(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await check_consumer(stack.namesrv_address)
        await check_order(stack.namesrv_address)


@pytest.mark.java
@pytest.mark.java_all
async def test_simple_consumer_works_with_apache(tmp_path: Path) -> None:
    async with ApacheServer(VERSION_5, tmp_path / "store", has_timer=True) as apache:
        await check_consumer(apache.namesrv_address)
        await check_order(apache.namesrv_address)


async def test_two_topics_are_waited_for_at_once_and_filters_hold(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        for topic in ("One", "Two"):
            stack.broker.api.create_topic(topic, 2)
            await routed(stack, topic)
        namesrv = stack.namesrv_address
        async with SimpleConsumer(namesrv=namesrv, group="G") as consumer:
            with pytest.raises(ClientError, match="there is no subscription"):
                await consumer.receive()
            with pytest.raises(RouteError):
                await consumer.subscribe("None")
            with pytest.raises(ValueError, match="1 to 32"):
                await consumer.receive(33)
            await consumer.subscribe("One", tags="A")
            await consumer.subscribe("Two", sql="TAGS = 'B'")
            found: list[bytes] = []

            async def receive() -> None:
                while len(found) < 4:
                    found.extend(message.body for message in await consumer.receive(wait_s=10))

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive)
                    await trio.sleep(0.3)
                    await send(namesrv, "One", 4)
                    await send(namesrv, "Two", 4)
            assert sorted(found) == [b"One 0", b"One 2", b"Two 1", b"Two 3"]
            consumer.unsubscribe("Two")
            await send(namesrv, "Two", 4)
            assert await consumer.receive(wait_s=0.2) == []


async def test_a_message_whose_time_is_over_cannot_be_put_off(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, "T", 1)
        async with SimpleConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
            await subscribed(consumer, "T")
            (message,) = await consumer.receive(invisible_s=0)
            (again,) = await receive_all(consumer, 1)
            with pytest.raises(BrokerError) as caught:
                await consumer.change_invisible(message, 5)
            assert caught.value.code == ResponseCode.NO_MESSAGE
            await consumer.ack(again)


async def test_threads_and_asyncio_have_the_same(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        await send(namesrv, "T", 4)
        await routed(stack, "T")

        def in_a_thread() -> set[bytes]:
            with SyncSimpleConsumer(namesrv=namesrv, group="S") as consumer:
                consumer.subscribe("T")
                found: list[motelog.PoppedMessage] = []
                while len(found) < 4:
                    found += consumer.receive(wait_s=5)
                consumer.ack(found[0])
                consumer.ack(consumer.change_invisible(found[1], 30))
                consumer.ack_many(found[2:])
                consumer.unsubscribe("T")
                return {message.body for message in found}

        async def on_asyncio() -> set[bytes]:
            async with AsyncioSimpleConsumer(namesrv=namesrv, group="A") as consumer:
                await consumer.subscribe("T")
                found: list[motelog.PoppedMessage] = []
                while len(found) < 4:
                    found += await consumer.receive(wait_s=5)
                await consumer.ack(found[0])
                await consumer.ack(await consumer.change_invisible(found[1], 30))
                await consumer.ack_many(found[2:])
                await consumer.unsubscribe("T")
                return {message.body for message in found}

        expected = {b"T %d" % i for i in range(4)}
        assert await trio.to_thread.run_sync(in_a_thread) == expected
        assert await trio.to_thread.run_sync(asyncio.run, on_asyncio()) == expected
        assert stack.broker.sample()["messages_in_work_now"] == 0


async def test_a_killed_broker_forgets_neither_messages_nor_acknowledgements(
    tmp_path: Path,
) -> None:
    """In work stays in work: nothing is lost, what was acknowledged does not come again."""
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        address = joined(namesrv.address)
        broker = BrokerProcess(tmp_path, namesrv=address)
        try:
            await trio.to_thread.run_sync(broker.start)
            bodies = await send(address, "T", 30)
            acked: set[bytes] = set()
            async with SimpleConsumer(namesrv=address, group="G") as consumer:
                await subscribed(consumer, "T")
                for _ in range(3):
                    found = await receive_all(consumer, 10, invisible_s=6)
                    assert acked.isdisjoint(message.body for message in found)
                    await consumer.ack_many(found[:5])
                    acked |= {message.body for message in found[:5]}
                    broker.kill()
                    await trio.to_thread.run_sync(broker.start)
                    # What was in work still is, though the broker was killed before it saved how
                    # far the group had got.
                    until_ms = {message.body: message.invisible_until_ms for message in found}
                    with trio.fail_after(30):
                        next_ones = await received(consumer)
                    now_ms = time.time_ns() // 1_000_000
                    assert acked.isdisjoint(message.body for message in next_ones)
                    assert all(until_ms.get(message.body, 0) <= now_ms for message in next_ones)
                with trio.fail_after(AGAIN_S):
                    while acked != bodies:
                        found = await received(consumer)
                        assert acked.isdisjoint(message.body for message in found)
                        await consumer.ack_many(found)
                        acked |= {message.body for message in found}
        finally:
            broker.kill()
            nursery.cancel_scope.cancel()


async def received(consumer: SimpleConsumer) -> list[motelog.PoppedMessage]:
    """Receive, also from a broker that has just come back."""
    while True:
        try:
            return await consumer.receive(4, invisible_s=3, wait_s=1)
        except (motelog.RemotingError, BrokerError, RouteError):
            await trio.sleep(0.1)


async def pop_some(namesrv: str, topic: str) -> set[bytes]:
    """Receive ten messages, acknowledge four, and return the others."""
    async with SimpleConsumer(namesrv=namesrv, group="G") as consumer:
        await subscribed(consumer, topic)
        found = await receive_all(consumer, COUNT, invisible_s=HANDED_OVER_S)
        await consumer.ack(found[0])
        await consumer.ack_many(found[1:4])
        return {message.body for message in found[4:]}


async def pop_again(namesrv: str, topic: str, expected: set[bytes]) -> None:
    """Receive what somebody else has left, and nothing else."""
    async with SimpleConsumer(namesrv=namesrv, group="G") as consumer:
        await subscribed(consumer, topic)
        with trio.fail_after(HANDED_OVER_S + AGAIN_S):
            found: list[motelog.PoppedMessage] = []
            while len(found) < len(expected):
                found += await consumer.receive(32, wait_s=5)
        await consumer.ack_many(found)
        assert {message.body for message in found} == expected
        assert {message.delivery_attempt for message in found} <= {2}
        assert await consumer.receive(wait_s=2) == []


async def receive_at_least(namesrv: str, topic: str, expected: set[bytes]) -> None:
    """Receive all that somebody else has left."""
    async with SimpleConsumer(namesrv=namesrv, group="G") as consumer:
        await subscribed(consumer, topic)
        found: set[bytes] = set()
        with trio.fail_after(HANDED_OVER_S + AGAIN_S):
            while not expected <= found:
                messages = await consumer.receive(32, wait_s=5)
                await consumer.ack_many(messages)
                found |= {message.body for message in messages}


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.timeout(400)
async def test_what_apache_has_in_work_comes_again_here(tmp_path: Path, is_killed: bool) -> None:
    """Its checkpoints wait in its timer, which is taken over. A kill may cost saved offsets."""
    check = receive_at_least if is_killed else pop_again
    folder = tmp_path / "store"
    async with ApacheServer(VERSION_5, folder, has_timer=True, settings=SAVED_SOON) as apache:
        await send(apache.namesrv_address, "Handed", COUNT)
        left = await pop_some(apache.namesrv_address, "Handed")
        await trio.sleep(1)  # The offsets are saved.
        if not is_killed:
            await apache.stop()
    async with started_stack(folder, name="apache") as stack:
        await check(stack.namesrv_address, "Handed", left)
    # Not again at the next start.
    async with started_stack(folder, name="apache") as stack:
        await pop_again(stack.namesrv_address, "Handed", set())


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.timeout(400)
async def test_what_we_have_in_work_comes_again_at_apache_s(
    tmp_path: Path, is_killed: bool
) -> None:
    """It reads them in the revive topic. It pops again what we popped after offsets were saved."""
    check = receive_at_least if is_killed else pop_again
    folder = tmp_path / "store"
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        address = joined(namesrv.address)
        broker = BrokerProcess(folder, namesrv=address, name="apache", save_interval_s=0.2)
        await trio.to_thread.run_sync(broker.start)
        try:
            await send(address, "Handed", COUNT)
            left = await pop_some(address, "Handed")
            await trio.sleep(1)  # The offsets are saved.
        finally:
            broker.kill() if is_killed else broker.stop()
        nursery.cancel_scope.cancel()
    async with ApacheServer(VERSION_5, folder, has_timer=True) as apache:
        await check(apache.namesrv_address, "Handed", left)


async def test_a_broker_that_comes_back_elsewhere_is_found_with_the_next_call() -> None:
    async with (
        fake_cluster("a") as cluster,
        SimpleConsumer(namesrv=cluster.namesrv, group="G") as consumer,
    ):
        (broker,) = cluster.brokers
        broker.script = lambda request: (
            request.answer(ResponseCode.POLLING_TIMEOUT)
            if request.code == RequestCode.POP_MESSAGE
            else None
        )
        address, broker.address = broker.address, "127.0.0.1:1"
        await consumer.subscribe("T")
        with pytest.raises(RemotingConnectError):
            await consumer.receive(wait_s=0)
        broker.address = address
        assert await consumer.receive(wait_s=0) == []
