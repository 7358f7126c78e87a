"""Our consumers beside a master and a slave of Apache RocketMQ 5.3.3, with our name server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import RequestCode, dumps, loads
from tests.support.broker_stack import connected
from tests.support.java import VERSION_5, ApacheServer
from tests.support.namesrv_process import NamesrvProcess

pytestmark = [pytest.mark.java, pytest.mark.java_all]

TOPIC, GROUP, COUNT = "T", "G", 40
WITHIN_S = 60
#: A master sends all of its readers to the slave when nothing of the log counts as in memory.
SETTINGS = {
    "slaveReadEnable": "true",
    "accessMessageInMemoryMaxRatio": 0,
    "flushConsumerOffsetInterval": 200,
}
_KNOWN = {
    "topicName": TOPIC,
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
}


@asynccontextmanager
async def master_and_slave(folder: Path) -> AsyncIterator[tuple[str, ApacheServer, ApacheServer]]:
    """Yield the name server's address and both brokers, which know the topic."""
    for name in ("master", "slave"):
        # The slave would hear of it from its master once a minute.
        (folder / name / "config").mkdir(parents=True)
        table = {"topicConfigTable": {TOPIC: _KNOWN}, "dataVersion": {"counter": 1}}
        (folder / name / "config" / "topics.json").write_bytes(dumps(table))
    with NamesrvProcess() as namesrv:
        master = ApacheServer(
            VERSION_5, folder / "master", namesrv=namesrv.address, settings=SETTINGS
        )
        slave = ApacheServer(
            VERSION_5,
            folder / "slave",
            namesrv=namesrv.address,
            settings=SETTINGS,
            slave_of=master,
        )
        async with master, slave:
            yield namesrv.address, master, slave


@asynccontextmanager
async def pushed(namesrv: str, bodies: set[bytes]) -> AsyncIterator[PushConsumer]:
    def handle(message: StoredMessage) -> None:
        bodies.add(message.body)

    async with (
        trio.open_nursery() as nursery,
        PushConsumer(namesrv=namesrv, group=GROUP, hold_s=2) as consumer,
    ):
        consumer.subscribe(TOPIC)
        nursery.start_soon(consumer.run, handle)
        yield consumer
        consumer.stop()


async def send(producer: Producer, begin: int, end: int) -> set[bytes]:
    bodies = {b"%d" % number for number in range(begin, end)}
    for body in sorted(bodies):
        await producer.send(Message(TOPIC, body), timeout_s=WITHIN_S)
    return bodies


async def until(is_true: Callable[[], bool]) -> None:
    with trio.fail_after(WITHIN_S):
        while not is_true():  # noqa: ASYNC110  # other processes give no event
            await trio.sleep(0.05)


async def found_count(slave: ApacheServer) -> int:
    """Return how many messages a slave has given to consumers."""
    async with connected(slave.broker_address) as peer:
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(loads(answer.body)["table"]["msgGetTotalTodayNow"])


async def ends(address: str) -> int:
    """Return how many messages of the topic a broker has."""
    count = 0
    async with connected(address) as peer:
        for queue_id in range(4):
            ext = {"topic": TOPIC, "queueId": queue_id}
            answer = await peer.ask(RequestCode.GET_MAX_OFFSET, ext)
            count += int(answer.ext["offset"])
    return count


async def copied(master: ApacheServer, slave: ApacheServer) -> None:
    """Return when the slave has all messages of the topic."""
    with trio.fail_after(WITHIN_S):
        while await ends(slave.broker_address) < await ends(master.broker_address):  # noqa: ASYNC110  # no event
            await trio.sleep(0.05)


async def assert_reported(namesrv: str) -> None:
    """Assert that both say how far the copy is; the slave does not know its master's end."""
    async with Admin(namesrv=namesrv) as admin:
        name = (await admin.brokers())[0].name
        at_master = await admin.replication(name)
        at_slave = await admin.replication(name, broker_id=1)
    assert (len(at_master.replicas), at_master.copying) == (1, None)
    assert at_slave.end_offset == at_master.end_offset > 0
    copying = at_slave.copying
    assert copying is not None
    assert (copying.behind_bytes, copying.fault) == (None, None)
    assert copying.master_address
    assert copying.heard_ms > 1_600_000_000_000


async def test_consumers_read_from_the_slave_and_go_on_there_without_the_master(
    tmp_path: Path,
) -> None:
    async with master_and_slave(tmp_path) as (namesrv, master, slave):
        async with Producer(namesrv=namesrv, group="P") as producer:
            sent = await send(producer, 0, COUNT)
            await copied(master, slave)
            await assert_reported(namesrv)
            got: set[bytes] = set()
            async with pushed(namesrv, got) as consumer:
                await until(lambda: got >= sent)
                async with connected(slave.broker_address) as peer:
                    ext = {"consumerGroup": GROUP}
                    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
                # The slave knows the member by its heartbeats.
                assert loads(answer.body)["consumerIdList"] == [consumer._client.client_id]
                sent |= await send(producer, COUNT, 2 * COUNT)
                await until(lambda: got >= sent)
                assert await found_count(slave) > 0
            sent |= await send(producer, 2 * COUNT, 3 * COUNT)
            await copied(master, slave)
            master.kill()
            async with pushed(namesrv, got):
                await until(lambda: got >= sent)
                await master.start()
                sent |= await send(producer, 3 * COUNT, 4 * COUNT)
                await until(lambda: got >= sent)
        async with PullConsumer(namesrv=namesrv, group=GROUP) as consumer:
            queues = await consumer.queues(TOPIC)
            ended = await consumer.end_offsets(queues)
            assert {queue: await consumer.committed(queue) for queue in queues} == ended
