"""What a master and its slave show of themselves: metrics, request 907, status, the console."""

from __future__ import annotations

import re
from pathlib import Path

from motelog.bridge.producer import Producer, SendStatus
from motelog.core.broker.server import Broker
from motelog.core.broker.shown.metrics import BROKER_METRICS
from motelog.core.message import Message
from motelog.core.metrics import Registry
from tests.support.broker_pair import Member, started_group, until


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
