"""A broker joins a cluster: devices move to it in order, and away from it when it is lost."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import trio

from motelog.bridge.sync import SyncAdmin
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.gateway.log.remote.entries import NAMESPACE
from motelog.gateway.log.remote.order import KEY, Order
from tests.integration.test_remote_gateway import Client, until
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import joined
from tests.support.cli import motelog
from tests.support.gateway_process import GatewayProcess

DEVICES = [f"dev{number}" for number in range(16)]
PERIOD_S = 0.1
EXPIRY_S = 600


@pytest.fixture
async def namesrv(nursery: trio.Nursery) -> str:
    server = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
    await nursery.start(server.run)
    return joined(server.address)


class Fleet(threading.Thread):
    """Each device publishes its next number each PERIOD_S, at one of two gateways."""

    def __init__(self, *gateways: GatewayProcess) -> None:
        super().__init__(daemon=True)
        self.clients = {
            name: Client(gateways[number % len(gateways)].address, name)
            for number, name in enumerate(DEVICES)
        }
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(PERIOD_S):
            for name, client in self.clients.items():
                client.publish(f"fleet/{name}/n", b"%d" % client.sent)

    def stop(self) -> dict[str, int]:
        """Return how many each has published, all acknowledged."""
        self.is_over.set()
        self.join()
        for client in self.clients.values():
            until(lambda client=client: client.answered() == client.sent, "answers")  # type: ignore[misc]
            assert client.refused == []
            client.stop()
        return {name: client.sent for name, client in self.clients.items()}


def check_order(client: Client, sent: dict[str, int]) -> None:
    """Check that a subscriber has got all in the order in which each device published it."""
    until(lambda: len(client.received) >= sum(sent.values()), "all messages")
    for name, count in sent.items():
        own = [int(body) for topic, body in client.received if topic == f"fleet/{name}/n"]
        assert own == list(range(count)), name


async def test_devices_keep_their_order_as_a_broker_joins(tmp_path: Path, namesrv: str) -> None:
    await trio.to_thread.run_sync(join, tmp_path, namesrv)


def join(folder: Path, namesrv: str) -> None:
    gateways = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        settings = f'name = "{name}"\nappend_wait_s = 5'
        gateways.append(GatewayProcess(folder / name, namesrv=namesrv, settings=settings))
    with (
        BrokerProcess(folder / "a", namesrv=namesrv, name="broker-a"),
        BrokerProcess(folder / "b", namesrv=namesrv, name="broker-b"),
        BrokerProcess(folder / "c", namesrv=namesrv, name="broker-c") as new,
        gateways[0] as one,
        gateways[1] as two,
    ):
        new.kill()  # it has not joined yet
        away = Client(one.address, "away", session_expiry_s=EXPIRY_S)
        away.subscribe("fleet/#")
        away.stop()
        live = Client(two.address, "live")
        live.subscribe("fleet/#")
        fleet = Fleet(one, two)
        fleet.start()
        until(lambda: order(namesrv) is not None, "the order")
        assert brokers(namesrv) == {"broker-a", "broker-b"}
        refused = motelog("topic", "extend", "broker-c", "--namesrv", namesrv)
        assert "no broker broker-c is registered" in refused.stderr
        new.start()
        assert changed("extend", "broker-c", namesrv) == ["fleet"]
        assert changed("extend", "broker-c", namesrv) == []
        until(lambda: stored(namesrv, "broker-c") > 50, "messages at the new broker")
        sent = fleet.stop()
        check_order(live, sent)
        away = Client(two.address, "away", session_expiry_s=EXPIRY_S)
        assert away.is_session_present
        check_order(away, sent)
        assert brokers(namesrv) == {"broker-a", "broker-b", "broker-c"}
        refused = motelog("topic", "retire", "broker-c", "--yes", "--namesrv", namesrv)
        assert "broker-c is registered" in refused.stderr
        new.kill()
        until(lambda: "broker-c" not in registered(namesrv), "the loss of a broker")
        assert changed("retire", "broker-c", namesrv, "--yes") == ["fleet"]
        assert brokers(namesrv) == {"broker-a", "broker-b"}
        time.sleep(6)  # gateways read it each five seconds
        fleet = Fleet(one, two)
        fleet.start()
        time.sleep(5 * PERIOD_S)
        assert min(fleet.stop().values()) > 0
        for gateway in (one, two):
            assert "Traceback" not in gateway.errors()
            assert gateway.stop() == 0


def order(namesrv: str) -> Order | None:
    with SyncAdmin(namesrv=namesrv) as admin:
        value = admin.value(NAMESPACE, f"{KEY}fleet")
    return None if value is None else Order.parse("fleet", value.partition(":")[2])


def brokers(namesrv: str) -> set[str]:
    """Return the brokers whose queues take part, or are going to."""
    found = order(namesrv)
    assert found is not None
    return {queue.broker_name for queue in found.queues}


def registered(namesrv: str) -> set[str]:
    with SyncAdmin(namesrv=namesrv) as admin:
        return {one.name for one in admin.brokers()}


def stored(namesrv: str, broker: str) -> int:
    """Return how many messages of the topic a broker has."""
    with SyncAdmin(namesrv=namesrv) as admin:
        stats = admin.topic_stats("fleet")
    return sum(one.end_offset for one in stats if one.queue.broker_name == broker)


def changed(command: str, broker: str, namesrv: str, *options: str) -> list[str]:
    result = motelog("topic", command, broker, "--json", "--namesrv", namesrv, *options)
    assert result.returncode == 0, result.stderr
    found: dict[str, list[str]] = json.loads(result.stdout)
    return found["topics"]
