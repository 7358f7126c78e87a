"""The blocking facade: the same calls from plain threads, closing, forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import trio

from motelog.bridge.errors import (
    ClientClosedError,
    CommitFailedError,
    MessageRefusedError,
    RouteError,
)
from motelog.bridge.producer import SendResult
from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.message import Message, MessageQueue
from tests.support.fake_cluster import NO_ANSWER, FakeCluster, fake_cluster


@contextmanager
def cluster_in_thread() -> Iterator[FakeCluster]:
    """A fake cluster that runs in another thread's trio run."""
    ready = threading.Event()
    found: list[FakeCluster] = []
    ends: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        async with fake_cluster("a") as cluster:
            end = trio.Event()
            found.append(cluster)
            ends.append((trio.lowlevel.current_trio_token(), end))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    ready.wait(10)
    yield found[0]
    token, end = ends[0]
    token.run_sync_soon(end.set)
    thread.join(10)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_in_thread() as cluster:
        yield cluster


def test_messages_go_out_and_come_back(cluster: FakeCluster) -> None:
    with SyncProducer(namesrv=cluster.namesrv) as producer:
        sent = [producer.send(Message("T", b"%d" % i)) for i in range(5)]
        batch = producer.send_batch([Message("T", b"5"), Message("T", b"6")], queue=sent[0].queue)
        assert batch.queue == sent[0].queue
        assert len(producer.queues("T")) == 2
    with SyncPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
        queues = consumer.queues("T")
        consumer.assign(queues)
        assert consumer.assigned == queues
        bodies: list[bytes] = []
        while len(bodies) < 7:
            bodies += [message.body for message in consumer.poll(timeout_s=5)]
        assert sorted(bodies) == [b"%d" % i for i in range(7)]
        consumer.commit()
        ends = consumer.end_offsets(queues)
        assert {queue: consumer.committed(queue) for queue in queues} == ends
        assert {queue: consumer.position(queue) for queue in queues} == ends
        consumer.seek(queues[0], 1)
        assert consumer.poll(timeout_s=5)[0].queue_offset == 1
        consumer.seek_to_begin()
        assert consumer.poll(timeout_s=5)[0].queue_offset == 0
        consumer.seek_to_end()
        assert consumer.poll(timeout_s=0.1) == []
        assert set(consumer.begin_offsets(queues).values()) == {0}
        assert consumer.pull(queues[0], 0, count_max=1).messages()[0].queue_offset == 0


def test_loop_hands_out_one_by_one_and_commits_what_it_came_to(cluster: FakeCluster) -> None:
    with SyncProducer(namesrv=cluster.namesrv) as producer:
        first, second = producer.queues("T")
        for i in range(5):
            producer.send(Message("T", b"%d" % i), queue=first)
        producer.send(Message("T", b"x"), queue=second)
    with SyncPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
        consumer.assign([first])
        for message in consumer:
            if message.body == b"2":
                consumer.commit()
                break
        assert consumer.committed(first) == consumer.position(first) == 3
        assert [one.body for one in consumer.poll(timeout_s=5, count_max=1)] == [b"3"]
        # What the loop had taken and not come to is read again.
        consumer.assign([first, second])
        bodies: list[bytes] = []
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 2:
                break
        assert sorted(bodies) == [b"4", b"x"]
        consumer.seek(first, 1)
        assert next(consumer).body == b"1"
        consumer.commit()
        assert consumer.committed(first) == 2


def test_an_iterable_may_call_the_consumer(cluster: FakeCluster) -> None:
    with SyncPullConsumer(namesrv=cluster.namesrv, group="G") as consumer:
        queues = consumer.queues("T")
        unread = (queue for queue in queues if consumer.committed(queue) is None)
        assert consumer.begin_offsets(unread) == dict.fromkeys(queues, 0)


def test_commit_gives_up_in_its_time_and_says_where(cluster: FakeCluster) -> None:
    queue = MessageQueue("T", cluster.brokers[0].name, 0)
    address, cluster.brokers[0].address = cluster.brokers[0].address, "127.0.0.1:1"
    with SyncPullConsumer(namesrv=cluster.namesrv, group="away") as consumer:
        with pytest.raises(CommitFailedError, match="topic 'T', queues 0: "):
            consumer.commit({queue: 3}, timeout_s=0.2)
        cluster.brokers[0].address = address
        consumer.commit({queue: 3})
        assert consumer.committed(queue) == 3


def test_errors_come_out_as_they_are(cluster: FakeCluster) -> None:
    with SyncProducer(namesrv=cluster.namesrv) as producer:
        with pytest.raises(RouteError, match="Nowhere"):
            producer.send(Message("Nowhere", b""))
        producer.send(Message("T", b""))  # and it goes on working


def test_several_threads_share_one_producer(cluster: FakeCluster) -> None:
    with SyncProducer(namesrv=cluster.namesrv) as producer:
        ids: list[str] = []

        def send_some() -> None:
            ids.extend(producer.send(Message("T", b"")).message_id for _ in range(10))

        threads = [threading.Thread(target=send_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(set(ids)) == 40


def test_close_ends_a_call_in_another_thread_and_may_be_repeated(cluster: FakeCluster) -> None:
    consumer = SyncPullConsumer(namesrv=cluster.namesrv, group="G")
    polling = threading.Event()
    outcome: list[BaseException] = []

    def poll() -> None:
        polling.set()
        try:
            consumer.poll(timeout_s=60)
        except ClientClosedError as exc:
            outcome.append(exc)

    thread = threading.Thread(target=poll)
    thread.start()
    polling.wait(10)
    consumer.close()
    thread.join(10)
    assert len(outcome) == 1
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_bad_name_server_address_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        SyncProducer(namesrv="nowhere")


def test_object_from_before_a_fork_is_refused_in_the_child(cluster: FakeCluster) -> None:
    with SyncProducer(namesrv=cluster.namesrv) as producer:
        child = os.fork()
        if child == 0:
            try:
                producer.send(Message("T", b""))
            except ClientClosedError as exc:
                os._exit(0 if "fork" in str(exc) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send(Message("T", b""))


def test_a_send_that_was_started_has_a_future_and_calls_back(cluster: FakeCluster) -> None:
    told: list[str] = []

    def note(done: Future[SendResult]) -> None:
        told.append(done.result().queue.topic)

    with SyncProducer(namesrv=cluster.namesrv) as producer:
        sends = [
            producer.send_async(
                Message("T", b"%d" % i),
                callback=lambda done: told.append(done.result().queue.topic),
            )
            for i in range(20)
        ]
        offsets = [send.result(5).queue_offset for send in sends]
        failed = producer.send_async(Message("no such topic!", b""))
        with pytest.raises(MessageRefusedError):
            failed.result(5)
        producer.send_oneway(Message("T", b"oneway"))
        assert len(producer.send_batches([Message("T", b"1"), Message("T", b"2")])) == 1
    assert sorted(offsets) == sorted([*range(10), *range(10)])
    assert told == ["T"] * 20
    with pytest.raises(ClientClosedError):
        producer.send_async(Message("T", b""))


def test_closing_ends_the_sends_that_are_on_their_way(cluster: FakeCluster) -> None:
    with SyncProducer(namesrv=cluster.namesrv) as producer:
        producer.send(Message("T", b""))
        cluster.brokers[0].script = lambda request: NO_ANSWER
        waiting = producer.send_async(Message("T", b""))
    with pytest.raises(ClientClosedError):
        waiting.result(5)
