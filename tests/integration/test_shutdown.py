"""SIGTERM: clients are told, wills are published, sessions go on where they were."""

from __future__ import annotations

import queue
import socket
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.testing import MotelogProcess
from tests.support.cli import motelog_lines

DEADLINE_S = 20.0
COUNT = 200


class Client:
    """An MQTT 5 client that stays away once its connection has ended."""

    def __init__(
        self, address: tuple[str, int], client_id: str, *, expiry_s: int = 0, will: str = ""
    ) -> None:
        self.messages: queue.Queue[bytes] = queue.Queue()
        self.ends: queue.Queue[tuple[int, str]] = queue.Queue()
        self._connects: queue.Queue[bool] = queue.Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        self.client.on_connect = lambda _c, _u, flags, *_: self._connects.put(flags.session_present)
        subscribed: queue.Queue[int] = queue.Queue()
        self._subscribed = subscribed
        self.client.on_subscribe = lambda _c, _u, mid, *_: subscribed.put(mid)
        self.client.on_message = lambda _c, _u, message: self.messages.put(bytes(message.payload))
        self.client.on_disconnect = lambda _c, _u, _f, code, properties: self.ends.put(
            (code.value, getattr(properties, "ReasonString", ""))
        )
        if will:
            self.client.will_set(will, b"will", 1)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho
        properties.SessionExpiryInterval = expiry_s
        self.client.connect(*address, clean_start=not expiry_s, properties=properties)
        self.client.loop_start()
        self.is_present = self._connects.get(timeout=DEADLINE_S)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe, and wait for the SUBACK: what is published after it arrives."""
        self.client.subscribe(topic_filter, qos)
        self._subscribed.get(timeout=DEADLINE_S)


def until_acknowledged(motelog: MotelogProcess, client_id: str) -> None:
    """Wait until the server has taken all acknowledgements of a client."""
    host, port = motelog.admin
    give_up = time.monotonic() + DEADLINE_S
    while True:
        [one] = motelog_lines(
            "session", "describe", client_id, "--admin", f"{host}:{port}", "--json"
        )
        if not one["inflight"]:
            return
        assert time.monotonic() < give_up


def test_shutdown_tells_clients_and_loses_nothing(tmp_path: Path) -> None:
    with MotelogProcess(data=tmp_path) as motelog:
        keeper = Client(motelog.mqtt, "keeper", expiry_s=3600)
        keeper.subscribe("s/#", 2)
        mortal = Client(motelog.mqtt, "mortal", will="s/gone")
        for number in range(COUNT):
            last = mortal.client.publish("s/1", b"%d" % number, number % 2 + 1)
        last.wait_for_publish(DEADLINE_S)
        arrived = [keeper.messages.get(timeout=DEADLINE_S) for _ in range(COUNT)]
        assert sorted(arrived) == sorted(b"%d" % number for number in range(COUNT))
        until_acknowledged(motelog, "keeper")
        address = motelog.mqtt
        assert motelog.stop() == 0
        for client in (keeper, mortal):
            assert client.ends.get(timeout=DEADLINE_S) == (0x8B, "the server is shutting down")
            client.client.loop_stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, DEADLINE_S)
        late = [keeper.messages.get_nowait() for _ in range(keeper.messages.qsize())]
    with MotelogProcess(data=tmp_path) as motelog:
        keeper = Client(motelog.mqtt, "keeper", expiry_s=3600)
        assert keeper.is_present
        if not late:
            late.append(keeper.messages.get(timeout=DEADLINE_S))
        assert late == [b"will"]
        time.sleep(1)
        assert keeper.messages.empty()
        keeper.client.disconnect()
        keeper.client.loop_stop()
