"""A slave has its master's tables: settings before they are acknowledged, progress soon after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.simple import PoppedMessage, SimpleConsumer
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.acl.users import UserInfo
from motelog.core.broker.replication import table_feed
from motelog.core.errors import BrokerError, MotelogError
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import RequestCode, ResponseCode, loads
from motelog.core.replication.table_versions import Have, decode_newer, encode
from tests.support.broker_pair import (
    WITHIN_S,
    Group,
    Member,
    is_copying,
    promote,
    started_group,
    until,
)
from tests.support.broker_stack import connected
from tests.support.ha_line import HaLine
from tests.support.ports import free_port

TOPIC = "T"


@asynccontextmanager
async def started_pair(
    folder: Path, *, both: Mapping[str, Any] | None = None, **master: Any
) -> AsyncIterator[tuple[Group, Member, Member, HaLine]]:
    """A master and its slave, which copies over a line that may be muted."""
    both = both or {}
    port = free_port()
    async with started_group(folder) as group:
        with HaLine(("127.0.0.1", port)) as line:
            first = group.member(
                0,
                ha_listen=f"127.0.0.1:{port}",
                ha_advertise=f"127.0.0.1:{line.port}",
                **both,
                **master,
            )
            # ``save_interval_s``: what the slave has when it is killed is on its disk by then.
            second = group.member(1, replicate="async", save_interval_s=0.1, **both)
            await first.start()
            await second.start()
            feeding = first.broker.parts.master
            assert feeding is not None
            await until(lambda: feeding.near_count)
            async with Producer(namesrv=group.namesrv) as producer:  # an empty log is not copied
                await producer.send(Message(TOPIC, b"first"))
            await until(lambda: is_copying(second))
            yield group, first, second, line


def saved(member: Member, name: str) -> Any:
    return loads((member.folder / "config" / name).read_bytes())


async def take_over(member: Member) -> None:
    answer = await promote(member, is_forced=True)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await until(lambda: member.broker.parts.slave is None and member.broker.is_registered)


async def test_settings_are_on_the_slaves_disk_when_they_are_acknowledged(tmp_path: Path) -> None:
    async with (
        started_pair(tmp_path, replicate="sync") as (group, master, slave, _),
        Admin(namesrv=group.namesrv) as admin,
    ):
        for number in range(20):
            await admin.put_topic(f"topic-{number}", queues=3)
            topics = saved(slave, "topics.json")["topicConfigTable"]
            assert topics[f"topic-{number}"]["writeQueueNums"] == 3
        await admin.delete_topic("topic-0")
        assert "topic-0" not in saved(slave, "topics.json")["topicConfigTable"]
        await admin.put_group("G", {"retryMaxTimes": 7})
        groups = saved(slave, "subscriptionGroup.json")["subscriptionGroupTable"]
        assert groups["G"]["retryMaxTimes"] == 7
        master.broker.tables.users.create("ada", UserInfo(password="lovelace-1815"))
        await admin.set_request_mode("topic-1", "G", by_pop=True)
        assert "topic-1" in (slave.folder / "config" / "messageRequestMode.json").read_text()
        assert "ada" in saved(slave, "users.json")["users"]


async def test_settings_that_no_slave_has_are_refused_if_one_must_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        started_pair(tmp_path, replicate="sync", slaves_min=1) as (group, master, slave, _),
        Admin(namesrv=group.namesrv) as admin,
    ):
        await admin.put_topic("before")
        copying = slave.broker.parts.slave
        assert copying is not None
        monkeypatch.setattr(copying._link, "_save", trio.sleep_forever)
        with pytest.raises(BrokerError, match="no slave has confirmed it in time"):
            await admin.put_topic("unsaved")
        await slave.stop()
        feeding = master.broker.parts.master
        assert feeding is not None
        await until(lambda: not feeding.near_count)
        with pytest.raises(BrokerError, match=r"no slave has it \(slaves_min is 1\)"):
            await admin.put_topic("alone")
        await slave.start()
        await until(lambda: is_copying(slave))
        await admin.put_topic("after")
        assert {"unsaved", "alone", "after"} <= saved(slave, "topics.json")[
            "topicConfigTable"
        ].keys()


async def test_without_a_slave_settings_are_the_masters_alone(tmp_path: Path) -> None:
    async with (
        started_pair(tmp_path, replicate="sync") as (group, _, slave, _),
        Admin(namesrv=group.namesrv) as admin,
    ):
        await slave.stop()
        await admin.put_topic("alone")
        await slave.start()
        await until(lambda: "alone" in slave.broker.tables.topics.table())


async def test_what_was_delivered_is_not_delivered_again_by_a_promoted_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_feed, "HOLD_S", 0.2)
    async with started_pair(tmp_path, replicate="async") as (group, master, slave, _):
        async with Producer(namesrv=group.namesrv) as producer:
            for number in range(8):
                await producer.send(Message(TOPIC, b"%d" % number), delay=0.1 * number)
            await producer.send(Message(TOPIC, b"level", properties={"DELAY": "1"}))
        await until(lambda: master.broker.parts.schedule.delivered_count == 8)
        await master.broker.parts.schedule._save()
        names = ("delayOffset.json", "timerOffset.json")
        await until(lambda: all((slave.folder / "config" / name).exists() for name in names))
        await until(lambda: all(saved(slave, name) == saved(master, name) for name in names))
        await until(lambda: slave.store.end_offset == master.store.end_offset)
        await master.stop()
        await take_over(slave)
        await trio.sleep(1)
        assert slave.broker.parts.schedule.delivered_count == 0


async def test_what_the_slave_lacks_is_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_feed, "HOLD_S", 0.1)
    async with started_pair(tmp_path, replicate="async") as (group, master, slave, line):
        async with Producer(namesrv=group.namesrv) as producer:
            await producer.send(Message(TOPIC, b"x"), delay=1.5)
        await until(lambda: slave.store.end_offset == master.store.end_offset)
        line.muted.add("down")
        await until(lambda: master.broker.parts.schedule.delivered_count == 1)
        # Time for the tables to come, again and again.
        await trio.sleep(1)
        assert slave.store.end_offset < master.store.end_offset
        await master.stop()
        await take_over(slave)
        await until(lambda: slave.broker.parts.schedule.delivered_count == 1)


async def test_a_transaction_is_asked_about_though_the_slave_lacks_the_last_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the master has asked about is open in a record behind the others, and not passed."""
    monkeypatch.setattr(table_feed, "HOLD_S", 0.1)
    state = TransactionState.UNKNOWN

    async def check(message: StoredMessage) -> TransactionState:
        return state

    often = {
        "transaction_timeout_s": 0.1,
        "transaction_check_interval_s": 0.1,
        "transaction_check_max": 10_000,
    }
    async with (
        started_pair(tmp_path, both=often, replicate="async") as (group, master, slave, line),
        TransactionProducer(check, namesrv=group.namesrv, group="G", topics=[TOPIC]) as producer,
    ):
        await producer.send_half(Message(TOPIC, b"bound"))
        await until(lambda: slave.store.end_offset == master.store.end_offset)
        line.muted.add("down")
        asked = master.broker.parts.check_back.asked_count
        await until(lambda: master.broker.parts.check_back.asked_count > asked + 2)
        # Time for the tables to come, again and again.
        await trio.sleep(1)
        await master.stop()
        state = TransactionState.COMMIT
        await take_over(slave)
        committed = slave.store.reader.max_offset
        await until(lambda: sum(committed(TOPIC, queue) for queue in range(8)) == 2)


