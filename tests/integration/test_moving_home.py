"""``motelog session move-home``: the state of all gateways goes to another broker, and back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from unittest import mock

import paho.mqtt.client as paho
import pytest
import trio
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.bridge.sync import SyncAdmin
from motelog.core.errors import MotelogError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.gateway.log.remote.entries import NAMESPACE
from motelog.gateway.log.remote.home import KEY, Home
from motelog.gateway.operator.moving import move_home
from tests.integration.test_remote_gateway import Client, until
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import joined
from tests.support.cli import motelog
from tests.support.gateway_process import GatewayProcess

ORDER = [("orders/1", b"kept")]
EXPIRY_S = 600


@pytest.fixture
async def namesrv(nursery: trio.Nursery) -> str:
    server = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
    await nursery.start(server.run)
    return joined(server.address)


async def test_the_home_moves_there_and_back(tmp_path: Path, namesrv: str) -> None:
    await trio.to_thread.run_sync(move_there_and_back, tmp_path, namesrv)


def move_there_and_back(folder: Path, namesrv: str) -> None:
    for name in ("first", "second"):
        (folder / name).mkdir()
    with (
        BrokerProcess(folder / "a", namesrv=namesrv, name="broker-a") as home,
        BrokerProcess(folder / "b", namesrv=namesrv, name="broker-b"),
    ):
        first = GatewayProcess(folder / "first", namesrv=namesrv)
        with first:
            keep_sessions_and_messages(first.address)
            assert "gateways are running; stop them first: " in refused(namesrv, "broker-b")
            assert first.stop() == 0
        end_before_it_is_written(namesrv)
        assert "the state of gateways is at broker-a already" in refused(namesrv, "broker-a")
        assert move(namesrv, "broker-b") == {
            "before": "broker-a", "broker": "broker-b", "sessions": 2, "retained": 2,
        }  # fmt: skip
        with GatewayProcess(folder / "second", namesrv=namesrv) as second:
            other = Client(second.address, "other", session_expiry_s=EXPIRY_S)
            assert other.is_session_present
            other.stop()
            Client(second.address, "other").stop()  # ends its session
            with_retained(second.address, {"state/1": b"on", "state/2": b"off"})
            sender = Client(second.address, "sender")
            sender.publish("state/2", b"", is_retained=True)
            until(lambda: sender.answered() == 1, "an acknowledgement")
            sender.stop()
            assert second.stop() == 0
        # There it finds what it had before: "other" and "state/2" have ended meanwhile.
        assert move(namesrv, "broker-a") == {
            "before": "broker-b", "broker": "broker-a", "sessions": 1, "retained": 1,
        }  # fmt: skip
        with first:  # whose view is from before both moves
            with_retained(first.address, {"state/1": b"on"})
            other = Client(first.address, "other", session_expiry_s=EXPIRY_S)
            assert not other.is_session_present
            other.stop()
            device = Client(first.address, "device", session_expiry_s=EXPIRY_S)
            assert device.is_session_present
            until(lambda: device.received == ORDER, "delivery")
            device.stop()
            assert first.stop() == 0
        home.kill()
        assert "broker-a cannot be asked" in refused(namesrv, "broker-b")
        assert move(namesrv, "broker-b", "--lose") == {
            "before": None, "broker": "broker-b", "sessions": 0, "retained": 0,
        }  # fmt: skip
        with GatewayProcess(folder / "second", namesrv=namesrv) as second:
            assert not Client(second.address, "device", session_expiry_s=60).is_session_present
            with_retained(second.address, {})
            assert second.stop() == 0


def end_before_it_is_written(namesrv: str) -> None:
    """Have a move end, as in a crash, when everything is at the new home already."""
    cut = MotelogError("cut")
    with mock.patch.object(Home, "write", side_effect=cut), pytest.raises(BaseExceptionGroup):
        trio.run(partial(move_home, "broker-b", namesrv=namesrv))
    with SyncAdmin(namesrv=namesrv) as admin:
        assert admin.value(NAMESPACE, KEY) == "1:broker-a"


def keep_sessions_and_messages(address: tuple[str, int]) -> None:
    """Have two sessions whose clients are away, a message for one, and two retained messages."""
    for name in ("device", "other"):
        client = Client(address, name, session_expiry_s=EXPIRY_S)
        client.subscribe("orders/#" if name == "device" else "none")
        client.stop()
    sender = Client(address, "sender")
    sender.publish("orders/1", b"kept")
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.MessageExpiryInterval = EXPIRY_S
    for topic, payload in (("state/1", b"on"), ("state/2", b"off")):
        sender.client.publish(topic, payload, 1, retain=True, properties=properties)
    until(lambda: len(sender.acknowledged) == 1 and not sender.client.want_write(), "answers")
    with_retained(address, {"state/1": b"on", "state/2": b"off"})
    sender.stop()


def with_retained(address: tuple[str, int], expected: dict[str, bytes]) -> None:
    """Check the retained messages, and that they have lost time of their expiry."""
    client = Client(address, "reader")
    left: list[int] = []

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        client.received.append((message.topic, bytes(message.payload)))
        assert message.properties is not None
        left.append(message.properties.json()["MessageExpiryInterval"])  # type: ignore[no-untyped-call]

    client.client.on_message = on_message
    client.subscribe("state/#")
    until(lambda: len(client.received) >= len(expected), "the retained messages")
    assert dict(client.received) == expected
    assert all(one <= EXPIRY_S for one in left)
    client.stop()


def move(namesrv: str, broker: str, *options: str) -> dict[str, object]:
    arguments = ("--namesrv", namesrv, "--yes", "--json", *options)
    result = motelog("session", "move-home", broker, *arguments)
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def refused(namesrv: str, broker: str) -> str:
    result = motelog("session", "move-home", broker, "--namesrv", namesrv, "--yes")
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    return result.stderr
