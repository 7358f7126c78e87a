"""The pull consumer against a fake cluster on loopback: positions, holds, filters, faults."""

from __future__ import annotations

import logging
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from motelog.bridge.admin import Admin
from motelog.bridge.errors import ClientError, CommitFailedError, RouteError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer, PullStatus
from motelog.bridge.trace.records import ContextCode, TraceKind, TraceRecord
from motelog.core.errors import BrokerError, RecordError, RemotingError
from motelog.core.message import Message, MessageQueue, string_hash
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads
from tests.support.broker_stack import started_stack
from tests.support.fake_cluster import (
    NO_ANSWER,
    FakeBroker,
    FakeCluster,
    fake_cluster,
    properties,
    serve,
)

Q0 = MessageQueue("T", "a", 0)
Q1 = MessageQueue("T", "a", 1)


def fill(cluster: FakeCluster, queue: MessageQueue, count: int, tag: str = "t") -> None:
    (broker,) = (broker for broker in cluster.brokers if broker.name == queue.broker_name)
    for _ in range(count):
        number = len(broker.records[queue.topic, queue.queue_id])
        broker.store(queue.topic, queue.queue_id, b"%d" % number, properties(TAGS=tag))


async def drain(consumer: PullConsumer, count: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    with trio.fail_after(10):
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=5)
    return messages


def consumer_of(cluster: FakeCluster, **options: object) -> PullConsumer:
    return PullConsumer(namesrv=cluster.namesrv, group="G", hold_s=2, **options)  # type: ignore[arg-type]


async def test_assigned_queues_are_read_in_order_to_the_end() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 100)
        fill(cluster, Q1, 3)
        queues = await consumer.queues("T")
        assert queues == (Q0, Q1)
        consumer.assign(queues)
        messages = await drain(consumer, 103)
        for queue, count in ((Q0, 100), (Q1, 3)):
            offsets = [m.queue_offset for m in messages if m.queue_id == queue.queue_id]
            assert offsets == list(range(count))
            assert consumer.position(queue) == count
        assert await consumer.poll(timeout_s=0.05) == []


async def test_busy_queue_does_not_starve_the_other() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 2000)
        fill(cluster, Q1, 40)
        consumer.assign([Q0, Q1])
        await drain(consumer, 1)
        # Once both have something ready, both are in what one poll hands out.
        consumer.seek_to_begin()
        await trio.testing.wait_all_tasks_blocked(0.05)
        seen = [m.queue_id for m in await consumer.poll(timeout_s=5, count_max=600)]
        assert set(seen) == {0, 1}


async def test_held_pull_answers_when_a_message_arrives() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        consumer.assign([Q0])
        async with trio.open_nursery() as nursery:

            async def store_later() -> None:
                await cluster.brokers[0].received(RequestCode.PULL_MESSAGE)
                fill(cluster, Q0, 1)

            nursery.start_soon(store_later)
            assert len(await drain(consumer, 1)) == 1


async def test_a_poll_that_ends_with_nothing_does_not_keep_another_from_its_messages() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        consumer.assign([Q0])
        found: list[StoredMessage] = []

        async def poll() -> None:
            found.extend(await consumer.poll(timeout_s=60))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert await consumer.poll(timeout_s=0.05) == []
                fill(cluster, Q0, 1)
        assert [one.body for one in found] == [b"0"]


async def test_committed_offset_counts_what_was_handed_out_not_what_was_read_ahead() -> None:
    async with fake_cluster("a") as cluster:
        fill(cluster, Q0, 60)
        async with consumer_of(cluster) as consumer:
            consumer.assign([Q0])
            assert len(await consumer.poll(timeout_s=5, count_max=7)) == 7
            await consumer.commit()
            assert await consumer.committed(Q0) == 7
        async with consumer_of(cluster) as consumer:
            consumer.assign([Q0])
            assert (await drain(consumer, 1))[0].queue_offset == 7
            await consumer.commit({Q0: 42})
        assert cluster.brokers[0].committed["G", "T", 0] == 42


async def test_loop_hands_out_one_by_one_and_commits_what_it_came_to() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 5)
        consumer.assign([Q0])
        with trio.fail_after(10):
            async for message in consumer:
                if message.queue_offset == 2:
                    await consumer.commit()
                    break
        assert await consumer.committed(Q0) == consumer.position(Q0) == 3
        assert [one.queue_offset for one in await drain(consumer, 2)] == [3, 4]