async def test_a_popped_message_comes_again_though_the_slave_lacks_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_feed, "HOLD_S", 0.1)

    async def pop() -> PoppedMessage:
        with trio.fail_after(WITHIN_S):
            while True:
                try:
                    await consumer.subscribe(TOPIC)
                    for message in await consumer.receive(1, invisible_s=10, wait_s=1):
                        return message
                except MotelogError:  # nobody serves the topic yet
                    await trio.sleep(0.1)

    async with (
        started_pair(tmp_path, replicate="async") as (group, master, slave, line),
        Producer(namesrv=group.namesrv) as producer,
        SimpleConsumer(namesrv=group.namesrv, group="R") as consumer,
    ):
        await consumer.ack(await pop())
        await producer.send(Message(TOPIC, b"popped"))
        await until(lambda: slave.store.end_offset == master.store.end_offset)
        line.muted.add("down")
        assert (await pop()).body == b"popped"
        offsets = master.broker.tables.offsets
        await until(lambda: offsets.query("R", TOPIC, 0) == 2)
        # Time for the tables to come, again and again.
        await trio.sleep(1)
        await master.stop()
        await take_over(slave)
        assert (await pop()).body == b"popped"


async def test_offsets_follow_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_feed, "HOLD_S", 0.1)
    async with started_pair(tmp_path, replicate="async") as (_, master, slave, _):
        for offset in (3, 5, 8):
            master.broker.tables.offsets.commit("G", TOPIC, 0, offset)
            await until(lambda: slave.broker.tables.offsets.query("G", TOPIC, 0) == offset)  # noqa: B023


async def test_a_table_is_sent_when_it_has_changed(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        master = group.member(0, replicate="async")
        await master.start()
        async with connected(master.address) as peer, Admin(namesrv=group.namesrv) as admin:

            async def ask(have: Have) -> tuple[Have, set[str]]:
                answer = await peer.ask(RequestCode.FOLLOW_TABLES, body=encode(have))
                newer = decode_newer(answer.body)
                versions = {name: table.version for name, table in newer.tables.items()}
                return Have(newer.epoch, {**have.versions, **versions}), set(newer.tables)

            have, names = await ask(Have())
            assert names == {
                "topics", "groups", "requestModes", "users", "offsets", "orders", "delays",
            }  # fmt: skip
            await admin.put_topic("T")
            have, names = await ask(have)
            assert names == {"topics"}
            # Versions of an earlier start say nothing.
            _, names = await ask(Have("other", have.versions))
            assert {"topics", "groups", "users"} <= names
            invalid = await peer.ask(RequestCode.FOLLOW_TABLES, body=b"{")
            assert invalid.code == ResponseCode.SYSTEM_ERROR
            assert "invalid versions" in (invalid.remark or "")


async def test_tables_go_to_those_alone_that_may_copy(tmp_path: Path) -> None:
    async with started_group(tmp_path) as group:
        strict = group.member(0, replicate="async", ha_peers=("10.1.2.3",))
        alone = group.member(1, id=0, name="alone")
        for member, code in (
            (strict, ResponseCode.NO_PERMISSION),
            (alone, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        ):
            await member.start()
            async with connected(member.address) as peer:
                answer = await peer.ask(RequestCode.FOLLOW_TABLES, body=encode(Have()))
            assert answer.code == code
