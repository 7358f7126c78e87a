"""The asyncio door: the same calls from tasks of a loop, many at once, cancelled, closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import trio

from motelog.bridge.asyncio import AsyncioProducer, AsyncioPullConsumer
from motelog.bridge.errors import ClientClosedError, RouteError
from motelog.core.message import Message
from tests.integration.test_bridge_sync import cluster_in_thread
from tests.support.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_in_thread() as cluster:
        yield cluster


def test_messages_go_out_and_come_back(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioProducer(namesrv=cluster.namesrv) as producer:
            sent = [await producer.send(Message("T", b"%d" % i)) for i in range(5)]
            batch = [Message("T", b"5"), Message("T", b"6")]
            assert (await producer.send_batch(batch, queue=sent[0].queue)).queue == sent[0].queue
            assert len(await producer.queues("T")) == 2
        async with AsyncioPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
            queues = await consumer.queues("T")
            await consumer.assign(queues)
            bodies: list[bytes] = []
            while len(bodies) < 7:
                bodies += [message.body for message in await consumer.poll(timeout_s=5)]
            assert sorted(bodies) == [b"%d" % i for i in range(7)]
            await consumer.commit()
            ends = await consumer.end_offsets(queues)
            assert {queue: await consumer.committed(queue) for queue in queues} == ends
            assert {queue: await consumer.position(queue) for queue in queues} == ends
            await consumer.seek(queues[0], 1)
            assert (await consumer.poll(timeout_s=5))[0].queue_offset == 1
            await consumer.seek_to_begin()
            assert (await consumer.poll(timeout_s=5))[0].queue_offset == 0
            await consumer.seek_to_end()
            assert await consumer.poll(timeout_s=0.1) == []
            assert set((await consumer.begin_offsets(queues)).values()) == {0}

    asyncio.run(main())


def test_many_tasks_send_at_once(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioProducer(namesrv=cluster.namesrv) as producer:
            sends = (producer.send(Message("T", b"%d" % i)) for i in range(200))
            results = await asyncio.gather(*sends)
        assert len({(result.queue, result.queue_offset) for result in results}) == 200

    asyncio.run(main())


def test_loop_hands_out_one_by_one_and_commits_what_it_came_to(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioProducer(namesrv=cluster.namesrv) as producer:
            queue = (await producer.queues("T"))[0]
            for i in range(5):
                await producer.send(Message("T", b"%d" % i), queue=queue)
        async with AsyncioPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
            await consumer.assign([queue])
            async for message in consumer:
                if message.body == b"2":
                    await consumer.commit()
                    break
            assert await consumer.committed(queue) == await consumer.position(queue) == 3
            with pytest.raises(ValueError, match="count_max"):
                await consumer.poll(count_max=0)
            assert [one.body for one in await consumer.poll(timeout_s=5)] == [b"3", b"4"]

    asyncio.run(main())


def test_cancelled_poll_loses_nothing(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioProducer(namesrv=cluster.namesrv) as producer:
            queue = (await producer.queues("T"))[0]
            async with AsyncioPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
                await consumer.assign([queue])
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(consumer.poll(timeout_s=60), 0.1)
                for i in range(5):
                    await producer.send(Message("T", b"%d" % i), queue=queue)
                poll = asyncio.ensure_future(consumer.poll(timeout_s=60, count_max=2))
                await asyncio.sleep(0)
                # The thread takes the messages while this loop stands still.
                time.sleep(0.3)  # noqa: ASYNC251
                poll.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await poll
                assert await consumer.position(queue) == 0
                bodies: list[bytes] = []
                while len(bodies) < 5:
                    bodies += [one.body for one in await consumer.poll(timeout_s=5)]
                assert bodies == [b"%d" % i for i in range(5)]

    asyncio.run(main())


def test_cancelled_call_has_ended_in_the_thread(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()

            async def wait() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    loop.call_soon_threadsafe(ended.set)

            call = asyncio.ensure_future(consumer._call(wait))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert ended.is_set()

    asyncio.run(main())


def test_errors_come_out_as_they_are(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioProducer(namesrv=cluster.namesrv) as producer:
            with pytest.raises(RouteError, match="Nowhere"):
                await producer.send(Message("Nowhere", b""))
        with pytest.raises(ClientClosedError):
            await producer.send(Message("T", b""))
        with pytest.raises(ClientClosedError, match="async with"):
            await AsyncioProducer(namesrv=cluster.namesrv).queues("T")

    asyncio.run(main())


def test_closing_ends_the_calls_that_run(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncioPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
            await consumer.assign(await consumer.queues("T"))
            poll = asyncio.ensure_future(consumer.poll(timeout_s=60))
            await asyncio.sleep(0.05)
        with pytest.raises(ClientClosedError, match="closed"):
            await poll

    asyncio.run(main())