async def test_commit_asks_only_for_what_has_changed() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 1)
        consumer.assign([Q0])
        await drain(consumer, 1)
        await consumer.commit()
        await consumer.commit()
        codes = [request.code for request in cluster.brokers[0].requests]
        assert codes.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 1


def committed_at(broker: FakeBroker) -> dict[int, int]:
    return {queue_id: offset for (_, _, queue_id), offset in broker.committed.items()}


async def test_commit_waits_for_a_broker_that_starts_again_and_no_other_waits_with_it() -> None:
    offsets = {MessageQueue("T", name, queue_id): 5 for name in "ab" for queue_id in (0, 1)}
    async with fake_cluster("a", "b") as cluster, consumer_of(cluster) as consumer:
        here, away = cluster.brokers
        address, away.address = away.address, "127.0.0.1:1"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(consumer.commit, offsets, timeout_s=60))
            with trio.fail_after(30):
                while len(here.committed) < 2:
                    await here.received(RequestCode.UPDATE_CONSUMER_OFFSET)
                    await trio.sleep(0.01)
            assert committed_at(away) == {}
            away.address = address
        assert committed_at(here) == committed_at(away) == {0: 5, 1: 5}


async def test_commit_says_which_queues_are_not_committed_and_can_be_called_again() -> None:
    offsets = {MessageQueue("T", name, queue_id): 5 for name in "ab" for queue_id in (0, 1)}
    async with fake_cluster("a", "b") as cluster, consumer_of(cluster) as consumer:
        away, here = cluster.brokers
        address, away.address = away.address, "127.0.0.1:1"
        for timeout_s in (0, 0.3):
            with pytest.raises(CommitFailedError) as caught:
                await consumer.commit(offsets, timeout_s=timeout_s)
            text = str(caught.value)
            assert "broker 'a', topic 'T', queues 0, 1: " in text
            assert "commit again" in text
            assert "'b'" not in text
            assert caught.value.failures.keys() == {Q0, Q1}
            assert isinstance(caught.value.__cause__, RemotingError)
            assert committed_at(here) == {0: 5, 1: 5}
        away.address = address
        await consumer.commit(offsets)
        assert committed_at(away) == {0: 5, 1: 5}


async def test_a_broker_that_does_not_answer_a_commit_is_not_waited_for_longer() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        cluster.brokers[0].script = lambda request: (
            NO_ANSWER if request.code == RequestCode.UPDATE_CONSUMER_OFFSET else None
        )
        with (
            trio.fail_after(30),
            pytest.raises(CommitFailedError, match=r"no answer within 0\.2 s"),
        ):
            await consumer.commit({Q0: 1}, timeout_s=0.2)


@pytest.mark.parametrize(
    ("code", "asked_count"), [(ResponseCode.SYSTEM_BUSY, 2), (ResponseCode.NO_PERMISSION, 1)]
)
async def test_commit_asks_a_busy_broker_again_and_not_one_that_refuses(
    code: int, asked_count: int
) -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        broker = cluster.brokers[0]
        answers = [code, *[ResponseCode.SUCCESS] * (asked_count - 1)]
        broker.script = lambda request: (
            request.answer(answers.pop(0), "not now")
            if request.code == RequestCode.UPDATE_CONSUMER_OFFSET
            else None
        )
        if asked_count == 1:
            with pytest.raises(CommitFailedError, match="queues 0: not now"):
                await consumer.commit({Q0: 1}, timeout_s=60)
        else:
            await consumer.commit({Q0: 1}, timeout_s=60)
        assert answers == []


async def test_seek_moves_in_both_directions_and_to_the_ends() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 50)
        consumer.assign([Q0])
        await drain(consumer, 50)
        consumer.seek(Q0, 48)
        assert [m.queue_offset for m in await drain(consumer, 2)] == [48, 49]
        consumer.seek_to_begin()
        assert (await drain(consumer, 1))[0].queue_offset == 0
        consumer.seek_to_end([Q0])
        assert consumer.position(Q0) is None
        assert await consumer.poll(timeout_s=0.2) == []
        fill(cluster, Q0, 1)
        assert (await drain(consumer, 1))[0].queue_offset == 50
        with pytest.raises(ValueError, match="negative"):
            consumer.seek(Q0, -1)
        with pytest.raises(ClientError, match="not assigned"):
            consumer.seek(Q1, 0)


