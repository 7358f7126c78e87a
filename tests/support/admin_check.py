"""What an operator's calls do, on our servers and on Apache's alike.

Owns: one check that holds both. Must not touch: how the servers are run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.admin_answers import QueueProgress, Rates
from motelog.bridge.errors import ClientError, RouteError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.core.errors import BrokerError
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage

T = TypeVar("T")

TOPIC = "admin_check"
GROUP = "admin_group"
COPY = "admin_copy"
ASKED = "admin_asked"
QUEUES = 2
WITHIN_S = 60.0


async def administer(namesrv: str, *, deletes: bool = True, resets_offline: bool = True) -> None:
    """Do what an operator does, and look at what comes of it.

    Apache's broker 5.3.3 cannot delete a topic unless its timer wheel is on, and 4.9 resets no
    group without members.
    """
    async with Admin(namesrv=namesrv) as admin:
        (broker,) = [one for one in await admin.brokers() if one.broker_id == 0]
        await _topics(admin, namesrv, broker.name)
        await _groups(admin, namesrv, resets_offline=resets_offline)
        await _brokers(admin, namesrv, broker.name)
        await _values(admin)
        if not deletes:
            return
        await admin.delete_topic(TOPIC)
        await _until(lambda: admin.topics(), lambda names: TOPIC not in names)
        with pytest.raises(RouteError):
            await admin.topic_stats(TOPIC)
        with pytest.raises(RouteError):
            await admin.delete_topic(TOPIC)


async def _topics(admin: Admin, namesrv: str, broker: str) -> None:
    await admin.put_topic(TOPIC, queues=QUEUES, brokers=[broker])
    await _until(lambda: admin.topics(), lambda names: TOPIC in names)
    assert TOPIC in await admin.topics(broker)
    with pytest.raises((BrokerError, ClientError), match="'none'"):
        await admin.topics("none")
    (settings,) = await admin.topic(TOPIC)
    assert (settings.broker_name, settings.read_queues, settings.write_queues) == (
        broker, QUEUES, QUEUES,
    )  # fmt: skip
    assert settings.permission == 6
    async with Producer(namesrv=namesrv) as producer:
        queues = await producer.queues(TOPIC)
        for number in range(20):
            await producer.send(Message(TOPIC, b"%d" % number), queue=queues[number % QUEUES])
        # Apache's broker acknowledges before its queues have the message.
        stats = await _until(
            lambda: admin.topic_stats(TOPIC),
            lambda found: sum(one.end_offset for one in found) == 20,
        )
        assert [(one.queue, one.begin_offset, one.end_offset) for one in stats] == [
            (queue, 0, 10) for queue in queues
        ]
        assert all(abs(one.last_ms / 1000 - time.time()) < WITHIN_S for one in stats)
        (sender,) = await admin.producers("motelog")
        assert (await admin.producer_groups())["motelog"] == [sender]
    assert await admin.producers("nobody") == []
    await _units(admin, queues[1])
    with pytest.raises(ClientError, match="broker 'none' has no master"):
        await admin.put_topic("other", brokers=["none"])
    with pytest.raises(BrokerError, match=r"from 127\.0\.0\.1:"):
        await admin.put_topic("no/name")


async def _units(admin: Admin, queue: MessageQueue) -> None:
    """The units of a queue say where its messages are; behind its end there are none."""
    units = await admin.queue_units(queue, 4, 3)
    assert [one.offset for one in units] == [4, 5, 6]
    assert [one.tag_hash for one in units] == [0, 0, 0]
    assert units[0].physical_offset < units[1].physical_offset < units[2].physical_offset
    assert all(one.size_bytes > len(queue.topic) for one in units)
    assert await admin.queue_units(queue, 10, 3) == []
    with pytest.raises(ClientError, match="no master of broker 'none' has"):
        await admin.queue_units(MessageQueue(queue.topic, "none", 0), 0)


async def _groups(admin: Admin, namesrv: str, *, resets_offline: bool) -> None:
    await admin.put_group(GROUP, {"retryMaxTimes": 3})
    assert (await admin.groups())[GROUP]["retryMaxTimes"] == 3
    assert await admin.consumers(GROUP) == []
    middle = 0.0
    async with PullConsumer(namesrv=namesrv, group=GROUP) as consumer:
        queues = await consumer.queues(TOPIC)
        consumer.subscribe(TOPIC)
        await _until(lambda: admin.consumers(GROUP), bool)
        (member,) = await admin.consumers(GROUP)
        assert member.language == "PYTHON"
        got: list[StoredMessage] = []
        with trio.fail_after(WITHIN_S):
            while len(got) < 20:
                got += await consumer.poll()
        middle = sorted(message.store_timestamp_ms for message in got)[10] / 1000
        await consumer.commit()
    progress = await admin.progress(GROUP, TOPIC)
    assert [(one.queue, one.end_offset, one.committed_offset, one.lag) for one in progress] == [
        (queue, 10, 10, 0) for queue in queues
    ]
    assert GROUP in await admin.groups_of(TOPIC)
    await _until(lambda: admin.consumers(GROUP), lambda members: not members)
    every = await admin.progress_of_all()
    assert [one for one in every[GROUP] if one.queue.topic == TOPIC] == progress
    assert not any(await _ordered_alone(admin))
    for times in await admin.queue_times(GROUP, TOPIC):
        assert times.queue in queues
        assert 0 < times.first_ms <= times.last_ms == times.consumed_ms
        assert times.waiting_for_ms == 0
    await admin.clone_offsets(GROUP, COPY, TOPIC)
    assert await _committed(admin, COPY) == dict.fromkeys(queues, 10)
    assert await admin.lowest_offsets(TOPIC) == dict.fromkeys(queues, 10)
    if resets_offline:
        await _resets(admin, queues, middle)
    else:
        with pytest.raises(BrokerError, match="not online"):
            await admin.reset_offsets(GROUP, TOPIC, "first")
    await _asks_members(admin, namesrv, has_pop=resets_offline)
    await admin.delete_group(GROUP)
    assert GROUP not in await admin.groups()


async def _ordered_alone(admin: Admin) -> list[QueueProgress]:
    found = await admin.progress_of_all(only_ordered=True)
    return [one for queues in found.values() for one in queues if one.queue.topic == TOPIC]


async def _asks_members(admin: Admin, namesrv: str, has_pop: bool) -> None:
    """Ask a running member how far it is, and give it one message once more."""
    handled: list[bytes] = []
    async with (
        trio.open_nursery() as nursery,
        PushConsumer(namesrv=namesrv, group=ASKED, hold_s=1) as consumer,
    ):
        consumer.subscribe(TOPIC)
        nursery.start_soon(consumer.run, lambda message: handled.append(message.body))
        with trio.fail_after(WITHIN_S):
            while len(handled) < 20:  # noqa: ASYNC110  # no event
                await trio.sleep(0.05)
        member = consumer._client.client_id
        offsets = (await admin.member_offsets(TOPIC, ASKED))[member]
        assert sum(offsets.values()) == 20
        async with PullConsumer(namesrv=namesrv, group=COPY) as reader:
            (first, *_) = (await reader.pull(next(iter(offsets)), 0)).messages()
        told = await admin.consume_directly(ASKED, member, first.offset_id)
        assert told["consumeResult"] == "CR_SUCCESS"
        assert handled[20:] == [first.body]
        consumer.stop()
    with pytest.raises(BrokerError):
        await admin.member_offsets(TOPIC, ASKED)
    if has_pop:
        await admin.set_request_mode(TOPIC, ASKED, by_pop=True, shared_queues=2)
        await admin.set_request_mode(TOPIC, ASKED, by_pop=False)
    await admin.delete_group(ASKED)


async def _resets(admin: Admin, queues: tuple[MessageQueue, ...], middle: float) -> None:
    assert await admin.reset_offsets(GROUP, TOPIC, "first") == dict.fromkeys(queues, 0)
    assert await _committed(admin, GROUP) == dict.fromkeys(queues, 0)
    assert await admin.lowest_offsets(TOPIC) == dict.fromkeys(queues, 0)
    assert all(one.waiting_for_ms > 0 for one in await admin.queue_times(GROUP, TOPIC))
    reset = await admin.reset_offsets(GROUP, TOPIC, middle)
    assert reset.keys() == set(queues)
    assert 0 < sum(reset.values()) < 20
    assert await _committed(admin, GROUP) == reset
    assert await admin.reset_offsets(GROUP, TOPIC, "last") == dict.fromkeys(queues, 10)
    assert await _committed(admin, COPY) == dict.fromkeys(queues, 10)


async def _committed(admin: Admin, group: str) -> dict[MessageQueue, int]:
    return {one.queue: one.committed_offset for one in await admin.progress(group, TOPIC)}


async def _brokers(admin: Admin, namesrv: str, broker: str) -> None:
    assert "putTps" in await admin.broker_status(broker)
    config = await admin.broker_config(broker)
    assert config["brokerName"] == broker
    await _upkeep(admin, broker, config["brokerClusterName"])
    await admin.set_broker_config(broker, {"autoCreateTopicEnable": "false"})
    assert (await admin.broker_config(broker))["autoCreateTopicEnable"] == "false"
    async with Producer(namesrv=namesrv) as producer:
        assert await admin.stop_writes(broker) > 0
        with pytest.raises(RouteError):
            await producer.queues(TOPIC)
        assert await admin.allow_writes(broker) > 0
        assert len(await producer.queues(TOPIC)) == QUEUES


async def _upkeep(admin: Admin, broker: str, cluster: str) -> None:
    """What is removed has expired; nothing of this check has."""
    before = await admin.topic_stats(TOPIC)
    await admin.remove_expired_log(broker)
    await admin.remove_expired_queues(broker)
    await admin.remove_unused_queues(broker)
    assert await admin.topic_stats(TOPIC) == before

    # What came before a counter's first sample is not in its sums. The minute is sampled each ten
    # seconds, the day each hour.
    rates = await _until(lambda: _rates_if_any(admin, broker), lambda found: found is not None)
    assert rates is not None
    assert 0 <= rates.minute.total <= 20
    assert 0 <= rates.day.total <= 20
    assert (await admin.rates(broker, "BROKER_PUT_NUMS", cluster)).minute.per_second >= 0
    with pytest.raises(BrokerError, match="NONE"):
        await admin.rates(broker, "NONE", TOPIC)


async def _rates_if_any(admin: Admin, broker: str) -> Rates | None:
    try:
        return await admin.rates(broker, "TOPIC_PUT_NUMS", TOPIC)
    except BrokerError:
        return None


async def _values(admin: Admin) -> None:
    assert await admin.value("ORDER_TOPIC_CONFIG", TOPIC) is None
    await admin.put_value("ORDER_TOPIC_CONFIG", TOPIC, "broker-a:2")
    assert await admin.value("ORDER_TOPIC_CONFIG", TOPIC) == "broker-a:2"
    await admin.delete_value("ORDER_TOPIC_CONFIG", TOPIC)
    assert await admin.value("ORDER_TOPIC_CONFIG", TOPIC) is None


async def _until(ask: Callable[[], Awaitable[T]], is_right: Callable[[T], bool]) -> T:
    """Return what is wanted when the servers, which say nothing of themselves, answer it."""
    with trio.fail_after(WITHIN_S):
        while not is_right(answer := await ask()):  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(0.2)
        return answer
