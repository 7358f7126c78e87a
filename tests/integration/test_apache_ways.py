"""Ways of our clients that other tests do not use with Apache's brokers, 4.9 and 5.3."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.errors import RouteError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.push.offsets import FileOffsets
from motelog.core.message import DELAY, Message
from motelog.core.records.decode import StoredMessage
from tests.support.java import VERSION_4, VERSION_5, ApacheServer

pytestmark = [pytest.mark.java, pytest.mark.java_all]

WITHIN_S = 90
KEYS, COUNT, QUEUES = ("a", "b", "c"), 5, 4
# A first retry waits for the third level; the tools of release 5.3 may recall.
SETTINGS = {"messageDelayLevel": "1s 1s 1s 1s", "recallMessageEnable": "true"}


async def until(is_true: Callable[[], bool]) -> None:
    with trio.fail_after(WITHIN_S):
        while not is_true():  # noqa: ASYNC110  # another process gives no event
            await trio.sleep(0.05)


@asynccontextmanager
async def pushed(
    namesrv: str, topic: str, handle: Callable[[StoredMessage], Any], **options: Any
) -> AsyncIterator[PushConsumer]:
    async with (
        trio.open_nursery() as nursery,
        PushConsumer(namesrv=namesrv, hold_s=2, **options) as consumer,
    ):
        consumer.subscribe(topic)
        nursery.start_soon(consumer.run, handle)
        yield consumer
        consumer.stop()


@asynccontextmanager
async def apache_with(
    version: str, folder: Path, topics: Iterable[str]
) -> AsyncIterator[tuple[str, Producer]]:
    """Run Apache's servers with these topics; yield the name server and a producer."""
    server = ApacheServer(
        version, folder / "store", settings=SETTINGS, has_timer=version == VERSION_5
    )
    async with server as apache, Producer(namesrv=apache.namesrv_address, timeout_s=10) as producer:
        namesrv = apache.namesrv_address
        async with Admin(namesrv=namesrv) as admin, PullConsumer(namesrv=namesrv) as consumer:
            for topic in topics:
                await admin.put_topic(topic, queues=QUEUES)
                await consumer.queues(topic, wait_s=WITHIN_S)
        yield namesrv, producer


@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_messages_of_a_key_come_in_order_and_one_way_and_late_ones_too(
    tmp_path: Path, version: str
) -> None:
    seen: list[StoredMessage] = []
    async with apache_with(version, tmp_path, ["Keys", "Plain"]) as (namesrv, producer):
        for number in range(COUNT):
            for key in KEYS:
                body = f"{key}{number}".encode()
                await producer.send(Message("Keys", body), hash_key=key)
        async with pushed(namesrv, "Keys", seen.append, group="O", is_orderly=True):
            await until(lambda: len(seen) == COUNT * len(KEYS))
        by_key: defaultdict[str, list[bytes]] = defaultdict(list)
        for message in seen:
            by_key[message.body.decode()[0]].append(message.body)
        assert by_key == {key: [f"{key}{n}".encode() for n in range(COUNT)] for key in KEYS}

        seen.clear()
        expected = {b"one way", b"level"}
        await producer.send_oneway(Message("Plain", b"one way"))
        await producer.send(Message("Plain", b"level", properties={DELAY: "1"}))
        if version == VERSION_5:
            await producer.send(Message("Plain", b"later"), delay=1)
            expected.add(b"later")
            # In time for it to be taken back by a busy machine.
            waits = await producer.send(Message("Plain", b"recalled"), delay=6)
            assert waits.recall_handle is not None
            assert await producer.recall(waits.recall_handle) == waits.message_id
        async with pushed(namesrv, "Plain", seen.append, group="P"):
            await until(lambda: {message.body for message in seen} == expected)
            if version == VERSION_5:
                await trio.sleep(7)
                assert {message.body for message in seen} == expected
        late = [message for message in seen if message.body != b"one way"]
        assert all(m.store_timestamp_ms - m.born_timestamp_ms >= 900 for m in late)


@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_members_of_a_broadcast_get_all_and_those_of_a_group_share(
    tmp_path: Path, version: str
) -> None:
    bodies = {b"%d" % number for number in range(20)}
    got: dict[str, list[bytes]] = {"first": [], "second": []}
    async with apache_with(version, tmp_path, ["T"]) as (namesrv, producer):
        for body in sorted(bodies):
            await producer.send(Message("T", body))

        def member(name: str) -> Any:
            def handle(message: StoredMessage) -> None:
                got[name].append(message.body)

            offsets = FileOffsets(tmp_path / name)
            return pushed(namesrv, "T", handle, group="B", broadcast=True, offsets=offsets)

        async with member("first"), member("second"):
            await until(lambda: all(len(some) == len(bodies) for some in got.values()))
        assert all(set(some) == bodies for some in got.values())

        options: dict[str, Any] = {"namesrv": namesrv, "group": "L", "hold_s": 2}
        async with PullConsumer(**options) as one, PullConsumer(**options) as other:
            found: set[bytes] = set()
            for consumer in (one, other):
                consumer.subscribe("T")
            await until(lambda: len(one.assigned) == len(other.assigned) == QUEUES // 2)
            assert not set(one.assigned) & set(other.assigned)
            with trio.fail_after(WITHIN_S):
                while found != bodies:
                    for consumer in (one, other):
                        found |= {m.body for m in await consumer.poll(timeout_s=0.5)}
            await one.commit()
            await other.commit()


@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_messages_that_are_refused_too_often_are_dead_letters(
    tmp_path: Path, version: str
) -> None:
    refused: list[tuple[bytes, int]] = []

    def refuse(message: StoredMessage) -> None:
        refused.append((message.body, message.reconsume_times))
        raise ValueError("on purpose")

    async with apache_with(version, tmp_path, ["Dead"]) as (namesrv, producer):
        bodies = [b"%d" % number for number in range(COUNT)]
        for body in bodies:
            await producer.send(Message("Dead", body))
        async with pushed(namesrv, "Dead", refuse, group="D", retries_max=1):
            await until(lambda: len(refused) == 2 * COUNT)
            with trio.fail_after(WITHIN_S):
                while await dead_letter_count(namesrv) < COUNT:  # noqa: ASYNC110  # no event
                    await trio.sleep(0.1)
        assert sorted(refused) == [(body, times) for body in bodies for times in (0, 1)]


async def dead_letter_count(namesrv: str) -> int:
    async with Admin(namesrv=namesrv) as admin:
        try:
            stats = await admin.topic_stats("%DLQ%D")
        except RouteError:
            return 0  # none has been made yet
        return sum(one.end_offset - one.begin_offset for one in stats)
