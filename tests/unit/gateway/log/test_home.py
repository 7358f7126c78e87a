"""Which broker has the gateways' state: chosen once, written down, and waited for."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import pytest
import trio
import trio.testing

from motelog.bridge.client import Client
from motelog.bridge.errors import NoNameServerError
from motelog.core.errors import RemotingConnectError
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, dumps
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.log.remote import home, listing, topic_maker, topics
from motelog.gateway.log.remote.entries import NAMESPACE, Entries
from motelog.gateway.log.remote.home import KEY, Home
from motelog.gateway.log.remote.remote_log import RemoteLog
from tests.support.broker_stack import eventually
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.unit.gateway.log.test_remote_log import remote_log

HOME = (NAMESPACE, KEY)


class NameServers:
    """The key-value tables of three name servers, of which some may be away or refuse."""

    def __init__(self) -> None:
        self.namesrv_addresses = ("x", "y", "z")
        self.values = dict[str, str]()
        self.away: set[str] = set()
        self.refusing: set[str] = set()

    async def request(self, address: str, command: RemotingCommand) -> RemotingCommand:
        await trio.lowlevel.checkpoint()
        if address in self.away:
            raise RemotingConnectError(f"{address}: Connection refused")
        assert command.ext["namespace"] == NAMESPACE
        if command.code == RequestCode.PUT_KV_CONFIG:
            assert command.ext["key"] == KEY
            if address in self.refusing:
                return command.answer(ResponseCode.SYSTEM_ERROR, "the disk is full")
            self.values[address] = command.ext["value"]
            return command.answer()
        if address not in self.values:
            return command.answer(ResponseCode.QUERY_NOT_FOUND, "no such entry")
        return command.answer(body=dumps({"table": {KEY: self.values[address]}}))

    def home(self, chosen: str | None = None) -> Home:
        async def choose() -> str:
            assert chosen is not None, "there is a home"
            await trio.lowlevel.checkpoint()
            return chosen

        return Home(Entries(cast("Client", self)), choose)


async def look(one: Home) -> None:
    """Read the entries as a gateway does from time to time."""
    with suppress(NoNameServerError):
        await one._entries.read()
        one.look()


async def test_gateways_that_choose_at_the_same_time_agree(
    autojump_clock: trio.testing.MockClock,
) -> None:
    servers, found = NameServers(), set[str]()

    async def find(chosen: str) -> None:
        found.add(await servers.home(chosen).find())

    async with trio.open_nursery() as nursery:
        for chosen in ("a", "b", "c"):
            nursery.start_soon(find, chosen)
    assert len(found) == 1
    assert servers.values == dict.fromkeys("xyz", f"1:{found.pop()}")


async def test_the_latest_entry_counts_and_is_written_where_it_is_missing() -> None:
    servers = NameServers()
    servers.values |= {"x": "2:b", "y": "1:a"}
    servers.away.add("x")
    assert await servers.home().find() == "a"
    assert servers.values["z"] == "1:a"
    servers.away.clear()
    assert await servers.home().find() == "b"
    assert servers.values == dict.fromkeys("xyz", "2:b")


async def test_an_entry_that_is_none_is_replaced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    servers = NameServers()
    servers.values |= {"x": "broker-a", "y": ":a", "z": "x:a"}
    assert await servers.home("a").find() == "a"
    assert servers.values == dict.fromkeys("xyz", "1:a")


async def test_without_a_name_server_nothing_is_chosen() -> None:
    servers = NameServers()
    servers.away |= {"x", "y", "z"}
    with pytest.raises(NoNameServerError, match="Connection refused"):
        await servers.home().find()


async def test_a_name_server_that_keeps_nothing_is_reported(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers()
    servers.refusing |= {"x", "y", "z"}
    assert await servers.home("a").find() == "a"
    assert "the disk is full" in caplog.text


async def test_a_gateway_sees_that_the_home_has_moved_and_restores_lost_entries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = NameServers()
    servers.values |= dict.fromkeys("xyz", "1:a")
    one = servers.home()
    await look(one)  # it is not known yet
    await one.find()
    servers.values.clear()
    await look(one)
    assert servers.values == dict.fromkeys("xyz", "1:a")
    servers.away |= {"x", "y", "z"}
    await look(one)
    assert caplog.text == ""
    servers.away.clear()
    servers.values["y"] = "2:b"
    await look(one)
    assert "has another home: restart this gateway broker=b instead_of=a" in caplog.text
    assert one.broker == "a"
    taken = servers.home()
    taken.take("c")  # nothing is said about it, nor written
    servers.values.clear()
    await look(taken)
    assert not servers.values
    assert (await taken.find(), taken.broker) == ("c", "c")


# --- the topics there ------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "SETTLE_S", 0.05)
    monkeypatch.setattr(topics, "UNASKED_S", 0.05)
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.05)
    monkeypatch.setattr(topic_maker, "ROUTE_WAIT_S", 0.1)


def create(log: RemoteLog) -> None:
    for name in GATEWAY_TOPICS:
        log.create_topic(name, 1)


async def are_there(log: RemoteLog, cluster: FakeCluster, broker: str) -> None:
    await eventually(lambda: all(log.queues(name) for name in GATEWAY_TOPICS))
    places = {queue.name.broker_name for name in GATEWAY_TOPICS for queue in log.queues(name)}  # type: ignore[attr-defined]  # RemoteQueue
    assert places == {broker}
    assert cluster.values[HOME].endswith(f":{broker}")


@pytest.mark.usefixtures("quick")
async def test_topics_of_gateways_are_made_at_one_broker() -> None:
    async with fake_cluster("a", "b") as cluster, remote_log(cluster) as log:
        create(log)
        await are_there(log, cluster, "a")
        assert set(cluster.brokers[0].topics) == GATEWAY_TOPICS
        assert not cluster.brokers[1].topics


@pytest.mark.usefixtures("quick")
async def test_a_home_that_is_away_is_waited_for() -> None:
    async with fake_cluster("a", "b") as cluster:
        cluster.values[HOME] = "1:b"
        second = cluster.brokers.pop()
        address, second.address = second.address, "127.0.0.1:1"
        async with remote_log(cluster, wait_s=0.1) as log:
            create(log)
            await eventually(lambda: log.outage is not None)
            await trio.sleep(0.3)
            assert not any(log.queues(name) for name in GATEWAY_TOPICS)
            assert not cluster.brokers[0].topics
            assert "sessions and retained messages of all gateways are at b" in log.start_waits_for
            second.address = address
            cluster.brokers.append(second)
            await are_there(log, cluster, "b")


@pytest.mark.usefixtures("quick")
async def test_state_stays_where_earlier_versions_have_put_it() -> None:
    async with fake_cluster("a", "b") as cluster:
        cluster.topics |= dict.fromkeys(GATEWAY_TOPICS, 1)  # they made it at every broker
        async with remote_log(cluster) as log:
            create(log)
            await are_there(log, cluster, "a")
