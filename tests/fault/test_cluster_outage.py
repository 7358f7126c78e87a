"""A master of a cluster is killed and comes back under 200 devices: nothing acknowledged is lost.

Sessions and retained messages are at one of the masters, so each of them is killed once. With
Apache RocketMQ each has a slave, which stays: the routes then have its queues without a master.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.fault.cluster_fleet import Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.java import VERSION_4, VERSION_5, ApacheServer
from tests.support.namesrv_process import NamesrvProcess

NAMES = ("broker-a", "broker-b")
WAIT_S = 2
#: Before, during and after each outage, which is longer than publishes wait.
USUAL_S, AWAY_S, AFTER_S = 3.0, 5.0, 3.0
SEED = 7


class Master(NamedTuple):
    """A master as a test ends and starts it."""

    kill: Callable[[], None]
    start: Callable[[], Awaitable[None]]


async def test_a_master_of_ours_is_killed_and_comes_back(tmp_path: Path) -> None:
    with NamesrvProcess() as namesrv, ExitStack() as stack:
        brokers = [
            BrokerProcess(tmp_path / name, namesrv=namesrv.address, name=name) for name in NAMES
        ]
        for broker in brokers:
            stack.enter_context(broker)
        masters = [Master(one.kill, partial(trio.to_thread.run_sync, one.start)) for one in brokers]
        await kill_each(tmp_path, namesrv.address, masters)


@pytest.mark.java
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "version",
    [pytest.param(VERSION_4, marks=pytest.mark.java_all), VERSION_5],
)
async def test_a_master_of_apache_s_is_killed_and_comes_back(tmp_path: Path, version: str) -> None:
    async with apache_cluster(version, tmp_path) as (namesrv, masters):
        await kill_each(tmp_path, namesrv, masters)


@asynccontextmanager
async def apache_cluster(version: str, folder: Path) -> AsyncIterator[tuple[str, Sequence[Master]]]:
    """Yield the address of a name server, and the masters of two brokers with a slave each."""
    async with AsyncExitStack() as stack:
        namesrv = ApacheServer(version, folder / "names", has_broker=False)
        stack.push_async_exit(namesrv)
        await namesrv.launch()
        masters, slaves = list[ApacheServer](), list[ApacheServer]()
        for name in NAMES:
            settings = {"brokerName": name}
            make = partial(
                ApacheServer, version, namesrv=namesrv.namesrv_address, settings=settings
            )
            masters.append(make(folder / name))
            slaves.append(make(folder / f"{name}-slave", slave_of=masters[-1]))
        async with trio.open_nursery() as nursery:
            for server in (*masters, *slaves):
                stack.push_async_exit(server)
                nursery.start_soon(server.launch)
        yield namesrv.namesrv_address, [Master(one.kill, one.launch) for one in masters]


async def kill_each(folder: Path, namesrv: str, masters: Sequence[Master]) -> None:
    settings = f'append_wait_s = {WAIT_S}\nview_path = "{folder / "view.db"}"'
    in_thread = trio.to_thread.run_sync
    with GatewayProcess(folder, namesrv=namesrv, settings=settings) as gateway:
        fleet = Fleet(gateway.address, SEED)
        play = fleet.play
        await in_thread(fleet.begin)
        assert await in_thread(partial(play, USUAL_S, is_whole=True)) > 0
        for master in reversed(masters):  # the home is the first one by name
            master.kill()
            await in_thread(partial(play, AWAY_S, is_whole=False))
            await master.start()
            await in_thread(partial(play, AFTER_S, is_whole=False))
            assert await in_thread(partial(play, AFTER_S, is_whole=True)) > 0
        await in_thread(fleet.end)
        refused = sum(device.refused for device in fleet.devices)
        assert refused > 0
        errors = gateway.errors()
        assert errors.count("a broker is away") == errors.count("a broker is back") >= len(masters)
        assert "Traceback" not in errors
        assert await in_thread(gateway.stop) == 0
