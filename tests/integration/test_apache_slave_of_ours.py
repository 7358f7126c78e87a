"""Apache's 4.9.7 slave of our master: messages of each kind, restarts of both, the tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer, SendStatus
from motelog.bridge.pull import PullConsumer
from motelog.core.message import Message
from motelog.core.remoting.codes import RequestCode
from motelog.core.remoting.frames import loads
from tests.integration.test_slave_of_apache import GROUP, PLAIN, answers, fill
from tests.support.broker_pair import Member, started_group
from tests.support.broker_stack import connected
from tests.support.java import COMMITLOG_FILE_BYTES, VERSION_4, ApacheServer

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

WITHIN_S = 90
GONE = "gone"
LARGE_BYTES, LARGE_COUNT = 1_000_000, 200


async def sent(namesrv: str, topic: str, count: int, size: int) -> SendStatus:
    """Send messages; return the status of the last one."""
    async with Producer(namesrv=namesrv, timeout_s=WITHIN_S) as producer:
        for _ in range(count):
            result = await producer.send(Message(topic, os.urandom(size)))
        return result.status


async def copied(master: Member) -> None:
    """Return when a slave has the whole log."""
    feeding = master.broker.parts.master
    assert feeding is not None
    with trio.fail_after(WITHIN_S):
        while not feeding.slaves or feeding.confirmed_offset < master.store.end_offset:  # noqa: ASYNC110  # no event
            await trio.sleep(0.02)


def assert_same(slave: Path, master: Member) -> None:
    """Every file of the slave has the master's bytes below the end."""
    end = master.store.end_offset
    assert end > LARGE_COUNT * LARGE_BYTES
    for begin in range(0, end, COMMITLOG_FILE_BYTES):
        name = f"commitlog/{begin:020}"
        theirs, ours = (slave / name).read_bytes(), (master.folder / name).read_bytes()
        assert theirs[: end - begin] == ours[: end - begin], name


async def tables_of(address: str, folder: Path) -> dict[str, Any]:
    """Return what a broker has besides messages, as far as a slave takes it over."""
    async with connected(address) as peer:
        groups = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        offsets = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    levels = folder / "config" / "delayOffset.json"
    return {
        "groups": set(loads(groups.body)["subscriptionGroupTable"]),
        "offsets": loads(offsets.body)["offsetTable"].get(f"{PLAIN}@{GROUP}"),
        "levels": loads(levels.read_bytes())["offsetTable"] if levels.exists() else None,
    }


async def test_apaches_slave_has_all_that_our_master_has(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        namesrv = group.namesrv
        # The slave asks for the tables at the VIP port.
        master = group.member(0, replicate="sync", vip=True, send_wait_ms_max=60_000)
        slave = ApacheServer(
            VERSION_4,
            tmp_path / "theirs",
            namesrv=namesrv,
            settings={"brokerName": "broker-a", "brokerId": 1, "brokerRole": "SLAVE"},
        )
        await master.start()
        async with slave:
            await copied(master)
            await fill(namesrv, VERSION_4, 0)
            await sent(namesrv, GONE, 8, 100)
            async with Admin(namesrv=namesrv) as admin, PullConsumer(namesrv=namesrv) as consumer:
                await consumer.queues(GONE, wait_s=WITHIN_S)
                await admin.delete_topic(GONE)
            await sent(namesrv, GONE, 4, 100)
            # The port stays, and so does the slave.
            await master.stop()
            await master.start()
            await copied(master)
            # RocketMQ 4 finds the message whose time is nearest, and this is the next one.
            middle_ms = master.store.now_ms()
            await fill(namesrv, VERSION_4, 1)
            await slave.stop()
            assert await sent(namesrv, "large", LARGE_COUNT, LARGE_BYTES) is (
                SendStatus.SLAVE_NOT_AVAILABLE
            )
            await slave.start()
            await copied(master)
            assert await sent(namesrv, PLAIN, 1, 100) is SendStatus.OK
            assert_same(tmp_path / "theirs", master)
            with trio.fail_after(WITHIN_S):
                wanted = await tables_of(master.address, master.folder)
                while await tables_of(slave.broker_address, tmp_path / "theirs") != wanted:
                    await trio.sleep(0.5)
                    wanted = await tables_of(master.address, master.folder)
            assert wanted["offsets"] == {str(queue_id): 3 + queue_id for queue_id in range(4)}
            assert wanted["levels"]
            expected = await answers(master.address, middle_ms)
            assert await answers(slave.broker_address, middle_ms) == expected
