"""Our master feeds slaves by RocketMQ's HA protocol: a client of the wire, and Apache's 4.9.7."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.errors import SendFailedError
from motelog.bridge.producer import Producer, SendStatus
from motelog.bridge.pull import PullConsumer
from motelog.bridge.pull_request import PullResult
from motelog.core.broker.replication import master
from motelog.core.broker.replication.master import Master
from motelog.core.errors import BrokerError, ConfigError
from motelog.core.message import Message, MessageQueue
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.replication.ha_frames import HEADER, PIECE_BYTES_MAX, REPORT
from tests.support.broker_pair import WITHIN_S, log_bytes, until
from tests.support.broker_stack import Stack, connected, json_body, started_stack
from tests.support.broker_stage import heartbeat
from tests.support.java import COMMITLOG_FILE_BYTES, VERSION_4, ApacheServer
from tests.support.ports import free_port

TOPIC = "T"


def master_of(stack: Stack) -> Master:
    found = stack.broker.parts.master
    assert found is not None
    return found


class WireSlave:
    """A slave that reports what it is told to, and keeps what it gets."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def report(self, offset: int) -> None:
        await self._stream.send_all(REPORT.pack(offset))

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame: where it begins, and its bytes."""
        offset, size = HEADER.unpack(await self._exactly(HEADER.size))
        return offset, await self._exactly(size)

    async def copy(self, begin: int, end: int) -> bytes:
        """Return [begin, end) of the log, from frames without a gap."""
        copied = b""
        with trio.fail_after(WITHIN_S):
            while begin + len(copied) < end:
                offset, piece = await self.frame()
                assert offset == begin + len(copied)
                assert len(piece) <= PIECE_BYTES_MAX
                copied += piece
        return copied

    async def is_closed(self) -> bool:
        with trio.fail_after(WITHIN_S):
            try:
                return await self._stream.receive_some(1) == b""
            except trio.BrokenResourceError:  # what was sent has not been read
                return True

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self._stream.receive_some(count - len(data))
            assert more, "the master has closed the connection"
            data += more
        return data


@asynccontextmanager
async def slave_at(stack: Stack, offset: int) -> AsyncIterator[WireSlave]:
    """A slave that reports ``offset`` first."""
    async with await trio.open_tcp_stream("127.0.0.1", stack.broker.ha_port) as stream:
        slave = WireSlave(stream)
        await slave.report(offset)
        yield slave


async def send(stack: Stack, count: int, *, size: int = 1000) -> list[SendStatus]:
    async with Producer(namesrv=stack.namesrv_address) as producer:
        messages = [Message(TOPIC, os.urandom(size)) for _ in range(count)]
        return [(await producer.send(message)).status for message in messages]


def has(stack: Stack, end_offset: int) -> bool:
    """Return whether a slave has confirmed a log that ends there."""
    return master_of(stack).confirmed_offset == end_offset


def end_of(stack: Stack) -> int:
    return stack.broker.parts.store.end_offset


async def test_a_slave_gets_the_log_as_it_is_and_as_it_grows(tmp_path: Path) -> None:
    async with started_stack(tmp_path, replicate="async") as stack, slave_at(stack, 0) as slave:
        for _ in range(2):
            begin = end_of(stack)
            assert await send(stack, 100) == [SendStatus.OK] * 100
            end = end_of(stack)
            assert await slave.copy(begin, end) == log_bytes(tmp_path, begin, end)
            await slave.report(end)
            await until(partial(has, stack, end))
        async with Admin(namesrv=stack.namesrv_address) as admin:
            known = await admin.replication("broker-a")
        [one] = known.replicas
        assert (one.confirmed_offset, one.behind_bytes, one.is_in_sync) == (end, 0, True)
        assert known.in_sync == 1


async def test_a_slave_that_reports_0_gets_the_last_file_and_frames_end_with_files(
    tmp_path: Path,
) -> None:
    async with started_stack(tmp_path, replicate="async") as stack:
        await send(stack, 24, size=900_000)
        end = end_of(stack)
        file_begin = end - end % COMMITLOG_FILE_BYTES
        assert file_begin > 0
        async with slave_at(stack, 0) as slave:
            assert await slave.copy(file_begin, end) == log_bytes(tmp_path, file_begin, end)
        async with slave_at(stack, 1) as slave:
            copied = b""
            while len(copied) < end - 1:
                offset, piece = await slave.frame()
                assert offset // COMMITLOG_FILE_BYTES == (offset + len(piece) - 1) // (
                    COMMITLOG_FILE_BYTES
                )
                copied += piece
            assert copied == log_bytes(tmp_path, 1, end)


@pytest.mark.parametrize("report", [-1, 1 << 40])
async def test_a_slave_with_another_log_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, report: int
) -> None:
    async with started_stack(tmp_path, replicate="async") as stack:
        await send(stack, 1)
        async with slave_at(stack, report) as slave:
            assert await slave.is_closed()
        await until(lambda: not master_of(stack).slaves)
    [line] = [text for text in caplog.messages if text.startswith("no log for a slave")]
    assert "reports the offset -1" in line or "motelog store cut" in line


async def test_who_is_not_among_the_peers_gets_nothing(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"replicate": "async", "ha_peers": ("10.1.2.3",)}
    async with started_stack(tmp_path, **fields) as stack, slave_at(stack, 0) as slave:
        assert await slave.is_closed()
        assert not master_of(stack).slaves


async def test_a_fault_with_one_slave_ends_its_connection_alone(tmp_path: Path) -> None:
    async with started_stack(tmp_path, replicate="async") as stack:
        usual = master_of(stack).fault_at

        async def fail(_host: str) -> str | None:
            raise ValueError("a broker says that its address is not one")

        master_of(stack).fault_at = fail
        async with slave_at(stack, 0) as slave:
            assert await slave.is_closed()
        master_of(stack).fault_at = usual
        async with slave_at(stack, 0) as slave:
            await until(lambda: master_of(stack).is_followed)


async def test_silence_ends_a_connection_and_idle_ones_get_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(master, "SILENCE_S", 0.5)
    async with started_stack(tmp_path, replicate="async") as stack, slave_at(stack, 0) as slave:
        assert await slave.frame() == (0, b"")
        assert await slave.frame() == (0, b"")
        await until(lambda: not master_of(stack).slaves)


async def test_a_message_is_acknowledged_when_a_slave_has_it(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"replicate": "sync", "slave_timeout_ms": 500}
    async with started_stack(tmp_path, **fields) as stack:
        assert await send(stack, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
        async with slave_at(stack, end_of(stack)) as slave:
            await until(lambda: master_of(stack).is_followed)
            assert await send(stack, 1) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
            sent: list[SendStatus] = []

            async def send_some() -> None:
                sent.extend(await send(stack, 3))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_some)
                while len(sent) < 3:
                    with trio.move_on_after(0.1):
                        offset, piece = await slave.frame()
                        await slave.report(offset + len(piece))
            assert sent == [SendStatus.OK] * 3
        await until(lambda: not master_of(stack).slaves)
        assert await send(stack, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]


async def test_too_few_slaves_refuse_messages_that_need_them(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"replicate": "sync", "slaves_min": 1}
    async with started_stack(tmp_path, **fields) as stack:
        with pytest.raises(SendFailedError, match="slaves near enough: 0; slaves_min is 1"):
            await send(stack, 1)
        assert end_of(stack) == 0
        async with slave_at(stack, 0) as slave:
            await until(lambda: master_of(stack).is_followed)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, stack, 1)
                await until(lambda: end_of(stack) > 0)
                await slave.copy(0, end_of(stack))
                await slave.report(end_of(stack))


async def test_what_waits_for_a_slave_that_goes_is_no_warning_if_slaves_are_required(
    tmp_path: Path,
) -> None:
    fields: dict[str, Any] = {"replicate": "sync", "slaves_min": 1}
    async with started_stack(tmp_path, **fields) as stack, trio.open_nursery() as nursery:
        statuses: list[SendStatus] = []

        async def send_one() -> None:
            statuses.extend(await send(stack, 1))

        async with slave_at(stack, 0):
            await until(lambda: master_of(stack).is_followed)
            nursery.start_soon(send_one)
            await until(lambda: end_of(stack) > 0)
        await until(lambda: statuses)
        assert statuses == [SendStatus.FLUSH_SLAVE_TIMEOUT]


async def test_what_a_slave_asks_for_first_acknowledges_nothing(tmp_path: Path) -> None:
    """Its log may be another one of the same length: it compares it with what it gets."""
    fields: dict[str, Any] = {"replicate": "sync", "slave_timeout_ms": 1000}
    async with started_stack(tmp_path, **fields) as stack, slave_at(stack, 0) as slave:
        await until(lambda: master_of(stack).is_followed)
        sent: list[SendStatus] = []

        async def send_one() -> None:
            sent.extend(await send(stack, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_one)
            await until(lambda: end_of(stack) > 0)
            async with slave_at(stack, end_of(stack)):
                await until(lambda: len(master_of(stack).slaves) == 2)
                await until(lambda: sent)
        assert sent == [SendStatus.FLUSH_SLAVE_TIMEOUT]
        await slave.report(end_of(stack))
        await until(lambda: has(stack, end_of(stack)))


async def test_readers_see_what_a_slave_has_while_one_is_there(tmp_path: Path) -> None:
    async with started_stack(tmp_path, replicate="sync", slave_timeout_ms=200) as stack:
        store = stack.broker.parts.store
        await send(stack, 1)  # no slave: it is refused, and readable
        begin = store.readable_offset
        assert begin == end_of(stack)
        async with slave_at(stack, begin) as slave:
            await until(lambda: master_of(stack).is_followed)
            await send(stack, 1)
            one = end_of(stack)
            await send(stack, 1)
            end = end_of(stack)
            assert store.readable_offset == begin
            await slave.copy(begin, end)
            # A slave of Apache's may have a part of a record.
            for confirmed, readable in ((one - 1, begin), (one, one), (end - 1, one), (end, end)):
                await slave.report(confirmed)
                await until(partial(has, stack, confirmed))
                assert store.readable_offset == readable
            await send(stack, 1)
            assert store.readable_offset == end
        # The name server knows no other master.
        await until(lambda: store.readable_offset == end_of(stack) > end)


async def test_with_sync_flush_what_no_slave_has_is_on_the_disk_when_that_is_said(
    tmp_path: Path,
) -> None:
    async with started_stack(tmp_path, flush="sync", replicate="sync") as stack:
        assert await send(stack, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
        assert stack.broker.parts.store.durable_offset == end_of(stack)


async def test_a_slave_far_behind_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "BEHIND_BYTES_MAX", 100_000)
    async with started_stack(tmp_path, replicate="sync") as stack, slave_at(stack, 0):
        await until(lambda: master_of(stack).is_followed)
        await send(stack, 1, size=200_000)
        assert await send(stack, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]


async def test_what_rocketmq_4_cannot_read_is_refused_before_a_slave_meets_it(
    tmp_path: Path,
) -> None:
    group = "g" * 121
    retry_topic = f"%RETRY%{group}"
    async with (
        started_stack(tmp_path, replicate="async") as stack,
        connected(stack.broker_address) as peer,
    ):
        beat = await peer.ask(RequestCode.HEART_BEAT, body=json_body(heartbeat(group)))
        assert beat.code == ResponseCode.INVALID_PARAMETER
        assert "has 128 bytes, and slaves of RocketMQ 4" in str(beat.remark)
        assert retry_topic not in stack.broker.tables.topics.table()
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        beat = await peer.ask(RequestCode.HEART_BEAT, body=json_body(heartbeat(group)))
        assert beat.code == ResponseCode.SUCCESS
        assert retry_topic in stack.broker.tables.topics.table()
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match='set replicate = "off"')):
        async with started_stack(tmp_path, replicate="async"):
            raise AssertionError("it has started")


def slave_of(stack: Stack, folder: Path, **settings: Any) -> ApacheServer:
    """Apache's slave of our master; it finds that at our name server."""
    names = {"brokerName": "broker-a", "brokerId": 1, "brokerRole": "SLAVE"}
    return ApacheServer(
        VERSION_4, folder, namesrv=stack.namesrv_address, settings={**names, **settings}
    )


