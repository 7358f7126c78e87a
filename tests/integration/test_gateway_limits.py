"""A gateway of its own on real sockets, filled up to its limits."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.gateway.server import Gateway
from tests.support.fake_log import FakeLog
from tests.support.gateway_stage import publish

CONNECTED = b"\x20\x02\x00\x00"
SERVER_UNAVAILABLE = b"\x20\x02\x00\x03"


@pytest.fixture
async def gateway(nursery: trio.Nursery) -> Gateway:
    gateway = Gateway(GatewayConfig(listen="127.0.0.1:0", connections_max=2), FakeLog())
    await nursery.start(gateway.run)
    return gateway


async def test_full_gateway_answers_and_lets_a_known_client_take_over(gateway: Gateway) -> None:
    with trio.fail_after(20):
        streams = [await trio.open_tcp_stream(*gateway.address) for _ in range(4)]
        answers = []
        for stream, client_id in zip(streams, ("one", "two", "three", "one"), strict=True):
            await stream.send_all(encode_connect(Connect(4, True, 60, client_id)))
            answers.append(await stream.receive_some())
        assert answers == [CONNECTED, CONNECTED, SERVER_UNAVAILABLE, CONNECTED]
        assert await streams[2].receive_some() == b""
        assert await streams[0].receive_some() == b""
        await streams[3].send_all(b"\xc0\x00")
        assert await streams[3].receive_some() == b"\xd0\x00"
        for stream in streams:
            await stream.aclose()


async def test_keep_alive_0_of_version_4_is_looked_after_by_the_system(gateway: Gateway) -> None:
    with trio.fail_after(20):
        stream = await trio.open_tcp_stream(*gateway.address)
        await stream.send_all(encode_connect(Connect(4, True, 0, "silent")))
        assert await stream.receive_some() == CONNECTED
        ours = stream.socket.getsockname()
        timers = [line.split() for line in await trio.to_thread.run_sync(_sockets)]
    [timer] = [t[5] for t in timers if t[2] == _hex_address(ours) and t[3] == "01"]
    assert timer.startswith("02:"), "the keep-alive timer of the gateway's socket does not run"
    await stream.aclose()


async def test_many_new_sessions_are_in_the_view_before_the_next_second(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("motelog.gateway.tasks.TICK_S", 3600.0)
    monkeypatch.setattr("motelog.gateway.state.unread.UNREAD_MAX", 2)
    path = str(tmp_path / "view.db")
    gateway = Gateway(GatewayConfig(listen="127.0.0.1:0", view_path=path), FakeLog())
    await nursery.start(gateway.run)

    def names() -> list[str]:
        with closing(sqlite3.connect(path)) as view:
            rows = view.execute("SELECT client_id FROM sessions ORDER BY client_id")
            return [name for (name,) in rows]

    with trio.fail_after(20):
        streams = []
        for client_id in ("one", "three", "two"):
            assert names() == []
            stream = await trio.open_tcp_stream(*gateway.address)
            await stream.send_all(encode_connect(Connect(4, False, 60, client_id)))
            assert await stream.receive_some() == CONNECTED
            streams.append(stream)
        while names() != ["one", "three", "two"]:  # noqa: ASYNC110  # no event
            await trio.sleep(0.01)
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize("version", [4, 5])
async def test_largest_password_and_payload_pass(gateway: Gateway, version: int) -> None:
    payload = bytes(1 << 20)
    connect = Connect(version, True, 60, "c", user_name="u", password=bytes(65_535))
    with trio.fail_after(20):
        stream = await trio.open_tcp_stream(*gateway.address)
        await stream.send_all(encode_connect(connect))
        assert (await stream.receive_some())[3] == 0
        await stream.send_all(publish("t/" + "x" * 1000, payload, 7, version=version))
        assert await stream.receive_some() == b"\x40\x02\x00\x07"
        await stream.aclose()


@pytest.mark.parametrize("version", [4, 5])
async def test_connect_above_connect_bytes_max_is_closed_without_an_answer(
    nursery: trio.Nursery, version: int
) -> None:
    def connect(client_id: str, password_bytes: int) -> bytes:
        password = bytes(password_bytes)
        return encode_connect(
            Connect(version, True, 60, client_id, user_name="u", password=password)
        )

    largest, larger = connect("fits", 1000), connect("last", 1001)
    assert len(larger) == len(largest) + 1
    config = GatewayConfig(listen="127.0.0.1:0", connect_bytes_max=len(largest))
    gateway = Gateway(config, FakeLog())
    await nursery.start(gateway.run)
    with trio.fail_after(20):
        stream = await trio.open_tcp_stream(*gateway.address)
        await stream.send_all(largest)
        assert (await stream.receive_some())[3] == 0
        refused = await trio.open_tcp_stream(*gateway.address)
        await refused.send_all(larger[:8])  # its length says it, nothing more is waited for
        assert await refused.receive_some() == b""
        assert gateway.metrics.sessions_now == 1
        await stream.send_all(publish("t", bytes(2000), 7, version=version))
        assert await stream.receive_some() == b"\x40\x02\x00\x07"
        for one in (stream, refused):
            await one.aclose()


async def test_who_does_not_read_is_closed_when_all_hold_too_much(nursery: trio.Nursery) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", memory_bytes_max=50_000)
    gateway = Gateway(config, FakeLog())
    await nursery.start(gateway.run)
    with trio.fail_after(30):
        silent, writer = [await trio.open_tcp_stream(*gateway.address) for _ in range(2)]
        for stream, client_id in ((silent, "silent"), (writer, "writer")):
            await stream.send_all(encode_connect(Connect(4, True, 60, client_id)))
            assert await stream.receive_some() == CONNECTED
        await silent.send_all(bytes.fromhex("8206 0001 0001 74 00"))
        assert await silent.receive_some() == bytes.fromhex("9003 0001 00")
        number = 0
        while not gateway.metrics.connections_shed:
            number += 1
            await writer.send_all(publish("t", bytes(100_000), number, version=4))
            assert await writer.receive_some() == b"\x40\x02" + number.to_bytes(2, "big")
            await trio.sleep(0.01)
        assert gateway.metrics.sessions_now == 1
        await writer.send_all(b"\xc0\x00")
        assert await writer.receive_some() == b"\xd0\x00"
        for stream in (silent, writer):
            await stream.aclose()


def _sockets() -> list[str]:
    return Path("/proc/net/tcp").read_text().splitlines()[1:]


def _hex_address(address: tuple[str, int]) -> str:
    host = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{host:08X}:{address[1]:04X}"
