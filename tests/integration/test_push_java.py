"""The push consumer with software that is not ours: one group with Java's members, at our broker
and at Apache's; retries and offsets at Apache's; RocketMQ's tools against a running consumer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.groups.allocation import average, consistent_hash
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage
from tests.support.java import DRIVER, OURS, VERSION_4, VERSION_5, ApacheServer, cluster, run_tool

pytestmark = pytest.mark.java

TIMEOUT_S = 60


async def send(namesrv: str, begin: int, end: int) -> None:
    async with Producer(namesrv=namesrv, timeout_s=TIMEOUT_S) as producer:
        queues = await producer.queues("T")
        for number in range(begin, end):
            queue = queues[number % len(queues)]
            await producer.send(Message("T", b"%d" % number), queue=queue)


async def until(is_true: Callable[[], bool]) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not is_true():  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(0.02)


def of_topic(consumer: PushConsumer) -> list[int]:
    return sorted(queue.queue_id for queue in consumer.assigned if queue.topic == "T")


@asynccontextmanager
async def running(
    namesrv: str, handle: Callable[[StoredMessage], Any], **options: Any
) -> AsyncIterator[PushConsumer]:
    async with (
        trio.open_nursery() as nursery,
        PushConsumer(namesrv=namesrv, group="G", hold_s=5, **options) as consumer,
    ):
        consumer.subscribe("T")
        nursery.start_soon(consumer.run, handle)
        yield consumer
        consumer.stop()


async def taken(order: str) -> list[tuple[int, int]]:
    """Return queue id and number of what the Java member has taken; ``order`` may be to leave."""
    lines = await DRIVER.run(VERSION_5, order, "-", "-", "-", "0")
    return [(int(queue_id), int(body)) for queue_id, _, body in lines]


async def committed(namesrv: str) -> int:
    async with PullConsumer(namesrv=namesrv, group="G") as consumer:
        queues = await consumer.queues("T", wait_s=20)
        return sum([await consumer.committed(queue) or 0 for queue in queues])


@pytest.mark.parametrize(
    ("server", "rule", "is_orderly"),
    [
        (OURS, "average", False),
        (OURS, "average", True),
        (VERSION_5, "hash", False),
        pytest.param(VERSION_4, "average", True, marks=pytest.mark.java_all),
        pytest.param(VERSION_5, "average", True, marks=pytest.mark.java_all),
    ],
)
async def test_one_group_with_java_s_members(
    tmp_path: Path, server: str, rule: str, is_orderly: bool
) -> None:
    seen: list[tuple[int, int]] = []

    async def handle(message: StoredMessage) -> None:
        seen.append((message.queue_id, int(message.body)))

    allocate = consistent_hash() if rule == "hash" else average
    async with cluster(server, tmp_path / "store") as namesrv:
        await send(namesrv, 0, 40)
        async with running(namesrv, handle, is_orderly=is_orderly, allocate=allocate) as consumer:
            await until(lambda: len(seen) == 40)
            assert of_topic(consumer) == [0, 1, 2, 3]
            mode = "joinorderly" if is_orderly else "join"
            await DRIVER.run(VERSION_5, mode, namesrv, "T", "G", "0", rule)
            if rule == "average":
                await until(lambda: len(of_topic(consumer)) == 2)
            else:
                await trio.sleep(3)  # the rule may leave this member all queues
            mine = of_topic(consumer)
            await send(namesrv, 40, 140)
            with trio.fail_after(TIMEOUT_S):
                java = await taken("taken")
                while {n for _, n in [*seen, *java]} < set(range(140)):
                    await trio.sleep(0.1)
                    java = await taken("taken")
            # Each queue has one owner, and all messages came to it.
            assert {queue_id for queue_id, n in java if n >= 40} == set(range(4)) - set(mine)
            later = Counter(n for _, n in [*seen, *java] if n >= 40)
            assert later == Counter(range(40, 140))
            # Java's member saves no offset of what it is still done with as it leaves: that may
            # come here once more.
            await taken("leave")
            await until(lambda: len(of_topic(consumer)) == 4)
            await send(namesrv, 140, 180)
            await until(lambda: {n for _, n in seen} >= set(range(140, 180)))
        assert await committed(namesrv) == 180
        if is_orderly:
            by_queue: defaultdict[int, list[int]] = defaultdict(list)
            for queue_id, number in seen:
                by_queue[queue_id].append(number)
            assert all(numbers == sorted(numbers) for numbers in by_queue.values())


@pytest.mark.java_all
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_apache_delivers_refused_messages_again_and_its_tools_ask(
    tmp_path: Path, version: str
) -> None:
    seen: list[tuple[str, bytes, int]] = []

    def handle(message: StoredMessage) -> None:
        seen.append((message.topic, message.body, message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 1:
            raise ValueError("on purpose")

    async with ApacheServer(version, tmp_path / "store") as apache:
        namesrv = apache.namesrv_address
        await send(namesrv, 0, 8)
        async with running(namesrv, handle) as consumer:
            await until(lambda: ("T", b"1", 1) in seen)
            assert len(seen) == 9
            to_namesrv = ("-n", namesrv, "-g", "G", "-i", consumer._client.client_id)
            shown = await run_tool(version, tmp_path / "home", "consumerStatus", *to_namesrv)
            assert "CONSUME_PASSIVELY" in shown
            assert "#Consumer RT&TPS#" in shown
            back = ("-n", namesrv, "-g", "G", "-t", "T", "-s", "1")
            shown = await run_tool(version, tmp_path / "home", "resetOffsetByTime", *back)
            await until(lambda: len(seen) >= 17)
            assert Counter(b for _, b, _ in seen)[b"3"] == 2, shown
        assert await committed(namesrv) == 8
