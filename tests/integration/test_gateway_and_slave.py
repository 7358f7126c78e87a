"""A gateway whose broker is away and has a slave: deliveries go on, publishes are refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from tests.integration.test_remote_gateway import DEADLINE_S, Client, keep_a_session, until
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import beside_namesrv
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import free_port

COUNT = 40
#: Far below the 10 s for which publishes wait for a broker that may come back.
AT_ONCE_S = 3.0


class Publisher:
    """Publishes to topics that are spread over the queues of all brokers."""

    def __init__(self, address: tuple[str, int], name: str) -> None:
        self._name = name
        self._mqtt = Client(address, name)
        #: Everything that was acknowledged, in the order of publishing.
        self.stored: list[tuple[str, bytes]] = []

    def publish(self) -> int:
        """Publish COUNT messages; return how many were refused."""
        mqtt = self._mqtt
        begin, refused = mqtt.sent, len(mqtt.refused)
        for number in range(begin, begin + COUNT):
            mqtt.publish(*self._message(number))
        until(lambda: mqtt.answered() == mqtt.sent, "the answers")
        self.stored += [
            self._message(number)
            for number in range(begin, begin + COUNT)
            if number in mqtt.acknowledged
        ]
        return len(mqtt.refused) - refused

    def _message(self, number: int) -> tuple[str, bytes]:
        return f"orders/{number % COUNT}", f"{self._name} {number}".encode()

    def stop(self) -> None:
        self._mqtt.stop()


def has_got(client: Client, stored: list[tuple[str, bytes]]) -> bool:
    return len(client.received) >= len(stored)


async def test_a_gateway_waits_for_the_home_of_sessions_although_its_slave_is_there(
    tmp_path: Path,
) -> None:
    await beside_namesrv(start_without_master, tmp_path)


def start_without_master(folder: Path, namesrv: str) -> None:
    master, slave = pair(folder, namesrv, "broker-a")
    gateway = GatewayProcess(folder, namesrv=namesrv, settings="append_wait_s = 1")
    with master, slave, BrokerProcess(folder / "other", namesrv=namesrv, name="broker-b"):
        gateway.start()
        keep_a_session(gateway.address)
        gateway.kill()
        master.kill()
        starting = threading.Thread(target=gateway.start)
        starting.start()
        try:
            until(lambda: gateway.errors().count("could not be created") > 2, "its waiting")
            assert starting.is_alive()
            master.start()
            starting.join(DEADLINE_S)
            device = Client(gateway.address, "device", session_expiry_s=600)
            assert device.is_session_present
            until(lambda: device.received == [("orders/1", b"kept")], "delivery")
            device.stop()
            assert gateway.stop() == 0
        finally:
            gateway.kill()


def pair(folder: Path, namesrv: str, name: str) -> tuple[BrokerProcess, BrokerProcess]:
    """Return a master and its slave, which have not started."""
    listen = f"127.0.0.1:{free_port()}"
    fields: dict[str, Any] = {"name": name, "namesrv": namesrv, "register_interval_s": 0.2}
    master = BrokerProcess(folder / "master", listen=listen, replicate="sync", **fields)
    return master, BrokerProcess(folder / "slave", id=1, **fields)


async def test_deliveries_go_on_from_a_slave_and_publishes_are_refused_at_once(
    tmp_path: Path,
) -> None:
    await beside_namesrv(lose_a_master, tmp_path)


def lose_a_master(folder: Path, namesrv: str) -> None:
    master, slave = pair(folder, namesrv, "broker-b")
    gateway = GatewayProcess(folder, namesrv=namesrv)
    with BrokerProcess(folder / "a", namesrv=namesrv, name="broker-a"), master, slave, gateway:
        device = Client(gateway.address, "device", session_expiry_s=600)
        device.subscribe("orders/#")
        device.stop()
        live = Client(gateway.address, "live")
        live.subscribe("orders/#")
        publisher = Publisher(gateway.address, "publisher")
        until(lambda: not publisher.publish(), "a slave that copies")
        master.kill()
        until(lambda: "a broker is away" in gateway.errors(), "the outage")
        began = time.monotonic()
        assert 0 < publisher.publish() < COUNT
        assert time.monotonic() < began + AT_ONCE_S
        until(lambda: has_got(live, publisher.stored), "what goes to the other broker")
        assert sorted(live.received) == sorted(publisher.stored)
        for client in (live, publisher):
            client.stop()
        # What it knew of the queues' ends is gone with the gateway.
        gateway.kill()
        gateway.start()
        device = Client(gateway.address, "device", session_expiry_s=600)
        assert device.is_session_present
        until(lambda: has_got(device, publisher.stored), "delivery from the slave")
        master.start()
        later = Publisher(gateway.address, "later")
        until(lambda: not later.publish(), "a master that is back")
        stored = publisher.stored + later.stored
        until(lambda: has_got(device, stored), "the rest")
        assert sorted(device.received) == sorted(stored)
        for client in (device, later):
            client.stop()
        assert "Traceback" not in gateway.errors()
        assert gateway.stop() == 0
