"""Our slave: it copies the log of our master and of Apache's, and serves readers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from motelog.bridge import route_cache
from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer, SendStatus
from motelog.bridge.pull import PullConsumer
from motelog.bridge.pull_request import PullStatus
from motelog.bridge.push.consumer import PushConsumer
from motelog.core.errors import MotelogError, RivalMasterError
from motelog.core.message import Message
from motelog.core.remoting.frames import RequestCode, ResponseCode
from motelog.core.store import message_store
from motelog.core.store.tools import backup
from tests.support.broker_pair import (
    WITHIN_S,
    Member,
    is_copying,
    log_bytes,
    promote,
    started_group,
    until,
)
from tests.support.broker_stack import connected
from tests.support.cut_line import CutLine
from tests.support.java import VERSION_4, VERSION_5, JavaDriver
from tests.support.ports import free_port

TOPIC = "T"
#: Java's consumers ask for routes each 30 s.
JAVA_WITHIN_S = 90


async def send(namesrv: str, count: int, *, size: int = 1000) -> list[SendStatus]:
    async with Producer(namesrv=namesrv) as producer:
        messages = [Message(TOPIC, os.urandom(size)) for _ in range(count)]
        return [(await producer.send(message)).status for message in messages]


def is_copy(slave: Member, master: Member) -> bool:
    return slave.store.end_offset == master.store.end_offset


def is_slave(member: Member) -> bool:
    return member.broker.parts.slave is not None


def assert_same(slave: Member, master: Member) -> None:
    begin, end = slave.store.begin_offset, slave.store.end_offset
    assert log_bytes(slave.folder, begin, end) == log_bytes(master.folder, begin, end)


async def test_a_slave_copies_the_whole_log_and_follows_it(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="sync"), group.member(1)
        await master.start()
        await send(group.namesrv, 20, size=900_000)
        await slave.start()
        await until(lambda: is_copy(slave, master))
        assert slave.store.begin_offset == 0
        assert await send(group.namesrv, 50) == [SendStatus.OK] * 50
        assert is_copy(slave, master)
        assert_same(slave, master)
        await slave.stop()
        assert await send(group.namesrv, 5) == [SendStatus.SLAVE_NOT_AVAILABLE] * 5
        await slave.start()
        await until(lambda: is_copy(slave, master))
        assert await send(group.namesrv, 5) == [SendStatus.OK] * 5
        assert_same(slave, master)


async def test_a_slave_may_begin_with_the_last_file(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1, seed="last")
        await master.start()
        await send(group.namesrv, 20, size=900_000)
        await slave.start()
        await until(lambda: is_copy(slave, master))
        assert slave.store.begin_offset == 1 << 24
        assert_same(slave, master)


async def test_a_slave_may_begin_with_a_backup(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1, seed="last")
        await master.start()
        await send(group.namesrv, 20, size=900_000)
        copy = str(tmp_path / "backup")
        # As if it had been promoted: the copy must not come up as another master.
        (master.folder / "config" / "role.json").write_bytes(
            b'{"brokerId":0,"configuredId":1,"term":1,"begin":0}'
        )
        await trio.to_thread.run_sync(backup.create, str(master.folder), copy)
        had = master.store.end_offset
        await send(group.namesrv, 20)
        await trio.to_thread.run_sync(backup.restore, copy, str(slave.folder))
        await slave.start()
        assert is_slave(slave)
        assert slave.store.end_offset >= had
        await until(lambda: is_copy(slave, master))
        assert slave.store.begin_offset == 0
        assert_same(slave, master)


async def send_numbers(namesrv: str, numbers: range) -> None:
    async with Producer(namesrv=namesrv, timeout_s=WITHIN_S) as producer:
        queues = await producer.queues(TOPIC)
        for number in numbers:
            queue = queues[number % len(queues)]
            result = await producer.send(Message(TOPIC, b"%d" % number), queue=queue)
            assert result.status is SendStatus.OK


def bodies(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


@asynccontextmanager
async def pulled(namesrv: str, got: list[bytes]) -> AsyncIterator[None]:
    async def poll(consumer: PullConsumer) -> None:
        while True:
            got.extend(message.body for message in await consumer.poll())

    async with (
        PullConsumer(namesrv=namesrv, group="pull", hold_s=1) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign(await consumer.queues(TOPIC, wait_s=WITHIN_S))
        nursery.start_soon(poll, consumer)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pushed(namesrv: str, got: list[bytes]) -> AsyncIterator[None]:
    async with (
        PushConsumer(namesrv=namesrv, group="push", hold_s=1) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(TOPIC)
        nursery.start_soon(consumer.run, lambda message: got.append(message.body))
        yield
        consumer.stop()


@asynccontextmanager
async def started_pair(folder: Path, **master: Any) -> AsyncIterator[tuple[str, Member, Member]]:
    """A master that waits for its slave, which copies; the topic is there."""
    async with started_group(folder) as group:
        pair = group.member(0, replicate="sync", **master), group.member(1)
        for member in pair:
            await member.start()
        await send(group.namesrv, 1)
        await until(lambda: is_copying(pair[1]))
        yield group.namesrv, *pair


@pytest.mark.parametrize("consuming", [pulled, pushed])
async def test_consumers_read_at_the_slave_without_its_master_and_go_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    consuming: Callable[..., AbstractAsyncContextManager[None]],
) -> None:
    monkeypatch.setattr(route_cache, "ROUTE_REFRESH_S", 0.2)
    async with started_pair(tmp_path) as (namesrv, master, slave):
        await send_numbers(namesrv, range(8))
        await until(lambda: TOPIC in slave.broker.tables.topics.table())
        await master.stop()
        got: list[bytes] = []
        async with consuming(namesrv, got):
            await until(lambda: set(bodies(8)) <= set(got))
            await master.start()
            await until(lambda: is_copying(slave))
            await send_numbers(namesrv, range(8, 16))
            await until(lambda: set(bodies(16)) <= set(got))
            # With its next route a consumer is at the master again.
            end = 16
            while not master.broker.parts.stats.messages_out:
                await send_numbers(namesrv, range(end, end + 8))
                end += 8
                await until(lambda: set(bodies(end)) <= set(got))  # noqa: B023
        assert sorted(body for body in got if len(body) <= 3) == bodies(end)


@pytest.mark.java
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_javas_consumer_reads_at_the_slave_without_its_master_and_goes_on(
    tmp_path: Path, version: str
) -> None:
    driver = JavaDriver()

    async def taken() -> set[bytes]:
        return {
            body.encode() for *_, body in await driver.run(version, "taken", "-", "-", "-", "0")
        }

    async def take(count: int) -> None:
        with trio.fail_after(JAVA_WITHIN_S):
            while not set(bodies(count)) <= await taken():  # noqa: ASYNC110  # no event
                await trio.sleep(0.2)

    try:
        async with started_pair(tmp_path) as (namesrv, master, slave):
            await send_numbers(namesrv, range(8))
            await until(lambda: TOPIC in slave.broker.tables.topics.table())
            await master.stop()
            await driver.run(version, "join", namesrv, TOPIC, "G", "0", "plain")
            await take(8)
            await master.start()
            await until(lambda: is_copying(slave))
            await send_numbers(namesrv, range(8, 16))
            await take(16)
            await driver.run(version, "leave", "-", "-", "-", "0")
    finally:
        driver.close()


async def test_a_reader_far_behind_is_sent_to_the_slave_and_back_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "memory_bytes", lambda: 100_000)
    async with started_pair(tmp_path, slave_read_enable=True) as (namesrv, master, slave):
        await send(namesrv, 200, size=30_000)
        async with PullConsumer(namesrv=namesrv, group="G") as consumer:
            [*queues] = await consumer.queues(TOPIC)
            for queue in queues:
                for broker_id, suggested in ((0, 1), (1, 0)):
                    answer = await consumer.pull(queue, 0, count_max=1, broker_id=broker_id)
                    assert answer.status is PullStatus.FOUND
                    assert answer.suggested_broker_id == suggested
            stats = [member.broker.parts.stats for member in (master, slave)]
            before = [one.messages_out for one in stats]
            consumer.assign(queues)
            got = 0
            while got < 201:
                got += len(await consumer.poll())
            given = [one.messages_out - earlier for one, earlier in zip(stats, before, strict=True)]
            assert sum(given) == 201
            assert min(given) > 0


async def test_a_slave_refuses_messages_and_answers_readers(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1)
        await master.start()
        await slave.start()
        await send(group.namesrv, 8)
        await until(lambda: is_copy(slave, master) and TOPIC in slave.broker.tables.topics.table())
        await master.stop()
        with pytest.raises(MotelogError):
            await send(group.namesrv, 1)
        async with PullConsumer(namesrv=group.namesrv, group="G") as consumer:
            consumer.assign(await consumer.queues(TOPIC))
            got = 0
            while got < 8:
                got += len(await consumer.poll())


async def test_a_promoted_slave_takes_messages_in_the_same_process(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="sync"), group.member(1, replicate="async")
        await master.start()
        await slave.start()
        await until(lambda: is_copying(slave))
        assert await send(group.namesrv, 8) == [SendStatus.OK] * 8
        refusal = await promote(slave)
        assert refusal.code == ResponseCode.SYSTEM_ERROR
        assert "stop the master first" in (refusal.remark or "")
        await master.stop()
        assert (await promote(slave)).code == ResponseCode.SUCCESS
        await until(lambda: slave.broker.parts.slave is None and slave.broker.is_registered)
        assert await send(group.namesrv, 8) == [SendStatus.OK] * 8
        assert sum(slave.store.reader.max_offset(TOPIC, queue) for queue in range(8)) == 16
        # It stays the master, whatever its configuration says.
        await slave.stop()
        await slave.start()
        assert await send(group.namesrv, 1) == [SendStatus.OK]


async def test_a_promoted_slave_is_a_slave_again_when_the_other_one_was_promoted(
    tmp_path: Path,
) -> None:
    async with started_group(tmp_path) as group:
        first, second = group.member(0, replicate="async"), group.member(1, replicate="async")
        await first.start()
        await second.start()
        await until(lambda: is_copying(second))
        await first.stop()
        await promote(second)
        await until(lambda: second.broker.parts.slave is None)
        first.config = msgspec.structs.replace(first.config, id=1)
        await first.start()
        await until(lambda: is_copying(first))
        await second.stop()
        await promote(first)
        await until(lambda: first.broker.parts.slave is None and first.broker.is_registered)
        assert await send(group.namesrv, 1) == [SendStatus.OK]
        for _ in range(2):
            await second.start()
            await until(lambda: is_copying(second) and is_copy(second, first))
            await second.stop()


@pytest.mark.parametrize("after_s", [0, 0.06, 0.15])
async def test_a_slave_that_is_stopped_while_it_is_promoted_comes_back_as_the_master(
    tmp_path: Path, after_s: float
) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1, replicate="async")
        await master.start()
        await slave.start()
        await send(group.namesrv, 8)
        await until(lambda: is_copying(slave) and is_copy(slave, master))
        await master.stop()
        await promote(slave)
        await trio.sleep(after_s)
        await slave.stop()
        await slave.start()
        assert slave.broker.parts.slave is None
        assert await send(group.namesrv, 8) == [SendStatus.OK] * 8
        assert sum(slave.store.reader.max_offset(TOPIC, queue) for queue in range(8)) == 16


async def test_a_slave_has_the_settings_of_topics_as_soon_as_it_copies(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1)
        await master.start()
        await slave.start()
        await until(lambda: is_copying(slave))
        topics = slave.broker.tables.topics
        async with Admin(namesrv=group.namesrv) as admin:
            await admin.put_topic(TOPIC, queues=3)
        await send(group.namesrv, 1)
        await until(lambda: TOPIC in topics.table())
        assert topics.table()[TOPIC].write_queue_nums == 3
        await slave.stop()
        async with Admin(namesrv=group.namesrv) as admin:
            await admin.put_topic("without-messages", queues=2)
        await slave.start()
        await until(lambda: is_copying(slave))
        assert "without-messages" in slave.broker.tables.topics.table()


async def test_a_slave_connects_where_its_master_advertises(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        port = free_port()
        with CutLine(("127.0.0.1", port)) as line:
            master = group.member(
                0,
                replicate="async",
                ha_listen=f"127.0.0.1:{port}",
                ha_advertise=f"127.0.0.1:{line.port}",
            )
            slave = group.member(1)
            await master.start()
            await slave.start()
            await until(lambda: is_copying(slave))
            assert line.sent


async def test_a_master_that_comes_back_after_a_promotion_does_not_serve(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1, replicate="async")
        await master.start()
        await slave.start()
        await until(lambda: is_copying(slave))
        # The master hangs for a while: it does not know of the promotion.
        await promote(slave, is_forced=True)
        await until(lambda: master.store.fence_reason is not None)
        assert slave.address in (master.store.fence_reason or "")
        assert await send(group.namesrv, 4) == [SendStatus.OK] * 4
        assert slave.store.end_offset > master.store.end_offset
        await master.stop()
        with pytest.raises(RivalMasterError, match=slave.address):
            await master.start()
        assert await send(group.namesrv, 4) == [SendStatus.OK] * 4


async def test_a_slave_whose_files_have_another_size_copies_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started_group(tmp_path) as group:
        master = group.member(0, replicate="async")
        slave = group.member(1, store={"commitlog_file_bytes": 1 << 20})
        await master.start()
        await send(group.namesrv, 1)
        await slave.start()
        copying = slave.broker.parts.slave
        assert copying is not None
        await until(lambda: "has files of 16777216 bytes" in copying.reason)
        assert slave.store.end_offset == 0
        # RocketMQ's slaves do not look: the master does.
        async with await trio.open_tcp_stream("127.0.0.1", master.broker.ha_port) as stream:
            await stream.send_all(bytes(8))
            with trio.fail_after(WITHIN_S), suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
        assert "its log has files of 1048576 bytes, this one of 16777216" in caplog.text


async def test_a_slave_remembers_the_term_of_its_master(tmp_path: Path) -> None:
    """Else its own promotion had the same term, and a master that hung would not give way."""
    async with started_group(tmp_path) as group:
        first, second = group.member(0, replicate="async"), group.member(1, replicate="async")
        await first.start()
        await second.start()
        await send(group.namesrv, 1)
        await until(lambda: is_copy(second, first))
        await first.stop()
        await promote(second)
        await until(lambda: second.broker.parts.slave is None)
        first.config = msgspec.structs.replace(first.config, id=1)
        await first.start()
        await until(lambda: is_copying(first))
        await first.stop()
        await second.stop()
        await first.start()
        await promote(first)
        await until(lambda: first.broker.parts.slave is None)
        async with connected(first.address) as peer:
            answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        assert b"masterTerm=2\n" in answer.body
