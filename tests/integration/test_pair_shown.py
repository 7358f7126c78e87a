"""What a master and its slave show of themselves: metrics, request 907, status, the console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from motelog.bridge.admin import Admin
from motelog.bridge.errors import ClientError
from motelog.bridge.producer import Producer, SendStatus
from motelog.core.broker.server import Broker
from motelog.core.broker.shown.metrics import BROKER_METRICS
from motelog.core.message import Message
from motelog.core.metrics import Registry
from tests.integration.test_console import asking
from tests.support.broker_pair import Member, is_copying, started_group, until


def shown(broker: Broker) -> dict[str, float]:
    """Return what /metrics has about copies."""
    registry = Registry()
    registry.add("b", BROKER_METRICS, broker.sample, broker.histograms)
    found = re.findall(r"^b_(\S+) (\S+)$", registry.exposition().decode(), re.MULTILINE)
    return {name: float(value) for name, value in found if re.search("slave|cop(y|ie)", name)}


async def send(namesrv: str) -> SendStatus:
    async with Producer(namesrv=namesrv) as producer:
        return (await producer.send(Message("T", b"x" * 1000))).status


def has_all(slave: Member, master: Member) -> bool:
    return (
        slave.store.end_offset == master.store.end_offset > 0
        and shown(master.broker).get('slave_behind_bytes{slave="slowest"}') == 0
    )


async def test_metrics_say_how_far_the_copies_are(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="sync"), group.member(1)
        await master.start()
        assert await send(group.namesrv) == SendStatus.SLAVE_NOT_AVAILABLE
        alone = {"slaves": 0, "slaves_near": 0, "slaves_needed": 1, "messages_uncopied_total": 1}
        assert shown(master.broker) == alone
        await slave.start()
        await until(lambda: has_all(slave, master))
        assert await send(group.namesrv) == SendStatus.OK
        behind = {f'slave_behind_bytes{{slave="{one}"}}': 0 for one in ("nearest", "slowest")}
        followed = {**alone, **behind, "slaves": 1, "slaves_near": 1}
        assert shown(master.broker) == followed
        found = shown(slave.broker)
        assert 0 <= found.pop("copying_silence_seconds") < 60
        assert found == {
            "copying": 1,
            "copying_behind_bytes": 0,
            # With the header of each frame.
            "copied_bytes_total": found["copied_bytes_total"],
            "messages_uncopied_total": 0,
        }
        assert found["copied_bytes_total"] > slave.store.end_offset
        await master.stop()
        await until(lambda: shown(slave.broker)["copying"] == 0)


async def test_a_slave_that_has_not_found_its_master_says_so(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        slave = group.member(1)
        await slave.start()
        found = shown(slave.broker)
        assert found["copying"] == 0
        assert found["copying_silence_seconds"] == float("inf")


async def test_both_answer_request_907(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master, slave = group.member(0, replicate="async"), group.member(1)
        await master.start()
        await send(group.namesrv)
        await slave.start()
        await until(lambda: has_all(slave, master))
        async with Admin(namesrv=group.namesrv) as admin:
            at_master = await admin.replication("broker-a")
            at_slave = await admin.replication("broker-a", broker_id=1)
            with pytest.raises(ClientError, match="no slave 2"):
                await admin.replication("broker-a", broker_id=2)
            assert (len(at_master.replicas), at_master.copying) == (1, None)
            assert at_slave.end_offset == at_master.end_offset == slave.store.end_offset
            copying = at_slave.copying
            assert copying is not None
            assert (copying.behind_bytes, copying.fault) == (0, "")
            assert copying.master_address == f"127.0.0.1:{master.broker.ha_port}"
            await master.stop()
            await until(lambda: not is_copying(slave))
            copying = (await admin.replication("broker-a", broker_id=1)).copying
            assert copying is not None
            assert copying.fault


async def test_the_console_shows_both(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group, asking(group.namesrv) as client:
        master, slave = group.member(0, replicate="async"), group.member(1)
        await master.start()
        await send(group.namesrv)
        await slave.start()
        await until(lambda: has_all(slave, master))
        first, second = (await client.get("/nodes")).json()["brokers"]
        assert (first["id"], first["slaves"], first["behind_bytes"]) == (0, 1, 0)
        assert (second["id"], second["slaves"], second["behind_bytes"]) == (1, None, 0)
        assert second["version"] == first["version"]
        assert second["copy_fault"] is None
        text = (await client.get("http://localhost/nodes")).text
        assert ">1, the nearest 0 bytes behind<" in text
        await master.stop()
        await until(lambda: not is_copying(slave))
        [left] = (await client.get("/nodes")).json()["brokers"]
        assert (left["id"], left["fault"]) == (1, None)
        assert left["copy_fault"]
        assert "does not copy: " in (await client.get("http://localhost/nodes")).text
