"""Frames that no client sends: the connection they come on ends, everybody else goes on."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from motelog.core.net.config import ListenerConfig
from motelog.core.net.listeners import open_listeners
from motelog.core.remoting.client import connect
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialize,
    decode,
    encode,
)
from motelog.core.remoting.server import Connection, ConnectionLimits, RemotingServer
from tests.support.broker_stack import (
    TIMEOUT_S,
    Peer,
    Stack,
    connected,
    eventually,
    pull_ext,
    send_ext,
    started_stack,
)


def frame(header: bytes, body: bytes = b"", *, serialize: int = 0) -> bytes:
    size = struct.pack(">II", 4 + len(header) + len(body), serialize << 24 | len(header))
    return size + header + body


BAD_FRAMES = {
    "length zero": struct.pack(">I", 0),
    "length below the header": struct.pack(">I", 3) + b"abc",
    "length above the limit": struct.pack(">I", 0x7FFFFFFF),
    "negative length": struct.pack(">i", -5),
    "header longer than the frame": struct.pack(">II", 8, 1000) + b"{}{}",
    "unknown serialize type": frame(b"{}", serialize=9),
    "header is not JSON": frame(b"hello"),
    "header is a list": frame(b"[1,2]"),
    "header without code": frame(b'{"opaque":1}'),
    "code is text": frame(b'{"code":"ten"}'),
    "code is too large": frame(b'{"code":99999999999}'),
    "deep JSON": frame(b'{"code":10,"extFields":' + b"[" * 100_000),
    "deep objects": frame(b'{"code":10,"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"),
    "not UTF-8": frame(b'{"code":10,"remark":"\xff\xfe"}'),
    "lone surrogate": frame(b'{"code":310,"extFields":{"b":"\\ud800"}}'),
    "binary header cut short": frame(b"\x00\x0a\x00", serialize=1),
    "binary remark longer than the header": frame(
        struct.pack(">hBhiii", 10, 0, 0, 1, 0, 1 << 30), serialize=1
    ),
    "binary ext of negative length": frame(
        struct.pack(">hBhiiii", 10, 0, 0, 1, 0, 0, -1), serialize=1
    ),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
}


@asynccontextmanager
async def servers(tmp_path: Path) -> AsyncIterator[tuple[Stack, Peer]]:
    """Run both servers and a well-behaved client of the broker, served before and after."""
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        yield stack, peer
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"still here")
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0))
        assert answer.code == ResponseCode.SUCCESS


async def read_to_end(address: str, data: bytes) -> bytes:
    """Send bytes; return what the server sends before it ends the connection."""
    stream = await connect(address, timeout_s=TIMEOUT_S)
    received = b""
    async with stream:
        with trio.fail_after(TIMEOUT_S), suppress(trio.BrokenResourceError):
            await stream.send_all(data)
            while part := await stream.receive_some():
                received += part
    return received


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_a_malformed_frame_ends_its_connection_only(tmp_path: Path, name: str) -> None:
    async with servers(tmp_path) as (stack, _):
        for address in (stack.broker_address, stack.namesrv_address):
            assert await read_to_end(address, BAD_FRAMES[name]) == b""


async def test_what_came_before_a_malformed_frame_is_served_and_nothing_after(
    tmp_path: Path,
) -> None:
    def send(body: bytes, opaque: int) -> bytes:
        ext = {name: str(value) for name, value in send_ext("T").items()}
        return encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext=ext, body=body))

    async with servers(tmp_path) as (stack, _):
        bad = frame(b"hello")
        answered = await read_to_end(stack.broker_address, send(b"1", 1) + bad + send(b"2", 2))
        assert decode(answered).opaque == 1
        assert stack.broker.api.max_offset("T", 0) == 1


async def test_random_bytes_end_in_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # replays a failure
    generator = random.Random(seed)
    valid = encode(
        RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            1,
            ext={name: str(value) for name, value in send_ext("Fuzz").items()},
            body=b"body",
        )
    )
    async with servers(tmp_path) as (stack, peer):
        for number in range(60):
            if number % 2:
                data = bytearray(valid)
                for _ in range(generator.randrange(1, 5)):
                    data[generator.randrange(8, len(data))] = generator.randrange(256)
            else:
                data = bytearray(generator.randbytes(generator.randrange(8, 200)))
                # A length that is right, so that the rest is looked at.
                data[:4] = struct.pack(">I", len(data) - 4)
            stream = await connect(stack.broker_address, timeout_s=TIMEOUT_S)
            async with stream:
                with trio.move_on_after(0.02), suppress(trio.BrokenResourceError):
                    await stream.send_all(bytes(data))
                    await stream.receive_some()
            answer = await peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
            assert answer.code == ResponseCode.SUCCESS


async def test_slow_frames_arrive_whole(tmp_path: Path) -> None:
    ext = {name: str(value) for name, value in send_ext("T").items()}
    data = encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext=ext, body=b"bytes"))
    async with servers(tmp_path) as (stack, _):
        stream = await connect(stack.broker_address, timeout_s=TIMEOUT_S)
        async with stream:
            for at in range(0, len(data), 7):
                await stream.send_all(data[at : at + 7])
                await trio.lowlevel.checkpoint()
            with trio.fail_after(TIMEOUT_S):
                assert await stream.receive_some(8)


async def test_a_client_that_does_not_read_is_served_no_further(tmp_path: Path) -> None:
    """It asks for 600 x 100 kB and reads nothing: the broker must not queue 60 MB for it."""
    ext = {name: str(value) for name, value in pull_ext("Big", 0, maxMsgNums=1).items()}
    count = 600
    pulls = b"".join(
        encode(RemotingCommand(RequestCode.PULL_MESSAGE, i, ext=ext)) for i in range(count)
    )
    async with servers(tmp_path) as (stack, peer):
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Big"), b"x" * 100_000)
        stream = await connect(stack.broker_address, timeout_s=TIMEOUT_S)
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, pulls)
            # Others are served while it does not read.
            for _ in range(20):
                answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("Big", 0))
                assert answer.code == ResponseCode.SUCCESS
            # Once it reads, it gets every answer, in order.
            received = bytearray()
            opaques: list[int] = []
            with trio.fail_after(60):
                while len(opaques) < count:
                    received += await stream.receive_some(1 << 20)
                    while len(received) >= 4:
                        end = 4 + int.from_bytes(received[:4], "big")
                        if len(received) < end:
                            break
                        header = bytes(received[8 : 8 + int.from_bytes(received[5:8], "big")])
                        opaques.append(int(header.split(b'"opaque":')[1].split(b",")[0]))
                        del received[:end]
            assert opaques == list(range(count))


@pytest.mark.parametrize("serialize", list(Serialize))
async def test_unknown_codes_and_answers_nobody_asked_for(
    tmp_path: Path, serialize: Serialize
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address, serialize) as peer:
        for code in (0, 9999, -1, 908):
            answer = await peer.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        # An answer to nothing is ignored, an unknown oneway request too.
        for flag in (1, 2, 3):
            await peer.client.send_oneway(
                RemotingCommand(9999, flag=flag, serialize=serialize), timeout_s=TIMEOUT_S
            )
        answer = await peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert answer.code == ResponseCode.SUCCESS
        assert peer.client.late_answers_count == 0


@pytest.mark.parametrize("serialize", list(Serialize))
async def test_each_request_without_its_fields_is_answered_with_a_text(
    tmp_path: Path, serialize: Serialize
) -> None:
    codes = [10, 310, 320, 11, 361, 14, 15, 29, 30, 31, 32, 33, 34, 35, 38, 41, 42, 46, 17, 200]
    codes += [202, 203, 204, 207, 208, 300, 351, 352, 37, 215, 222, 303, 314, 324, 370]
    async with started_stack(tmp_path) as stack, connected(stack.broker_address, serialize) as peer:
        for code in codes:
            answer = await peer.ask(code)
            assert (code, answer.code) == (code, ResponseCode.SYSTEM_ERROR)
            assert answer.remark


async def test_answers_that_come_after_the_server_s_end_are_dropped() -> None:
    held: list[Connection] = []

    def hold(_: RemotingCommand, connection: Connection) -> None:
        held.append(connection)

    server = RemotingServer(
        {RequestCode.PULL_MESSAGE: hold},
        ConnectionLimits(connections_max=8, frame_bytes_max=1 << 16, idle_s_max=60),
    )
    (listener,) = open_listeners(ListenerConfig(name="a", address="127.0.0.1:0"))
    server.listen(listener)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        host, port = listener.address
        async with connected(f"{host}:{port}") as peer:
            request = RemotingCommand(RequestCode.PULL_MESSAGE)
            await peer.client.send_oneway(request, timeout_s=TIMEOUT_S)
            await eventually(lambda: len(held) == 1)
            nursery.cancel_scope.cancel()
    (connection,) = held
    connection.reply(request.answer())
    server.flush()
    assert not connection.is_congested


async def test_an_answer_that_cannot_be_encoded_fails_its_request_alone() -> None:
    def answer(request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, object())  # type: ignore[arg-type]  # a fault

    server = RemotingServer(
        {RequestCode.PULL_MESSAGE: answer},
        ConnectionLimits(connections_max=8, frame_bytes_max=1 << 16, idle_s_max=60),
    )
    (listener,) = open_listeners(ListenerConfig(name="a", address="127.0.0.1:0"))
    server.listen(listener)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        host, port = listener.address
        async with connected(f"{host}:{port}") as peer:
            for _ in range(2):
                got = await peer.ask(RequestCode.PULL_MESSAGE)
                assert got.code == ResponseCode.SYSTEM_ERROR
                assert got.remark == "the server failed to process this request; see its log"
        nursery.cancel_scope.cancel()
