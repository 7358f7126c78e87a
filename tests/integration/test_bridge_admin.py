"""What an operator does with Admin, on our servers; test_apache_rocketmq has Apache's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin, ResetTo
from motelog.bridge.admin_answers import Replication
from motelog.bridge.errors import ClientError, NoNameServerError, RouteError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.sync import SyncAdmin
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.addresses import parse_address
from motelog.core.errors import BrokerError
from motelog.core.message import Message, encode_host, encode_offset_id
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from motelog.core.topic_names import TRANS_CHECK_MAX_TOPIC
from tests.support.admin_check import administer
from tests.support.broker_stack import (
    Stack,
    connected,
    eventually,
    joined,
    pull_ext,
    routed,
    started_stack,
)


async def test_an_operator_s_calls(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await administer(stack.namesrv_address)


async def test_a_topic_is_closed_to_a_group_and_opened_again(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with (
            Admin(namesrv=namesrv) as admin,
            Producer(namesrv=namesrv) as producer,
            PullConsumer(namesrv=namesrv, group="G") as consumer,
        ):
            queue = (await producer.send(Message("T", b"x"))).queue
            await admin.put_group("G")
            await consumer.queues("T", wait_s=10)
            await admin.close_topic("T", "G")
            with pytest.raises(BrokerError) as refused:
                await consumer.pull(queue, 0)
            assert refused.value.code == ResponseCode.NO_PERMISSION
            await admin.close_topic("T", "G", is_closed=False)
            assert (await consumer.pull(queue, 0)).messages()


async def test_a_topic_is_made_smaller_without_leaving_messages_behind(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with Admin(namesrv=namesrv) as admin, PullConsumer(namesrv=namesrv) as consumer:
            await admin.put_topic("T", queues=4)
            await routed(stack, "T")
            async with Producer(namesrv=namesrv) as producer:
                for queue in await producer.queues("T"):
                    await producer.send(Message("T", b""), queue=queue)
            await trio.to_thread.run_sync(_lower_write_queues, namesrv)
            (settings,) = await admin.topic("T")
            assert (settings.read_queues, settings.write_queues) == (4, 1)
            await eventually(lambda: _write_queues(stack) == [1])
            async with Producer(namesrv=namesrv) as producer:
                assert [queue.queue_id for queue in await producer.queues("T")] == [0]
            queues = await consumer.queues("T")
            assert len(await consumer.end_offsets(queues)) == 4
            consumer.assign(queues)
            read: list[StoredMessage] = []
            with trio.fail_after(20):
                while len(read) < 4:
                    read += await consumer.poll()
            assert {message.queue_id for message in read} == {0, 1, 2, 3}


def _write_queues(stack: Stack) -> list[int]:
    """Return as many as producers are told of, of each broker."""
    route = stack.namesrv.routes.route("T")
    return [] if route is None else [queues.write_queue_nums for queues in route.queues]


def _lower_write_queues(namesrv: str) -> None:
    with SyncAdmin(namesrv=namesrv) as admin:
        admin.put_topic("T", queues=4, write_queues=1)


async def test_times_are_seconds_or_dates(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, Admin(namesrv=stack.namesrv_address) as admin:
        async with Producer(namesrv=stack.namesrv_address) as producer:
            sent = await producer.send(Message("T", b""))
        await admin.put_group("G")
        (queue,) = [sent.queue]
        cases: list[tuple[ResetTo, int]] = [
            (0, 0), (datetime(2020, 1, 1, tzinfo=UTC), 0), ("first", 0), ("last", 1), (4e9, 1),
        ]  # fmt: skip
        for to, offset in cases:
            assert (await admin.reset_offsets("G", "T", to))[queue] == offset
        wrongs: list[ResetTo] = ["yesterday", -1, float("nan")]
        for wrong in wrongs:
            with pytest.raises(ValueError, match="'first', 'last' or a time"):
                await admin.reset_offsets("G", "T", wrong)


async def test_a_name_server_that_is_away_is_named_and_the_others_are_told(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with started_stack(tmp_path) as stack:
        both = f"127.0.0.1:1;{stack.namesrv_address}"
        async with Admin(namesrv=both) as admin:
            with pytest.raises(NoNameServerError, match=r"not every name server .* 127.0.0.1:1"):
                await admin.put_value("n", "k", "v")
            assert await admin.value("n", "k") == "v"


async def test_without_a_broker_the_name_server_is_not_enough(nursery: trio.Nursery) -> None:

    server = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
    await nursery.start(server.run)
    async with Admin(namesrv=joined(server.address)) as admin:
        assert await admin.brokers() == []
        with pytest.raises(ClientError, match="is one running"):
            await admin.put_topic("T")
    nursery.cancel_scope.cancel()


async def test_only_ordered_topics_are_looked_at_where_that_is_asked(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with Admin(namesrv=namesrv) as admin:
            await admin.put_group("G")
            for topic in ("Ordered", "Other"):
                await admin.put_topic(topic, queues=1, is_ordered=topic == "Ordered")
                await admin.reset_offsets("G", topic, "first")
            for only_ordered, topics in ((True, ["Ordered"]), (False, ["Ordered", "Other"])):
                found = (await admin.progress_of_all(only_ordered=only_ordered))["G"]
                assert [one.queue.topic for one in found] == topics


async def test_producers_are_asked_again_about_a_transaction_that_was_given_up(
    tmp_path: Path,
) -> None:
    asked = 0

    async def check(_: StoredMessage) -> TransactionState:
        nonlocal asked
        asked += 1
        return TransactionState.COMMIT if asked > 1 else TransactionState.UNKNOWN

    async def not_yet(_: Message) -> TransactionState:
        return TransactionState.UNKNOWN

    often: dict[str, Any] = {"transaction_timeout_s": 0.1, "transaction_check_interval_s": 0.1}
    async with started_stack(tmp_path, transaction_check_max=1, **often) as stack:
        namesrv = stack.namesrv_address
        async with (
            Admin(namesrv=namesrv) as admin,
            TransactionProducer(check, namesrv=namesrv) as producer,
        ):
            result = await producer.send_in_transaction(Message("T", b"x"), not_yet)

            topics = stack.broker.tables.topics
            await eventually(lambda: topics.get(TRANS_CHECK_MAX_TOPIC) is not None)
            assert asked == 1
            await admin.check_transaction(result.sent.offset_id)
            await eventually(lambda: asked > 1)
            assert asked == 2


async def test_dead_letters_are_sent_again_once_each(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with (
            Admin(namesrv=namesrv) as admin,
            Producer(namesrv=namesrv) as producer,
            connected(stack.broker_address) as peer,
        ):
            with pytest.raises(RouteError, match="no readable dead letters of a group 'G'"):
                await admin.resend_dead_letters("G")
            for topic in ("T", "%RETRY%G", "%DLQ%G"):
                await admin.put_topic(topic, queues=1)
            await admin.put_topic("%DLQ%Old", queues=1, permission=2)
            await routed(stack, "%DLQ%Old")
            with pytest.raises(RouteError, match="topic %DLQ%Old must first be made readable"):
                await admin.resend_dead_letters("Old")
            await admin.put_group("G")

            async def stored(topic: str) -> list[StoredMessage]:
                answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, 0))
                return decode_messages(answer.body)

            async def die(*bodies: bytes) -> None:
                for body in bodies:
                    await producer.send(Message("T", body, tags="blue"))
                    last = (await stored("T"))[-1]
                    ext = {"offset": last.physical_offset, "group": "G", "delayLevel": -1}
                    back = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
                    assert back.code == ResponseCode.SUCCESS

            await die(b"1", b"2", b"3")
            began = trio.current_time()
            assert await admin.resend_dead_letters("G", count_max=2, per_second=10) == 2
            assert trio.current_time() - began >= 0.1
            assert await admin.resend_dead_letters("G") == 1
            assert await admin.resend_dead_letters("G") == 0
            again = await stored("%RETRY%G")
            assert [one.body for one in again] == [b"1", b"2", b"3"]
            assert {(one.tags, one.properties["RETRY_TOPIC"]) for one in again} == {("blue", "T")}
            assert {one.reconsume_times for one in again} == {0}
            await die(b"4")
            assert await admin.resend_dead_letters("G", to_all_groups=True) == 1
            first, *_, last = await stored("T")
            assert (first.body, last.body, last.tags) == (b"1", b"4", "blue")
            assert last.properties.keys() == first.properties.keys()
            with pytest.raises(ValueError, match="per_second"):
                await admin.resend_dead_letters("G", per_second=0)


async def test_what_could_not_be_sent_again_is_left_for_the_next_call(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        namesrv = stack.namesrv_address
        async with Admin(namesrv=namesrv) as admin, Producer(namesrv=namesrv) as producer:
            await admin.put_group("G")
            for topic in ("T", "U", "%DLQ%G"):
                await admin.put_topic(topic, queues=1)
            for topic in ("T", "U", "T"):
                pairs = {"RETRY_TOPIC": topic}
                await producer.send(Message("%DLQ%G", topic.encode(), properties=pairs))
            await admin.put_topic("U", queues=1, permission=4)
            with pytest.raises((BrokerError, RouteError)):
                await admin.resend_dead_letters("G", to_all_groups=True)
            await admin.put_topic("U", queues=1)
            assert await admin.resend_dead_letters("G", to_all_groups=True) == 2
            ends = [(await admin.topic_stats(topic))[0].end_offset for topic in ("T", "U")]
            assert ends == [2, 1]


async def test_an_operator_s_calls_from_a_plain_thread(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:

        def operate() -> None:
            with SyncAdmin(namesrv=stack.namesrv_address) as admin:
                (broker,) = admin.brokers()
                admin.put_topic("T", queues=2, brokers=[broker.name])
                (topic,) = admin.topic("T")
                assert (topic.read_queues, topic.write_queues) == (2, 2)
                admin.put_group("G", {"retryMaxTimes": 3})
                assert admin.groups()["G"]["retryMaxTimes"] == 3
                assert [len(admin.topic_stats("T")), admin.consumers("G")] == [2, []]
                assert set(admin.reset_offsets("G", "T", "last").values()) == {0}
                assert {one.lag for one in admin.progress("G", "T")} == {0}
                assert admin.progress_of_all()["G"] == admin.progress("G", "T")
                assert [one.waiting_for_ms for one in admin.queue_times("G", "T")] == [0, 0]
                queues = [one.queue for one in admin.topic_stats("T")]
                assert admin.lowest_offsets("T") == dict.fromkeys(queues, 0)
                assert admin.queue_units(queues[0], 0, 1) == []
                assert admin.producer_groups() == {}
                assert admin.rates(broker.name, "BROKER_PUT_NUMS", broker.cluster).day.total == 0
                assert admin.replication(broker.name) == Replication(0, 0, ())
                admin.remove_expired_log(broker.name)
                admin.remove_expired_queues(broker.name)
                admin.remove_unused_queues(broker.name)
                nothing = encode_offset_id(encode_host(*parse_address(broker.address)), 0)
                with pytest.raises(BrokerError, match="no half message"):
                    admin.check_transaction(nothing)
                admin.put_value("N", "k", "v")
                assert admin.value("N", "k") == "v"
                admin.delete_topic("T")
                with pytest.raises(RouteError):
                    admin.topic("T")

        await trio.to_thread.run_sync(operate)