def end_count(stack: Stack) -> int:
    """Return how many messages the topic has."""
    store = stack.broker.parts.store
    return sum(
        store.reader.max_offset(TOPIC, queue) for name, queue in store.queues() if name == TOPIC
    )


async def pulled_at_slave(consumer: PullConsumer, queue: MessageQueue, offset: int) -> PullResult:
    """Return the slave's answer; it learns of topics from its master each 10 s."""
    with trio.fail_after(WITHIN_S):
        while True:
            try:
                return await consumer.pull(queue, offset, broker_id=1)
            except BrokerError as exc:
                if exc.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                await trio.sleep(0.2)


async def read_at_slave(stack: Stack) -> tuple[int, set[int]]:
    """Return how many messages the slave's queues count, and the sizes of those that it gives."""
    sizes: set[int] = set()
    count = 0
    async with PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
        for queue in await consumer.queues(TOPIC):
            found = await pulled_at_slave(consumer, queue, 0)
            if found.min_offset:
                found = await pulled_at_slave(consumer, queue, found.min_offset)
            sizes |= {len(message.body) for message in found.messages()}
            count += found.max_offset
    return count, sizes


@pytest.mark.java
@pytest.mark.timeout(180)
async def test_apaches_slave_copies_our_log_and_serves_it_while_we_are_away(
    tmp_path: Path,
) -> None:
    # It asks for the topics at the VIP port.
    fields: dict[str, Any] = {
        "listen": f"127.0.0.1:{free_port()}",
        "replicate": "sync",
        "slave_timeout_ms": 1000,
    }
    async with started_stack(tmp_path / "ours", **fields) as stack:
        await send(stack, 20, size=900_000)
        async with slave_of(stack, tmp_path / "theirs") as slave:
            await until(lambda: master_of(stack).confirmed_offset == end_of(stack))
            assert await send(stack, 50) == [SendStatus.OK] * 50
            os.kill(slave.pid, signal.SIGSTOP)
            late = await send(stack, 1)
            os.kill(slave.pid, signal.SIGCONT)
            assert late == [SendStatus.FLUSH_SLAVE_TIMEOUT]
            assert await send(stack, 1) == [SendStatus.OK]
            end = end_of(stack)
            begin = end - end % COMMITLOG_FILE_BYTES
            theirs = log_bytes(tmp_path / "theirs", begin, end)
            assert theirs == log_bytes(tmp_path / "ours", begin, end)
            # Its tables come each 10 s, and it answers readers of the topics in them.
            count, sizes = await read_at_slave(stack)
            assert count == end_count(stack)
            assert 1000 in sizes