async def test_new_group_starts_where_it_was_told_to() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster, start="last") as consumer:
        fill(cluster, Q0, 5)
        consumer.assign([Q0])
        assert await consumer.poll(timeout_s=0.2) == []
        fill(cluster, Q0, 1)
        assert [m.queue_offset for m in await drain(consumer, 1)] == [5]


async def test_tags_are_told_to_the_broker_and_compared_exactly_here() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        # "Aa" and "BB" have the same hash; the fake broker does not filter at all.
        assert string_hash("Aa") == string_hash("BB")
        for tag in ("Aa", "BB", "C", "BB"):
            fill(cluster, Q0, 1, tag)
        consumer.assign([Q0], tags="Aa || C")
        assert [m.tags for m in await drain(consumer, 2)] == ["Aa", "C"]
        assert consumer.position(Q0) == 4
        pull = await cluster.brokers[0].received(RequestCode.PULL_MESSAGE)
        assert (pull.ext["subscription"], pull.ext["expressionType"]) == ("Aa || C", "TAG")
        # It shares with nobody, and so it is no member of its group.
        heartbeat = loads((await cluster.brokers[0].received(RequestCode.HEART_BEAT)).body)
        assert heartbeat["consumerDataSet"] == []
        with pytest.raises(ValueError, match="has no tag"):
            consumer.assign([Q0], tags="||")


async def test_assigning_anew_keeps_the_queues_that_stay() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 3)
        consumer.assign([Q0])
        await drain(consumer, 3)
        consumer.assign([Q0, Q1])
        assert consumer.position(Q0) == 3
        consumer.assign([Q1])
        assert consumer.assigned == (Q1,)


async def test_expired_offset_moves_on_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 10)
        cluster.brokers[0].min_offset = 8
        consumer.assign([Q0])
        consumer.seek(Q0, 2)
        with caplog.at_level(logging.WARNING):
            assert [m.queue_offset for m in await drain(consumer, 2)] == [8, 9]
        assert "no message at this offset" in caplog.text


async def test_unreachable_broker_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motelog.bridge.reader.RETRY_S", 0.05)
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 3)
        address, cluster.brokers[0].address = cluster.brokers[0].address, "127.0.0.1:1"
        consumer.assign([Q0])
        assert await consumer.poll(timeout_s=0.2) == []
        cluster.brokers[0].address = address
        assert len(await drain(consumer, 3)) == 3


async def test_refusal_for_good_is_raised_by_poll_once() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        cluster.brokers[0].script = lambda request: (
            request.answer(ResponseCode.NO_PERMISSION, "not for you")
            if request.code == RequestCode.PULL_MESSAGE
            else None
        )
        consumer.assign([Q0])
        with pytest.raises(BrokerError, match="not for you"):
            await consumer.poll(timeout_s=5)
        assert await consumer.poll(timeout_s=0.05) == []
        cluster.brokers[0].script = lambda request: None
        fill(cluster, Q0, 1)
        consumer.seek(Q0, 0)
        assert len(await drain(consumer, 1)) == 1


async def test_damaged_records_are_raised_by_poll() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 1)
        cluster.brokers[0].records["T", 0] = [b"\0\0\0\x10garbage!"]
        consumer.assign([Q0])
        with pytest.raises(RecordError):
            await consumer.poll(timeout_s=5)


async def test_a_body_that_does_not_inflate_does_not_hold_up_the_queue() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        broker = cluster.brokers[0]
        broker.store("T", 0, zlib.compress(b"fine"), sys_flag=0x1)
        broker.store("T", 0, b"\x28\xb5\x2f\xfd by a Java producer", sys_flag=0x1 | 0x200)
        broker.store("T", 0, b"next")
        consumer.assign([Q0])
        consumer.seek(Q0, 0)
        messages = await drain(consumer, 3)
        assert [message.is_compressed for message in messages] == [False, True, False]
        assert messages[1].body == b"\x28\xb5\x2f\xfd by a Java producer"
        await consumer.commit()
        assert await consumer.committed(Q0) == 3


async def test_topic_that_does_not_exist_is_reported() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(RouteError, match="'Nowhere' does not exist"):
            await consumer.queues("Nowhere")
        consumer.assign([MessageQueue("Nowhere", "a", 0)])
        with pytest.raises(RouteError, match="Nowhere"):
            await consumer.poll(timeout_s=5)


