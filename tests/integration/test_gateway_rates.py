"""Rates on real sockets: a gateway reads later, and in the end it has read everything."""

from __future__ import annotations

import time

import trio

from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.gateway.server import Gateway
from tests.support.fake_log import FakeLog
from tests.support.gateway_stage import publish

CONNECTED = b"\x20\x02\x00\x00"


async def started(nursery: trio.Nursery, config: GatewayConfig) -> Gateway:
    gateway = Gateway(config, FakeLog())
    await nursery.start(gateway.run)
    return gateway


async def test_publishes_above_the_rate_are_all_taken_later(nursery: trio.Nursery) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", publish_rate_max=500)
    gateway = await started(nursery, config)
    with trio.fail_after(20):
        stream = await trio.open_tcp_stream(*gateway.address)
        await stream.send_all(encode_connect(Connect(4, True, 60, "fast")))
        assert await stream.receive_some() == CONNECTED
        began = time.monotonic()
        # The first is a second's worth and a half; the second waits until it is worked off.
        await stream.send_all(b"".join(publish("t/1", b"x", n) for n in range(1, 751)))
        answers = b""
        while len(answers) < 4 * 750:
            answers += await stream.receive_some()
        await stream.send_all(publish("t/1", b"x", 751))
        while len(answers) < 4 * 751:
            answers += await stream.receive_some()
        assert time.monotonic() - began > 0.45
        assert answers[-4:] == b"\x40\x02" + (751).to_bytes(2, "big")
        assert gateway.metrics.messages_appended == 751
        await stream.aclose()


async def test_connections_above_the_rate_are_let_in_later(nursery: trio.Nursery) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", connect_rate_max=10, connect_timeout_s=1)
    gateway = await started(nursery, config)
    with trio.fail_after(20):
        began = time.monotonic()
        streams = [await trio.open_tcp_stream(*gateway.address) for _ in range(30)]
        for number, stream in enumerate(streams):
            await stream.send_all(encode_connect(Connect(4, True, 60, f"c{number}")))
        for stream in streams:
            assert await stream.receive_some() == CONNECTED
        assert time.monotonic() - began > 1.9
        assert gateway.metrics.connections_refused == 0
        for stream in streams:
            await stream.aclose()
