"""Producer and pull consumer against our own name server and broker, over loopback."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from motelog.bridge.asyncio import AsyncioProducer
from motelog.bridge.errors import (
    MessageRefusedError,
    ReplyTimeoutError,
    RouteError,
    SendFailedError,
)
from motelog.bridge.producer import Producer, SendStatus
from motelog.bridge.pull import PullConsumer, PullStatus
from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.errors import BrokerError, RemotingError
from motelog.core.message import CORRELATION_ID, REPLY_TO_CLIENT, Message, string_hash
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import ResponseCode
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import Stack, joined, started_stack


async def read_all(
    stack: Stack, topic: str, count: int, *, group: str = "G", tags: str = "*"
) -> list[StoredMessage]:
    """Read ``topic`` from its committed offsets until ``count`` messages came; then commit."""
    async with PullConsumer(namesrv=stack.namesrv_address, group=group) as consumer:
        consumer.assign(await consumer.queues(topic, wait_s=10), tags=tags)
        messages = await drain(consumer, count)
        await consumer.commit()
    return messages


async def drain(consumer: PullConsumer, count: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    with trio.fail_after(20):
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=5)
    return messages


async def test_topic_is_created_by_its_first_message_and_read_back(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address, group="P") as producer,
    ):
        message = Message("fresh", "grüße".encode(), "tag", ("k",), {"unit": "°C"}, flag=7)
        results = [await producer.send(message) for _ in range(8)]
        assert {result.status for result in results} == {SendStatus.OK}
        assert len({result.queue for result in results}) == 4
        messages = await read_all(stack, "fresh", 8)
        assert {m.message_id for m in messages} == {result.message_id for result in results}
        assert {m.offset_id for m in messages} == {result.offset_id for result in results}
        for stored in messages:
            assert (stored.body, stored.tags, stored.keys) == (message.body, "tag", ("k",))
            assert (stored.flag, stored.properties["unit"]) == (7, "°C")


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_batch_and_large_bodies_come_back_whole(tmp_path: Path, flush: str) -> None:
    bodies = [random.Random(1).randbytes(200_000), b"z" * 3_000_000, b"", b"a" * 4097]
    async with (
        started_stack(tmp_path, flush=flush) as stack,  # type: ignore[arg-type]
        Producer(namesrv=stack.namesrv_address) as producer,
    ):
        for body in bodies:
            await producer.send(Message("big", body))
        batch = await producer.send_batch([Message("big", b"%d" % i) for i in range(200)])
        messages = await read_all(stack, "big", 204)
        in_batch = [m for m in messages if m.message_id in batch.message_id.split(",")]
        assert [m.body for m in in_batch] == [b"%d" % i for i in range(200)]
        assert [m.queue_offset for m in in_batch][:1] == [batch.queue_offset]
        rest = [m.body for m in messages if m not in in_batch]
        assert sorted(rest) == sorted(bodies)


async def test_consumer_that_comes_back_goes_on_at_its_committed_offsets(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
    ):
        await producer.send_batch([Message("T", b"%d" % i) for i in range(50)])
        first = await read_all(stack, "T", 50)
        await producer.send_batch([Message("T", b"%d" % i) for i in range(50, 60)])
        second = await read_all(stack, "T", 10)
        other_group = await read_all(stack, "T", 60, group="Other")
    assert [int(m.body) for m in first] == list(range(50))
    assert [int(m.body) for m in second] == list(range(50, 60))
    assert len(other_group) == 60


async def test_seek_and_offsets_by_time(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
        PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer,
    ):
        queue = (await producer.send(Message("T", b"0"))).queue
        await consumer.queues("T", wait_s=10)
        for i in range(1, 5):
            await producer.send(Message("T", b"%d" % i), queue=queue)
        await trio.sleep(0.02)
        later_ms = time.time_ns() // 1_000_000
        await producer.send(Message("T", b"5"), queue=queue)
        assert await consumer.begin_offsets([queue]) == {queue: 0}
        assert await consumer.end_offsets([queue]) == {queue: 6}
        assert await consumer.offsets_for_time([queue], later_ms) == {queue: 5}
        assert await consumer.offsets_for_time([queue], 0) == {queue: 0}
        consumer.assign([queue])
        consumer.seek(queue, 4)
        assert [m.body for m in await drain(consumer, 2)] == [b"4", b"5"]
        consumer.seek_to_begin()
        assert [m.body for m in await drain(consumer, 6)][:1] == [b"0"]
        consumer.seek_to_end()
        assert await consumer.poll(timeout_s=0.1) == []
        await producer.send(Message("T", b"6"), queue=queue)
        assert [m.body for m in await drain(consumer, 1)] == [b"6"]


async def test_tag_filter_is_exact_although_the_broker_compares_hashes(tmp_path: Path) -> None:
    assert string_hash("Aa") == string_hash("BB")
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
    ):
        tags = [("Aa", "BB", "C", None)[i % 4] for i in range(400)]
        await producer.send_batch([Message("T", b"%d" % i, tag) for i, tag in enumerate(tags)])
        messages = await read_all(stack, "T", 200, tags="Aa || C")
        assert [int(m.body) for m in messages] == [i for i in range(400) if i % 2 == 0]
        # Everything was looked at, so the committed offset is behind the last message.
        async with PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
            queues = await consumer.queues("T")
            committed = {queue: await consumer.committed(queue) for queue in queues}
            assert sum(offset or 0 for offset in committed.values()) >= 399


async def test_raw_pull_holds_until_a_message_comes(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
        PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer,
    ):
        queue = (await producer.send(Message("T", b"first"))).queue
        await consumer.queues("T", wait_s=10)
        found = await consumer.pull(queue, 0)
        assert (found.status, found.next_offset) == (PullStatus.FOUND, 1)
        nothing = await consumer.pull(queue, 1)
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_NEW_MESSAGE, 1)
        beyond = await consumer.pull(queue, 99)
        assert (beyond.status, beyond.max_offset) == (PullStatus.OFFSET_ILLEGAL, 1)
        async with trio.open_nursery() as nursery:

            async def send_later() -> None:
                await trio.sleep(0.1)
                await producer.send(Message("T", b"second"), queue=queue)

            nursery.start_soon(send_later)
            held = await consumer.pull(queue, 1, hold_s=10)
        assert [m.body for m in held.messages()] == [b"second"]


async def test_refusals_name_the_reason(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path, auto_create_topics=False) as stack,
        Producer(namesrv=stack.namesrv_address, retries=0) as producer,
        PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer,
    ):
        with pytest.raises((RouteError, BrokerError), match="exist"):
            await producer.send(Message("T", b""))
        with pytest.raises(RouteError, match="'T' does not exist"):
            await consumer.queues("T")
        for topic in ("SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX"):
            with pytest.raises(BrokerError, match="system topic") as caught:
                await producer.send(Message(topic, b""))
            assert caught.value.code == ResponseCode.NO_PERMISSION


@pytest.fixture
def stack_in_thread(tmp_path: Path) -> Iterator[Stack]:
    """The servers in another thread's trio run, for callers that block."""
    ready = threading.Event()
    found: list[tuple[Stack, trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        async with started_stack(tmp_path) as stack:
            found.append((stack, trio.lowlevel.current_trio_token(), trio.Event()))
            ready.set()
            await found[0][2].wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(20)
    stack, token, end = found[0]
    yield stack
    token.run_sync_soon(end.set)
    thread.join(20)


def test_blocking_facade_sends_and_reads(stack_in_thread: Stack) -> None:
    namesrv = stack_in_thread.namesrv_address
    with SyncProducer(namesrv=namesrv) as producer:
        ids = [producer.send(Message("T", b"%d" % i)).message_id for i in range(20)]
    with SyncPullConsumer(namesrv=namesrv, group="G") as consumer:
        consumer.assign(consumer.queues("T", wait_s=10))
        seen: list[str] = []
        while len(seen) < 20:
            seen += [message.message_id for message in consumer.poll(timeout_s=5)]
        consumer.commit()
    assert sorted(seen) == sorted(ids)


async def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    """Two producers send on and a consumer reads on while the broker is killed, twice."""
    acknowledged: set[str] = set()
    seen: set[str] = set()
    failures = 0
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        address = joined(namesrv.address)
        broker = BrokerProcess(tmp_path, namesrv=address)
        await trio.to_thread.run_sync(broker.start)
        try:
            async with Producer(namesrv=address, group="P") as producer:
                stop = trio.Event()
                progress = trio.Event()

                senders_count = 2

                async def send_on() -> None:
                    nonlocal failures, progress, senders_count
                    while not stop.is_set():
                        try:
                            result = await producer.send(Message("T", b"x" * 100))
                        except (SendFailedError, RouteError, RemotingError):
                            failures += 1  # not acknowledged: may be there or not
                            await trio.sleep(0.05)
                            continue
                        acknowledged.add(result.message_id)
                        progress.set()
                        progress = trio.Event()
                    senders_count -= 1

                async def read_on() -> None:
                    async with PullConsumer(namesrv=address, group="Live") as consumer:
                        consumer.assign(await consumer.queues("T", wait_s=20))
                        while senders_count or not acknowledged <= seen:
                            seen.update(m.message_id for m in await consumer.poll(timeout_s=0.5))

                async with trio.open_nursery() as senders:
                    senders.start_soon(read_on)
                    for _ in range(senders_count):
                        senders.start_soon(send_on)
                    with trio.fail_after(60):
                        for round_number in range(3):
                            wanted = len(acknowledged) + 100
                            while len(acknowledged) < wanted:
                                await progress.wait()
                            if round_number < 2:
                                await trio.to_thread.run_sync(broker.kill)
                                await trio.to_thread.run_sync(broker.start)
                        stop.set()
            async with PullConsumer(namesrv=address, group="G") as consumer:
                queues = await consumer.queues("T")
                ends = await consumer.end_offsets(queues)
                consumer.assign(queues)
                messages = await drain(consumer, sum(ends.values()))
        finally:
            await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
    assert acknowledged <= {message.message_id for message in messages}
    assert acknowledged <= seen
    # At most one copy per attempt whose answer the kill swallowed.
    assert len(messages) <= len(acknowledged) + failures * 3 + 3 * 2 * 3


async def answer_all(stack: Stack, topic: str, count: int) -> None:
    """Reply to the next requests of a topic with their bodies, backwards."""
    async with (
        PullConsumer(namesrv=stack.namesrv_address, group="answering") as consumer,
        Producer(namesrv=stack.namesrv_address, group="answers") as producer,
    ):
        consumer.assign(await consumer.queues(topic, wait_s=10))
        for request in await drain(consumer, count):
            await producer.reply_to(request, request.body[::-1])


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_request_gets_the_reply_to_it(tmp_path: Path, is_stored: bool) -> None:
    async with (
        started_stack(tmp_path, store_replies=is_stored) as stack,
        Producer(namesrv=stack.namesrv_address, group="asking") as producer,
        trio.open_nursery() as nursery,
    ):
        # Its last reply is acknowledged when that is stored.
        nursery.start_soon(answer_all, stack, "questions", 4)
        replies: dict[bytes, bytes] = {}

        async def ask(body: bytes) -> None:
            reply = await producer.request(Message("questions", body), timeout_s=10)
            replies[body] = reply.body

        async with trio.open_nursery() as asking:
            # The last one is long enough to be compressed.
            for body in (b"one", b"two", b"three", b"ab" * 10_000):
                asking.start_soon(ask, body)
        assert replies == {body: body[::-1] for body in replies}
        assert len(replies) == 4
    stored = stack.broker.api.max_offset("DefaultCluster_REPLY_TOPIC", 0)
    assert stored == (4 if is_stored else 0)


async def test_a_request_without_a_reply_ends_at_its_deadline(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address, group="asking") as producer,
    ):
        with pytest.raises(ReplyTimeoutError, match="no reply to request"):
            await producer.request(Message("questions", b"x"), timeout_s=0.5)
        # Its reply comes too late and is taken by nobody; that does not disturb the next request.
        await answer_all(stack, "questions", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_all, stack, "questions", 2)
            reply = await producer.request(Message("questions", b"abc"), timeout_s=10)
        assert reply.body == b"cba"


async def test_a_reply_to_a_client_that_is_gone_is_refused(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        async with Producer(namesrv=stack.namesrv_address, group="asking") as producer:
            with pytest.raises(ReplyTimeoutError):
                await producer.request(Message("questions", b"x"), timeout_s=0.3)
        with pytest.raises(BrokerError, match="is not connected"):
            await answer_all(stack, "questions", 1)
        (request,) = await read_all(stack, "questions", 1, group="others")
        assert {CORRELATION_ID, REPLY_TO_CLIENT} <= request.properties.keys()
        async with Producer(namesrv=stack.namesrv_address) as producer:
            await producer.send(Message("questions", b"plain"))
            (plain,) = await read_all(stack, "questions", 1, group="others")
            with pytest.raises(MessageRefusedError, match="expects no reply"):
                await producer.reply_to(plain, b"")


def test_a_blocking_request_gets_its_reply(stack_in_thread: Stack) -> None:
    namesrv = stack_in_thread.namesrv_address
    with SyncProducer(namesrv=namesrv) as producer:

        def answer() -> None:
            with SyncPullConsumer(namesrv=namesrv, group="answering") as consumer:
                consumer.assign(consumer.queues("questions", wait_s=10))
                for request in consumer:
                    producer.reply_to(request, request.body.upper())
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        reply = producer.request(Message("questions", b"abc"), timeout_s=10)
        thread.join()
        assert reply.body == b"ABC"


async def test_a_delayed_message_is_recalled_from_every_door(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with Producer(namesrv=namesrv) as producer:
            sent = [await producer.send(Message("T", b"%d" % i), delay=1.5) for i in range(3)]
            kept = await producer.send(Message("T", b"kept"), delay=1.5)
            assert (await producer.send(Message("T", b"now"))).recall_handle is None
            first, second, third = (result.recall_handle or "" for result in sent)
            assert await producer.recall(first) == sent[0].message_id

            def recall() -> str:
                with SyncProducer(namesrv=namesrv) as blocking:
                    return blocking.recall(second)

            async def recall_on_loop() -> str:
                async with AsyncioProducer(namesrv=namesrv) as looping:
                    return await looping.recall(third)

            assert await trio.to_thread.run_sync(recall) == sent[1].message_id
            found = await trio.to_thread.run_sync(lambda: asyncio.run(recall_on_loop()))
            assert found == sent[2].message_id
            with pytest.raises(MessageRefusedError, match="handle is invalid"):
                await producer.recall("none")
            bodies = {message.body for message in await read_all(stack, "T", 2)}
            assert bodies == {b"now", b"kept"}
            assert stack.broker.sample()["delayed_messages_recalled"] == 3
            with pytest.raises(BrokerError, match="time has come"):
                await producer.recall(kept.recall_handle or "")