async def test_topics_are_those_that_users_have(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        for topic in ("b", "a"):
            stack.broker.api.create_topic(topic, 1)
        async with PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
            for topic in ("a", "b"):
                await consumer.queues(topic)
            assert await consumer.topics() == ["a", "b"]


async def test_raw_pull_gives_the_answer_as_it_is() -> None:
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 5)
        found = await consumer.pull(Q0, 1, count_max=2)
        assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 3, 5)
        assert found.records == b"".join(cluster.brokers[0].records["T", 0][1:3])
        assert [m.body for m in found.messages()] == [b"1", b"2"]
        empty = await consumer.pull(Q0, 5, hold_s=0.05)
        assert (empty.status, empty.next_offset, empty.records) == (
            PullStatus.NO_NEW_MESSAGE,
            5,
            b"",
        )
        assert consumer.assigned == ()


async def test_offsets_are_asked_for_all_queues_at_once() -> None:
    async with fake_cluster("a", "b") as cluster, consumer_of(cluster) as consumer:
        fill(cluster, Q0, 5)
        queues = await consumer.queues("T")
        ends = await consumer.end_offsets(queues)
        assert list(ends) == list(queues)
        assert ends[Q0] == 5
        assert set((await consumer.begin_offsets(queues)).values()) == {0}
        for broker in cluster.brokers:
            broker.script = lambda request: (
                request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not here")
                if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
                else None
            )
        with pytest.raises(BrokerError) as caught:
            await consumer.offsets_for_time(queues, 0)
        assert caught.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize("value", [None, "x", "9" * 100])
async def test_answer_without_its_numbers_is_an_error(value: str | None) -> None:
    def script(request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.GET_MAX_OFFSET:
            return None
        return request.answer(ext={} if value is None else {"offset": value})

    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        cluster.brokers[0].script = script
        with pytest.raises(Exception, match="field offset"):
            await consumer.end_offsets([Q0])


async def test_slaves_are_told_of_consumers_and_not_of_producers(nursery: trio.Nursery) -> None:
    slave = FakeBroker("a")
    slave.address = await serve(nursery, slave.answer)
    async with fake_cluster("a") as cluster:
        cluster.slaves["a"] = slave.address
        async with Producer(namesrv=cluster.namesrv) as producer:
            await producer.send(Message("T", b""))
            await cluster.brokers[0].received(RequestCode.HEART_BEAT)
        assert slave.requests == []
        async with consumer_of(cluster) as consumer:
            consumer.subscribe("T")
            assert loads((await slave.received(RequestCode.HEART_BEAT)).body)["consumerDataSet"]
    nursery.cancel_scope.cancel()


async def test_offsets_go_to_the_master_as_soon_as_it_is_there_again(
    nursery: trio.Nursery,
) -> None:
    slave = FakeBroker("a")
    slave.address = await serve(nursery, slave.answer)
    async with fake_cluster("a") as cluster, consumer_of(cluster) as consumer:
        (master,) = cluster.brokers
        cluster.slaves["a"] = slave.address
        cluster.has_masters = False
        await consumer.commit({Q0: 5})
        assert (slave.committed, master.committed) == ({("G", "T", 0): 5}, {})
        cluster.has_masters = True
        await consumer.commit({Q0: 7, Q1: 3})
        assert master.committed == {("G", "T", 0): 7, ("G", "T", 1): 3}
        assert slave.committed == {("G", "T", 0): 5}
    nursery.cancel_scope.cancel()


async def test_what_is_handed_out_is_traced(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with Producer(namesrv=namesrv) as producer:
            sent = await producer.send(Message("T", b"x", keys=("k",)))
        with trio.fail_after(60):
            async with PullConsumer(namesrv=namesrv, group="L", trace=True) as consumer:
                consumer.assign(await consumer.queues("T", wait_s=30))
                while not await consumer.poll(timeout_s=30):
                    pass
            async with Admin(namesrv=namesrv) as admin:
                told: list[TraceRecord] = []
                while len(told) < 2:
                    # The first trace makes its topic, which the name server hears of later.
                    with suppress(RouteError):
                        told = await admin.trace(sent.message_id)
                    await trio.sleep(0.05)
    assert [(one.kind, one.group) for one in told] == [
        (TraceKind.SUB_BEFORE, "L"),
        (TraceKind.SUB_AFTER, "L"),
    ]
    assert told[0].keys == ("k",)
    assert told[1].is_ok
    assert told[1].context_code is ContextCode.SUCCESS
