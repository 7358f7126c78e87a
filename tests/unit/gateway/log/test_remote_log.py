"""The log of brokers elsewhere, against a cluster in this process that does as it is told."""

from __future__ import annotations

import trio

from tests.support.fake_cluster import fake_cluster
from tests.support.log_port_check import check_log_port
from tests.support.remote_stage import RemoteStage


async def test_the_log_of_brokers_elsewhere() -> None:
    with trio.fail_after(30):
        async with fake_cluster("a") as cluster:
            cluster.topics.clear()
            await check_log_port(RemoteStage(cluster))
