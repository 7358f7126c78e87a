"""Our slave: it copies the log of our master and of Apache's, and serves readers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from motelog.bridge.producer import Producer, SendStatus
from motelog.bridge.pull import PullConsumer
from motelog.core.errors import MotelogError, RivalMasterError
from motelog.core.message import Message
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.store.tools import backup
from tests.support.broker_pair import Member, log_bytes, started_group, until
from tests.support.broker_stack import connected

TOPIC = "T"


async def send(namesrv: str, count: int, *, size: int = 1000) -> list[SendStatus]:
    async with Producer(namesrv=namesrv) as producer:
        messages = [Message(TOPIC, os.urandom(size)) for _ in range(count)]
        return [(await producer.send(message)).status for message in messages]


def is_copy(slave: Member, master: Member) -> bool:
    return slave.store.end_offset == master.store.end_offset


def is_copying(member: Member) -> bool:
    slave = member.broker.parts.slave
    return slave is not None and slave.is_copying


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
        await trio.to_thread.run_sync(backup.create, str(master.folder), copy)
        had = master.store.end_offset
        await send(group.namesrv, 20)
        await trio.to_thread.run_sync(backup.restore, copy, str(slave.folder))
        await slave.start()
        assert slave.store.end_offset >= had
        await until(lambda: is_copy(slave, master))
        assert slave.store.begin_offset == 0
        assert_same(slave, master)


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


async def promote(member: Member, *, is_forced: bool = False) -> RemotingCommand:
    async with connected(member.address) as peer:
        return await peer.ask(RequestCode.PROMOTE_BROKER, {"force": str(is_forced).lower()})


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
