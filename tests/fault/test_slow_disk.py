"""Broker and gateway over a slow disk: who waits too long is told, everybody else is served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import trio

from motelog.core.addresses import parse_address
from motelog.core.message import WAIT
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode,
    encode,
)
from motelog.core.store import message_store
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.server import Gateway
from tests.support.broker_stack import (
    Peer,
    Stack,
    connected,
    eventually,
    pull_ext,
    send_ext,
    started_stack,
    store_config,
)
from tests.support.mqtt_wire import Wire
from tests.support.slow_disk import SlowDisk

FLUSH_TIMEOUT_MS = 1_500
FILE_BYTES = 65_536


@asynccontextmanager
async def served(
    folder: Path,
    disk: SlowDisk,
    monkeypatch: pytest.MonkeyPatch,
    *,
    flush: Literal["async", "sync"],
    broker: dict[str, Any] | None = None,
    **store: Any,
) -> AsyncIterator[tuple[Stack, Gateway]]:
    """Run name server, broker and gateway, whose store is on ``disk``."""
    monkeypatch.setattr(message_store, "OsStorage", lambda: disk)
    config = msgspec.structs.replace(
        store_config(folder, flush=flush, flush_timeout_ms=FLUSH_TIMEOUT_MS), **store
    )
    with trio.fail_after(60):
        async with (
            started_stack(folder, store=config, **broker or {}) as stack,
            trio.open_nursery() as nursery,
        ):
            gateway = Gateway(GatewayConfig(listen="127.0.0.1:0"), LocalLog(stack.broker.api))
            await nursery.start(gateway.run)
            try:
                yield stack, gateway
            finally:
                disk.may_sync.set()
                disk.may_make.set()
            nursery.cancel_scope.cancel()


async def send(peer: Peer, body: bytes, *, topic: str = "T", properties: str = "") -> Any:
    ext = send_ext(topic, properties=properties)
    return await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, body)


async def pull_all(peer: Peer, topic: str = "T") -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, len(found)))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += decode_messages(answer.body)


async def mqtt(gateway: Gateway, client_id: str, version: int) -> Wire:
    wire = await trio.to_thread.run_sync(Wire, gateway.address)
    connack = await trio.to_thread.run_sync(lambda: wire.connect(client_id, version=version))
    assert connack.reason_code == 0
    return wire


async def packet(wire: Wire) -> tuple[int, bytes]:
    return await trio.to_thread.run_sync(wire.packet)


async def test_who_waits_for_the_disk_too_long_is_told_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with (
        served(tmp_path, disk, monkeypatch, flush="sync") as (stack, gateway),
        connected(stack.broker_address) as producer,
        connected(stack.broker_address) as other,
    ):
        assert (await send(producer, b"in time")).code == ResponseCode.SUCCESS
        five, three = await mqtt(gateway, "five", 5), await mqtt(gateway, "three", 4)
        with five, three:
            five.publish("m/a", b"in time", packet_id=1)
            assert await packet(five) == (0x40, b"\x00\x01")
            disk.may_sync.clear()
            began = trio.current_time()
            answers: list[Any] = []

            async def send_late() -> None:
                answers.append(await send(producer, b"late"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_late)
                five.publish("m/a", b"late five", packet_id=2)
                three.publish("m/a", b"late three", packet_id=2)
                # Others are served, and read what is not on the disk yet.
                await eventually(lambda: disk.syncs > 0)
                assert [m.body for m in await pull_all(other)] == [b"in time", b"late"]
                quick = await send(other, b"quick", properties=f"{WAIT}\x01false\x02")
                assert quick.code == ResponseCode.SUCCESS
                assert answers == []
                assert trio.current_time() - began < FLUSH_TIMEOUT_MS / 1000
                five.send(b"\xc0\x00")
                assert await packet(five) == (0xD0, b"")
            [late] = answers
            assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert late.ext["queueOffset"] == "1"
            assert trio.current_time() - began >= FLUSH_TIMEOUT_MS / 1000
            first_byte, body = await packet(five)
            assert (first_byte, body[:3]) == (0x40, b"\x00\x02\x83")
            assert await trio.to_thread.run_sync(three.closed)
            disk.may_sync.set()
            # It stays in the log; it is not acknowledged a second time.
            assert (await send(producer, b"after")).code == ResponseCode.SUCCESS
            five.publish("m/a", b"after", packet_id=3)
            assert await packet(five) == (0x40, b"\x00\x03")
        bodies = [m.body for m in await pull_all(other)]
        assert bodies == [b"in time", b"late", b"quick", b"after"]
        assert stack.broker.sample()["messages_too_late_on_disk"] == 1
        assert stack.broker.sample()["sends_waiting_for_disk_now"] == 0


async def test_appends_wait_for_the_next_file_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with (
        served(
            tmp_path,
            disk,
            monkeypatch,
            flush="async",
            broker={"send_wait_ms_max": FLUSH_TIMEOUT_MS},
            commitlog_file_bytes=FILE_BYTES,
        ) as (stack, gateway),
        connected(stack.broker_address) as producer,
        connected(stack.broker_address) as other,
    ):
        disk.may_make.clear()
        five, watcher = await mqtt(gateway, "five", 5), await mqtt(gateway, "watcher", 4)
        with five, watcher:
            # The messages of one publisher more than fill the file; then a small one would fit.
            bodies = [b"%4d" % number * 2_000 for number in range(12)]
            for number, body in enumerate(bodies, start=1):
                five.publish("m/a", body, packet_id=number)
            five.publish("m/a", b"small", packet_id=13)
            answers: list[Any] = []

            async def send_late() -> None:
                answers.append(await send(producer, b"native"))

            async with trio.open_nursery() as nursery:
                await eventually(lambda: stack.broker.api.line.is_waiting)
                nursery.start_soon(send_late)
                # Nobody who waits is answered, and others are.
                watcher.send(b"\xc0\x00")
                assert await packet(watcher) == (0xD0, b"")
                assert await pull_all(other) == []
                assert answers == []
                disk.may_make.set()
            assert answers[0].code == ResponseCode.SUCCESS
            acknowledged = [(await packet(five)) for _ in range(13)]
            assert acknowledged == [(0x40, bytes([0, number])) for number in range(1, 14)]
        topic, queue_id = _queue_of(stack, "m")
        found = stack.broker.api.read(topic, queue_id, 0, count_max=99, bytes_max=1 << 20)
        assert [m.body for m in decode_messages(found.records)] == [*bodies, b"small"]
        assert [m.body for m in await pull_all(other)] == [b"native"]
        assert not stack.broker.api.line.is_waiting


def _queue_of(stack: Stack, topic: str) -> tuple[str, int]:
    """Return the only queue of ``topic`` that holds messages."""
    api = stack.broker.api
    count = api.topic_queue_count(topic) or 0
    [queue_id] = [number for number in range(count) if api.max_offset(topic, number)]
    return topic, queue_id


async def test_without_a_next_file_appends_are_refused_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with (
        served(tmp_path, disk, monkeypatch, flush="async", commitlog_file_bytes=FILE_BYTES) as (
            stack,
            gateway,
        ),
        connected(stack.broker_address) as producer,
        connected(stack.broker_address) as other,
    ):
        disk.may_make.clear()
        five, three = await mqtt(gateway, "five", 5), await mqtt(gateway, "three", 4)
        with five, three:
            stored: list[bytes] = []
            refused = None
            while refused is None:
                body = b"%4d" % len(stored) * 250
                answer = await send(producer, body)
                if answer.code == ResponseCode.SUCCESS:
                    stored.append(body)
                else:
                    refused = answer
            # The file has been used up, and nothing but the next one is missing.
            assert len(stored) * 1_000 > FILE_BYTES * 0.8
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "next CommitLog file" in refused.remark
            five.publish("m/a", bytes(1_000), packet_id=1)
            three.publish("m/a", bytes(1_000), packet_id=1)
            first_byte, body = await packet(five)
            assert (first_byte, body[:3]) == (0x40, b"\x00\x01\x83")
            assert await trio.to_thread.run_sync(three.closed)
            assert [m.body for m in await pull_all(other)] == stored
            five.send(b"\xc0\x00")
            assert await packet(five) == (0xD0, b"")
            # One attempt is under way, however many were refused.
            assert len(disk.making) == 2
            assert stack.broker.api.fence_reason is None
            disk.may_make.set()
            while (answer := await send(producer, b"after")).code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                await trio.sleep(0.01)
            five.publish("m/a", b"after", packet_id=2)
            assert await packet(five) == (0x40, b"\x00\x02")
        assert [m.body for m in await pull_all(other)] == [*stored, b"after"]


async def test_messages_behind_one_that_needs_a_file_are_refused_and_then_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with (
        served(
            tmp_path,
            disk,
            monkeypatch,
            flush="async",
            broker={"send_wait_ms_max": 200},
            page_cache_busy_ms=600,
            commitlog_file_bytes=FILE_BYTES,
        ) as (stack, _),
        connected(stack.broker_address) as producer,
        connected(stack.broker_address) as other,
    ):
        disk.may_make.clear()
        line = stack.broker.api.line
        answers: list[Any] = []

        async def send_first() -> None:
            while True:
                answer = await send(producer, bytes(2_000))
                if line.slow_until_ms is None and answer.code == ResponseCode.SUCCESS:
                    continue
                answers.append(answer)
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_first)
            await eventually(lambda: line.is_waiting)
            began = trio.current_time()
            behind = await send(other, b"behind")
            assert trio.current_time() - began >= 0.2
            assert behind.code == ResponseCode.SYSTEM_BUSY
            assert behind.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control")
            await eventually(lambda: line.is_busy)
            refused = await send(other, b"while busy")
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert refused.remark == "[REJECTREQUEST]system busy, start flow control for a while"
        # The first one waits as long as it always did.
        assert answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
        sample = stack.broker.sample()
        assert (sample["requests_busy_waited"], sample["requests_busy_rejected"]) == (1, 1)
        disk.may_make.set()
        await eventually(lambda: not line.is_waiting)
        while (await send(other, b"after")).code != ResponseCode.SUCCESS:
            pass
        bodies = {m.body for m in await pull_all(other)}
        assert b"after" in bodies
        assert not bodies & {b"behind", b"while busy"}


@pytest.mark.parametrize(
    ("settings", "waits_s", "begin"),
    [
        ({"send_wait_ms_max": 200}, 0.3, "[TIMEOUT_CLEAN_QUEUE]"),
        ({"send_wait_ms_max": 60_000}, 0.0, "[PCBUSY_CLEAN"),
    ],
)
async def test_messages_that_came_while_an_append_stood_still_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    waits_s: float,
    begin: str,
) -> None:
    async with (
        served(
            tmp_path,
            SlowDisk(),
            monkeypatch,
            flush="async",
            broker=settings,
            page_cache_busy_ms=300,
        ) as (stack, _),
        connected(stack.broker_address) as producer,
    ):
        assert (await send(producer, b"before")).code == ResponseCode.SUCCESS
        line = stack.broker.api.line
        append = line._append_now
        held_up = threading.Event()

        def slow(*arguments: Any, **names: Any) -> int:
            # The one thread of the broker stands still, as it does when a page cannot be had.
            monkeypatch.setattr(line, "_append_now", append)
            held_up.set()
            time.sleep(0.7)
            return append(*arguments, **names)

        def send_meanwhile() -> RemotingCommand:
            with socket.create_connection(parse_address(stack.broker_address)) as raw:
                assert held_up.wait(10)
                time.sleep(0.35 - waits_s)
                text = {name: str(value) for name, value in send_ext("T").items()}
                raw.sendall(encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=text)))
                with raw.makefile("rb") as stream:
                    size = stream.read(4)
                    return decode(size + stream.read(int.from_bytes(size, "big")))

        monkeypatch.setattr(line, "_append_now", slow)
        answers: list[RemotingCommand] = []

        async def send_other() -> None:
            answers.append(await trio.to_thread.run_sync(send_meanwhile))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_other)
            await trio.sleep(0.2)
            # Whoever has to do with the slow append itself is served.
            assert (await send(producer, b"slow")).code == ResponseCode.SUCCESS
        assert answers[0].code == ResponseCode.SYSTEM_BUSY
        assert answers[0].remark is not None
        assert answers[0].remark.startswith(begin)
        assert (await send(producer, b"after")).code == ResponseCode.SUCCESS
        assert [m.body for m in await pull_all(producer)] == [b"before", b"slow", b"after"]
