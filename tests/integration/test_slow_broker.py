"""A broker that is slow at publishes: gateways before it do not take each other for lost."""

from __future__ import annotations

import logging

import pytest
import trio

from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.reckoning import LOST_TICKS, TICK_S
from motelog.gateway.log.remote.remote_log import RemoteLog
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.gateway.server import Gateway
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.gateway_stage import publish

#: More queues than one broker is sent to at a time.
QUEUES = 100
#: The session queue's own answers take a while too.
TICK_ANSWER_S = 0.3
LASTING_S = 3 * LOST_TICKS * TICK_S


@pytest.mark.parametrize("publish_s", [2.5, 3600.0])
async def test_ticks_do_not_wait_behind_publishes(
    publish_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster("a", queue_count=QUEUES) as cluster, trio.open_nursery() as nursery:
        _slow_down(cluster, publish_s)
        gateways = []
        for name in ("one", "other"):
            config = GatewayConfig(listen="127.0.0.1:0", name=name, namesrv=(cluster.namesrv,))
            gateways.append(Gateway(config, RemoteLog.of(config)))
        with caplog.at_level(logging.WARNING):
            with trio.fail_after(30):
                for gateway in gateways:
                    await nursery.start(gateway.run)
            with trio.move_on_after(LASTING_S):
                await _publish(gateways[0].address)
        assert cluster.brokers[0].records["T", 0] or publish_s > 10
        assert "a gateway is silent" not in caplog.text
        assert "taken for lost" not in caplog.text
        nursery.cancel_scope.cancel()


def _slow_down(cluster: FakeCluster, publish_s: float) -> None:
    [broker] = cluster.brokers
    answer = broker.answer

    async def late(request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            await trio.sleep(publish_s if request.ext["b"] == "T" else TICK_ANSWER_S)
        return await answer(request)

    broker.answer = late  # type: ignore[method-assign]  # a slow one in its place


async def _publish(address: tuple[str, int]) -> None:
    """Publish to every queue of T, connecting again when what has no answer ends the connection."""
    number = 0
    while True:
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(encode_connect(Connect(4, True, 60, "device")))
            try:
                while True:
                    for device in range(4 * QUEUES):
                        number = number % 60_000 + 1
                        await stream.send_all(publish(f"T/{device}", b"x", number))
                    await trio.sleep(0.25)
            except trio.BrokenResourceError:
                await trio.sleep(0.1)
