"""The log of brokers elsewhere, against a cluster in this process that does as it is told."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from motelog.core import lasting
from motelog.core.errors import BrokerError
from motelog.core.message import MessageQueue, decode_properties, encode_host
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.topic_names import GATEWAY_TOPICS, MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import LogRead, QueueHandle
from motelog.gateway.log.remote import listing, reads, topics
from motelog.gateway.log.remote.queues import RemoteQueue
from motelog.gateway.log.remote.remote_log import RemoteLog
from tests.support.broker_stack import eventually
from tests.support.fake_cluster import NO_ANSWER, FakeBroker, FakeCluster, fake_cluster, serve
from tests.support.log_port_check import check_log_port, message
from tests.support.remote_stage import RemoteStage


@asynccontextmanager
async def remote_log(cluster: FakeCluster, **options: Any) -> AsyncIterator[RemoteLog]:
    """Run a log on ``cluster``; topics that are created are told of to ``log.told``."""
    log = RemoteLog(cluster.namesrv, **{"wait_s": 5, **options})
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            yield log
            log.close()
            nursery.cancel_scope.cancel()


async def tail_of(log: RemoteLog, queue: QueueHandle) -> int:
    told: list[int] = []
    tail = log.tail(queue, told.append)
    if tail is None:
        await eventually(lambda: bool(told))
        [tail] = told
    return tail


async def read(log: RemoteLog, queue: QueueHandle, queue_offset: int, **limits: Any) -> LogRead:
    limits = {"count_max": 1000, "bytes_max": 1 << 20, **limits}
    found = log.read(queue, queue_offset, **limits)
    while not isinstance(found, LogRead):
        ready = trio.Event()
        assert log.when_at_hand(found, ready.set)
        await ready.wait()
        found = log.read(queue, queue_offset, **limits, waited=found)
    return found


def bodies(found: LogRead) -> list[bytes]:
    return [message.body for message in decode_messages(found.records)]


def pulls(broker: FakeBroker) -> int:
    return sum(request.code == RequestCode.PULL_MESSAGE for request in broker.requests)


async def test_the_log_of_brokers_elsewhere() -> None:
    with trio.fail_after(30):
        async with fake_cluster("a") as cluster:
            cluster.topics.clear()
            await check_log_port(RemoteStage(cluster))


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.PULL_MESSAGE,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
    ],
)
async def test_the_log_of_a_broker_that_is_slow_at_one_kind_of_request(code: RequestCode) -> None:
    with trio.fail_after(60):
        async with fake_cluster("a") as cluster:
            cluster.topics.clear()
            stage = RemoteStage(cluster)
            answer = stage.broker.answer

            async def answer_late(request: RemotingCommand) -> RemotingCommand | None:
                await trio.sleep(0.1 * (request.code == code))
                return await answer(request)

            stage.broker.answer = answer_late  # type: ignore[method-assign]  # it can be slow here
            await check_log_port(stage)


async def test_what_lacks_memory_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "AGAIN_S", 0.01)
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.01)
    failed: list[str] = []

    def fail_at_first(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def maybe_fail(*arguments: Any, **options: Any) -> Any:
            if name not in failed:
                failed.append(name)
                raise MemoryError
            return work(*arguments, **options)

        monkeypatch.setattr(owner, name, maybe_fail)

    async with fake_cluster("a") as cluster:
        cluster.topics["T"] = 1
        async with remote_log(cluster) as log:
            fail_at_first(log._listing, "_list")
            fail_at_first(reads, "int_field")
            [queue] = log.queues("T")
            assert await tail_of(log, queue) == 0
            fail_at_first(reads, "pull_result")
            grown = all_growth(log)
            log.append([message(log.queue_of("T", ""), b"one")])
            await eventually(lambda: bool(grown))
            assert bodies(await read(log, queue, 0)) == [b"one"]
            cluster.topics["U"] = 1
            await eventually(lambda: log.has_topic("U"))
    assert sorted(failed) == ["_list", "int_field", "pull_result"]


# --- topics ----------------------------------------------------------------------------------


async def test_it_starts_when_a_name_server_has_told_of_the_topics() -> None:
    async with fake_cluster("a") as cluster:
        cluster.script = lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "not yet")
        log = RemoteLog(cluster.namesrv)
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.2) as scope:
                await nursery.start(log.run)
            assert scope.cancelled_caught
        cluster.script = lambda request: None
        async with remote_log(cluster) as log:
            assert log.topics() == ["T"]
            assert len(log.queues("T")) == 2


async def test_names_that_brokers_register_for_themselves_are_no_topics() -> None:
    async with fake_cluster("a") as cluster:
        names = ("c", "a", "c_REPLY_TOPIC", "TBW102", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "no topic")
        cluster.topics |= dict.fromkeys(names, 1)
        async with remote_log(cluster) as log:
            assert log.topics() == ["T"]


async def test_a_topic_is_created_at_every_broker() -> None:
    async with fake_cluster("a", "b") as cluster, remote_log(cluster) as log:
        log.create_topic("New", 3)
        await eventually(lambda: "New" in log.topics())
        assert [broker.topics for broker in cluster.brokers] == [{"New": 3}] * 2
        assert [log.describe(queue) for queue in log.queues("New")] == [
            f"New/{broker}/{number}" for broker in "ab" for number in range(3)
        ]
        places = {log.queue_of("New", f"selector{number}") for number in range(100)}
        assert len(places) == 6
        log.append([message(place, b"body") for place in places])
        log.settle_soon()
        await eventually(lambda: all(len(broker.records) == 3 for broker in cluster.brokers))


async def test_a_topic_that_is_there_is_not_created_again() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        cluster.topics["Native"] = 5
        log.create_topic("Native", 1)
        await eventually(lambda: "Native" in log.topics())
        assert cluster.brokers[0].topics == {}
        assert len(log.queues("Native")) == 5


async def test_a_topic_that_others_create_is_read_from_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.05)
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker = cluster.brokers[0]
        broker.store("T", 0, b"old")
        begun: list[int | None] = []
        log.on_topic_created(
            lambda topic: begun.extend(log.tail(queue, begun.append) for queue in log.queues(topic))
        )
        broker.store("Native", 0, b"first")
        cluster.topics["Native"] = 1
        await eventually(lambda: begun == [0])
        # Once it has been told of, its end is where it is.
        (native,) = log.queues("Native")
        assert await tail_of(log, native) == 1
        assert await tail_of(log, log.queues("T")[0]) == 1


async def test_queues_that_are_added_to_a_topic_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.05)
    monkeypatch.setattr(listing, "ROUTES_INTERVAL_S", 0.05)
    monkeypatch.setattr("motelog.bridge.route_cache.ROUTE_REFRESH_S", 0.05)
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        told: list[str] = []
        log.on_topic_created(told.append)
        place = log.queue_of("T", "selector")
        cluster.topics["T"] = 7
        await eventually(lambda: told == ["T"])
        assert len(log.queues("T")) == 7
        log.append([message(place, b"body")])
        log.settle_soon()
        # A place from before leads to a queue of the topic all the same.
        await eventually(lambda: sum(map(len, cluster.brokers[0].records.values())) == 1)


async def test_gateways_have_the_same_order_of_queues_whenever_they_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.05)
    async with fake_cluster("b", "a") as cluster:
        late = cluster.brokers.pop()
        async with remote_log(cluster) as early:
            assert [str(queue) for queue in early.queues("T")] == ["T/b/0", "T/b/1"]
            cluster.brokers.append(late)
            cluster.topics["a"] = 1  # it registers its own name
            await eventually(lambda: len(early.queues("T")) == 4)
            async with remote_log(cluster) as other:
                assert early.queues("T") != other.queues("T")  # handles of their own
                for log in (early, other):
                    names = ["T/a/0", "T/a/1", "T/b/0", "T/b/1"]
                    assert [str(queue) for queue in log.queues("T")] == names
                for number in range(8):
                    chosen = {
                        log.describe(log.queue_of("T", str(number))) for log in (early, other)
                    }
                    assert len(chosen) == 1


async def test_a_refusal_counts_for_a_while_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics, "REFUSED_S", 0.2)

    def refuse(request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.UPDATE_AND_CREATE_TOPIC:
            return None
        return request.answer(ResponseCode.NO_PERMISSION, "not here")

    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        cluster.brokers[0].script = refuse
        refused: list[str] = []
        log.on_topic_refused(refused.append)
        with caplog.at_level(logging.WARNING):
            log.create_topic("New", 1)
            place = log.queue_of("New", "x")
            waiting = log.append([message(place, b"never")])
            await eventually(lambda: refused == ["New"])
        assert "could not be created" in caplog.text
        assert isinstance(waiting.error, BrokerError)
        with pytest.raises(BrokerError, match="not here"):
            log.create_topic("New", 1)
        assert not log.has_topic("New")
        cluster.brokers[0].script = lambda request: None
        await trio.sleep(0.2)
        log.create_topic("New", 1)
        await eventually(lambda: "New" in log.topics())


async def test_a_broker_that_cannot_be_asked_refuses_a_topic_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "UNASKED_S", 0.0)
    async with fake_cluster("a") as cluster, remote_log(cluster, wait_s=0.3) as log:
        broker = cluster.brokers[0]
        address, broker.address = broker.address, "127.0.0.1:1"
        refused: list[str] = []
        log.on_topic_refused(refused.append)
        log.create_topic("New", 1)
        place = log.queue_of("New", "x")
        await eventually(lambda: refused == ["New"])
        broker.address = address
        await eventually(lambda: log.outage is None)
        # Whoever has kept a place need not ask for the topic again.
        log.append([message(place, b"body")])
        await eventually(lambda: len(broker.records["New", 0]) == 1)


async def test_own_topics_are_asked_for_until_a_broker_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "UNASKED_S", 0.05)
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.05)
    async with fake_cluster("a") as cluster:
        cluster.topics.clear()
        brokers, cluster.brokers = cluster.brokers, []
        async with remote_log(cluster, wait_s=0.05) as log:
            for name in GATEWAY_TOPICS:
                log.create_topic(name, 1)
            assert "waiting for a broker" in log.start_waits_for
            refused: list[str] = []
            log.on_topic_refused(refused.append)
            await eventually(lambda: len(refused) >= 4)  # nobody asks for them but the log
            assert "waiting for a broker" in log.start_waits_for
            brokers[0].script = lambda request: (
                request.answer(ResponseCode.SYSTEM_BUSY, "not yet")
                if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC
                else None
            )
            monkeypatch.setattr(topics, "REFUSED_S", 0.05)
            cluster.brokers = brokers
            await eventually(lambda: bool(brokers[0].requests))
            assert "create the topics MQTT_RETAINED, MQTT_SESSION" in log.start_waits_for
            brokers[0].script = lambda request: None
            await eventually(lambda: all(log.queues(name) for name in GATEWAY_TOPICS))
            assert log.start_waits_for == "reading sessions and retained messages"


async def test_what_a_broker_brings_along_that_comes_later_is_not_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.05)
    async with fake_cluster("a", "b") as cluster:
        second = cluster.brokers.pop()
        for name in ("T", "OnlyThere"):
            second.store(name, 0, b"old")
        async with remote_log(cluster) as log:
            tails: dict[str, int | None] = {}

            def follow(topic: str) -> None:
                for queue in log.queues(topic):
                    tails.setdefault(log.describe(queue), log.tail(queue))

            for topic in log.topics():
                follow(topic)
            log.on_topic_created(follow)
            cluster.topics |= {"b": 1, "OnlyThere": 1}
            second.topics["OnlyThere"] = 1
            del cluster.topics["OnlyThere"]
            cluster.brokers.append(second)
            await eventually(lambda: {"T/b/0", "OnlyThere/b/0"} <= tails.keys())
            # The log has to ask for their ends; what is made from now on begins at 0.
            assert (tails["T/b/0"], tails["OnlyThere/b/0"]) == (None, None)
            second.topics["New"] = 1
            await eventually(lambda: "New/b/0" in tails)
            assert tails["New/b/0"] == 0


# --- reads -----------------------------------------------------------------------------------


async def test_chunks_that_follow_each_other_are_one_read() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        queue = log.queues("T")[0]
        assert await tail_of(log, queue) == 0
        for number in range(5):
            cluster.brokers[0].store("T", 0, b"%d" % number)
            await eventually(lambda: queue.pull_offset == number + 1)  # type: ignore[attr-defined]  # noqa: B023
        assert pulls(cluster.brokers[0]) >= 5
        found = await read(log, queue, 1, count_max=3)
        assert (bodies(found), found.next_offset, found.is_more) == ([b"1", b"2", b"3"], 4, True)
        rest = await read(log, queue, 4)
        assert (bodies(rest), rest.next_offset, rest.is_more) == ([b"4"], 5, False)


async def test_a_follower_stops_while_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "UNREAD_BYTES_MAX", 3000)
    monkeypatch.setattr(reads, "PULL_COUNT", 1)
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        assert await tail_of(log, queue) == 0
        for number in range(10):
            broker.store("T", 0, b"%d" % number + bytes(1000))
        await trio.sleep(0.2)
        assert pulls(broker) == 3
        found = b""
        queue_offset = 0
        with trio.fail_after(5):
            while queue_offset < 10:
                one = await read(log, queue, queue_offset, count_max=1)
                found += one.records
                queue_offset = one.next_offset
                await trio.sleep(0.01)
        assert len(decode_messages(found)) == 10


def all_growth(log: RemoteLog) -> list[QueueHandle]:
    """Return a list of what grows from now on."""
    grown: list[QueueHandle] = []
    growth = log.follow(lambda: grown.extend(growth.take()))
    return grown


async def test_records_gather_where_a_reader_takes_all_at_once() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        log.gather("T", lambda: 1.0)
        grown = all_growth(log)
        assert await tail_of(log, queue) == 0
        broker.store("T", 0, b"first")
        await eventually(lambda: queue in grown)  # it waits for nothing
        for number in range(5):
            broker.store("T", 0, b"%d" % number)
            await trio.lowlevel.checkpoint()
        await eventually(lambda: len(grown) > 1)
        assert pulls(broker) <= 3  # of these the last one is held
        found = await read(log, queue, 0)
        assert bodies(found) == [b"first", b"0", b"1", b"2", b"3", b"4"]


async def test_records_at_hand_are_bounded_and_others_come_again() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster, kept_bytes_max=5000) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        assert await tail_of(log, queue) == 0
        for number in range(10):
            broker.store("T", 0, b"%d" % number + bytes(1000))
            await eventually(lambda: queue.pull_offset == number + 1)  # type: ignore[attr-defined]  # noqa: B023
            assert log._reads._kept.bytes_now <= 5000
        assert len(queue.chunks) == 4  # type: ignore[attr-defined]  # it is this log's own
        found = await read(log, queue, 0, count_max=10)
        assert bodies(found)[0] == b"0" + bytes(1000)


async def test_what_the_one_reader_of_a_topic_is_past_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "READ_ONCE", {"T"})
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        assert await tail_of(log, queue) == 0
        for number in range(10):
            broker.store("T", 0, b"%d" % number + bytes(1000))
            await eventually(lambda: queue.pull_offset == number + 1)  # type: ignore[attr-defined]  # noqa: B023
            found = await read(log, queue, number, count_max=10)
            assert bodies(found) == [b"%d" % number + bytes(1000)]
            assert found == await read(log, queue, number, count_max=10)  # it may fail to apply it
        assert len(queue.chunks) == 1  # type: ignore[attr-defined]  # it is this log's own
        assert await read(log, queue, 10) == LogRead(b"", 10, 10, False)
        assert not queue.chunks  # type: ignore[attr-defined]
        assert log._reads._kept.bytes_now == 0
        assert bodies(await read(log, queue, 3))[0] == b"3" + bytes(1000)  # the log still has it


async def test_asking_for_the_end_again_disturbs_no_reader() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        assert await tail_of(log, queue) == 0
        grown = all_growth(log)
        for number in range(20):
            broker.store("T", 0, b"%d" % number)
            assert await tail_of(log, queue) == number + 1
            # A reader that begins there waits for what comes, and does not go back.
            assert await read(log, queue, number + 1) == LogRead(b"", number + 1, number + 1, False)
        await eventually(lambda: queue.pull_offset == 20)  # type: ignore[attr-defined]
        assert queue in grown
        assert len(bodies(await read(log, queue, 0))) == 20


async def test_a_place_has_the_name_of_its_queue_and_is_not_asked_for_its_end() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        place = log.queue_of("T", "x")
        assert log.describe(place) in {log.describe(queue) for queue in log.queues("T")}
        told: list[int] = []
        assert log.tail(place, told.append) is None
        log.create_topic("New", 1)
        assert log.describe(log.queue_of("New", "x")) == "New/not known yet"
        log.create_topic("MQTT_RETAINED", 1)
        await eventually(lambda: bool(log.queues("MQTT_RETAINED")))
        (retained,) = log.queues("MQTT_RETAINED")
        assert log.describe(retained) == "MQTT_RETAINED/0"  # as behind every port
        await trio.sleep(0.05)
        assert told == []
        assert pulls(cluster.brokers[0]) == 0


async def test_readers_of_one_place_share_a_pull() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        broker.store("T", 0, b"body")
        found: list[LogRead] = []

        async def read_one() -> None:
            found.append(await read(log, queue, 0))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(read_one)
        assert [bodies(one) for one in found] == [[b"body"]] * 5
        assert pulls(broker) == 1


async def test_bytes_that_are_no_records_of_the_queue_are_not_handed_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reads, "RETRY_S", 0.05)
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        broker.store("T", 0, b"body")
        other = broker.records["T", 0][0].replace(b"T", b"U")
        damaged = [b"\x00\x00\x00\x05oh no", other, broker.records["T", 0][0][:-1]]

        def damage(request: RemotingCommand) -> RemotingCommand | None:
            if request.code != RequestCode.PULL_MESSAGE or not damaged:
                return None
            ext = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
            ext["suggestWhichBrokerId"] = "0"
            return request.answer(ext=ext, body=damaged.pop())

        broker.script = damage
        with caplog.at_level(logging.WARNING):
            assert bodies(await read(log, queue, 0)) == [b"body"]
        assert damaged == []
        assert "is not of this queue" in caplog.text


async def test_pulls_that_a_broker_does_not_hold_are_not_repeated_at_once() -> None:
    def answer_at_once(request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.PULL_MESSAGE:
            return None
        ext = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
        ext["suggestWhichBrokerId"] = "0"
        return request.answer(ResponseCode.PULL_NOT_FOUND, ext=ext)

    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        cluster.brokers[0].script = answer_at_once
        assert await tail_of(log, log.queues("T")[0]) == 0
        await trio.sleep(0.3)
        assert pulls(cluster.brokers[0]) == 1


async def test_a_reader_goes_back_with_a_broker_that_has_lost_its_end() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        broker, queue = cluster.brokers[0], log.queues("T")[0]
        for number in range(5):
            broker.store("T", 0, b"%d" % number)
        grown = all_growth(log)

        def has_lost(request: RemotingCommand) -> RemotingCommand | None:
            if request.code != RequestCode.PULL_MESSAGE:
                return None
            if request.ext["queueOffset"] == "3":
                return NO_ANSWER
            ext = {"nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"}
            ext["suggestWhichBrokerId"] = "0"
            return request.answer(ResponseCode.PULL_OFFSET_MOVED, ext=ext)

        broker.script = has_lost
        assert await tail_of(log, queue) == 5
        await eventually(lambda: queue in grown)
        assert await read(log, queue, 5) == LogRead(b"", 5, 3, False)


# --- the end ---------------------------------------------------------------------------------


@asynccontextmanager
async def slave_alone(
    monkeypatch: pytest.MonkeyPatch, *bodies: bytes
) -> AsyncIterator[tuple[FakeCluster, FakeBroker]]:
    """A cluster whose name server knows only the slave of broker a; yields it and the slave.

    The slave has ``bodies`` in T/0.
    """
    monkeypatch.setattr(reads, "RETRY_S", 0.02)
    async with fake_cluster("a", queue_count=1) as cluster, trio.open_nursery() as nursery:
        slave = FakeBroker("a")
        slave.address = cluster.slaves["a"] = await serve(nursery, slave.answer)
        cluster.has_masters = False
        for body in bodies:
            slave.store("T", 0, body)
        yield cluster, slave
        nursery.cancel_scope.cancel()


async def test_a_slave_is_read_while_its_master_is_away_and_moves_no_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with slave_alone(monkeypatch, b"0", b"1") as (cluster, slave), remote_log(cluster) as log:
        [queue] = log.queues("T")
        assert isinstance(queue, RemoteQueue)
        assert await tail_of(log, queue) == 2
        assert bodies(await read(log, queue, 0)) == [b"0", b"1"]
        log._reads.forget()
        # It would send a reader of older records to offset 6, and one that follows back to 2.
        slave.min_offset = 6
        assert await read(log, queue, 3) == LogRead(b"", 3, 3, False)
        found: list[LogRead] = []

        async def read_older() -> None:
            found.append(await read(log, queue, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_older)
            before = pulls(slave)
            await eventually(lambda: pulls(slave) > before + 5)
            assert found == []
            [master] = cluster.brokers
            for number in range(5):
                master.store("T", 0, b"%d" % number)
            cluster.has_masters = True
        assert found[0].begin_offset == 1
        assert bodies(found[0]) == [b"1", b"2", b"3", b"4"]
        await eventually(lambda: queue.pull_offset == 5)
        assert bodies(await read(log, queue, 3)) == [b"3", b"4"]


async def test_a_slave_s_end_is_neither_a_loss_nor_all_of_the_gateways_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with slave_alone(monkeypatch, b"0") as (cluster, slave), remote_log(cluster) as log:
        [queue] = log.queues("T")
        assert isinstance(queue, RemoteQueue)
        await tail_of(log, queue)
        state = RemoteQueue(MessageQueue(MQTT_SESSION_TOPIC, "a", 0))
        told: list[int] = []
        for one in (queue, state):
            log._reads.ask_tail(one, told.append)
        before = pulls(slave)
        await eventually(lambda: pulls(slave) > before + 5)
        assert told == []
        [master] = cluster.brokers
        for _ in range(3):
            master.store("T", 0, b"x")
        master.store(MQTT_SESSION_TOPIC, 0, b"x")
        cluster.has_masters = True
        await eventually(lambda: sorted(told) == [1, 3])


async def test_queues_of_a_broker_of_which_only_a_slave_is_known_keep_their_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with slave_alone(monkeypatch) as (cluster, _):
        cluster.has_masters = True
        async with remote_log(cluster) as log:
            places = log.append_queues("T")
            cluster.has_masters = False
            route = await log._client.route("T", newer_than=trio.current_time())
            log._topics.adopt(route, new_at=())
            assert log.append_queues("T") == places
            assert log.has_topic("T")


async def test_the_home_of_sessions_is_found_at_its_slave_and_not_used_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with slave_alone(monkeypatch) as (cluster, _), remote_log(cluster) as log:
        cluster.topics[MQTT_SESSION_TOPIC] = 1
        log.create_topic(MQTT_SESSION_TOPIC, 1)
        await eventually(lambda: log.home.broker == "a")
        await eventually(lambda: log._links.away() != [])
        assert log._topics.missing == [MQTT_SESSION_TOPIC]
        cluster.has_masters = True
        await eventually(lambda: bool(log.append_queues(MQTT_SESSION_TOPIC)))


async def test_what_is_appended_last_is_still_sent() -> None:
    async with fake_cluster("a") as cluster:
        async with remote_log(cluster) as log:
            log.append([message(log.queue_of("T", "x"), b"last")])
        records = [record for found in cluster.brokers[0].records.values() for record in found]
        assert [m.body for m in decode_messages(b"".join(records))] == [b"last"]


async def test_a_broker_that_does_not_answer_delays_the_end_by_the_grace_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motelog.gateway.log.remote.remote_log.GRACE_S", 0.2)
    async with fake_cluster("a") as cluster:
        cluster.brokers[0].script = lambda request: (
            NO_ANSWER if request.code == RequestCode.SEND_BATCH_MESSAGE else None
        )
        async with remote_log(cluster) as log:
            told: list[object] = []
            log.on_settled(told.extend)
            log.append([message(log.queue_of("T", "x"), b"last")])
            begin = trio.current_time()
        assert 0.2 <= trio.current_time() - begin < 1.5
        assert told == []


# --- delayed messages ------------------------------------------------------------------------


async def test_a_delayed_message_is_a_send_of_its_own_that_says_when() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        queue = log.queue_of("T", "x")
        plain = (queue, b"plain", b"", 0, 1_000, encode_host("127.0.0.1", 1), 0, 0, 0, 0)
        waits = log.delayed((queue, b"late", b"k\x01v\x02", *plain[3:]), 60_000)
        assert log.describe(waits[0]) == log.describe(queue)
        assert log.find_queue(log.describe(waits[0])) in log.queues("T")
        assert log.tail(waits[0], lambda tail: None) is None
        ticket = log.append([plain, waits, plain])
        await eventually(lambda: ticket.is_settled)
        assert ticket.error is None
        sent = cluster.brokers[0].requests
        batches = [r for r in sent if r.code == RequestCode.SEND_BATCH_MESSAGE]
        assert sum(request.body.count(b"plain") for request in batches) == 2
        assert not any(b"late" in request.body for request in batches)
        [single] = [r for r in sent if r.code == RequestCode.SEND_MESSAGE_V2]
        assert single.body == b"late"
        properties = decode_properties(single.ext["i"].encode())
        assert properties["k"] == "v"
        # The broker counts: its machine's clock may show another time.
        assert properties["TIMER_DELAY_MS"] == "60000"
        assert (single.ext["b"], single.ext["m"]) == ("T", "false")
