"""Real MQTT clients against a real gateway: paho, aiomqtt, mosquitto's, MQTT.js."""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.testing import MotelogProcess
from tests.support.node import node_modules

DEADLINE_S = 20

VERSIONS = pytest.mark.parametrize("version", list(MQTTProtocolVersion))


class PahoClient:
    """A paho client on its own thread, whose messages and events can be waited for."""

    def __init__(
        self,
        address: tuple[str, int],
        version: MQTTProtocolVersion,
        client_id: str,
        **connect: Any,
    ) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._connected = threading.Event()
        self._subscribed = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version
        )
        self.client.on_connect = lambda *_: self._connected.set()
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.connect(*address, **connect)
        self.client.loop_start()
        assert self._connected.wait(DEADLINE_S)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        assert self._subscribed.wait(DEADLINE_S)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1])
def test_paho_publishes_and_subscribes_with_wildcards(
    motelog_stack: MotelogProcess, version: MQTTProtocolVersion, qos: int
) -> None:
    base = f"paho{version}{qos}"
    reader = PahoClient(motelog_stack.mqtt, version, f"{base}-r")
    writer = PahoClient(motelog_stack.mqtt, version, f"{base}-w")
    try:
        reader.subscribe(f"{base}/+/temp", qos)
        for number in range(100):
            info = writer.client.publish(f"{base}/dev{number % 3}/temp", b"%d" % number, qos)
            writer.client.publish(f"{base}/dev{number % 3}/other", b"x", qos)
        info.wait_for_publish(DEADLINE_S)
        got = [reader.messages.get(timeout=DEADLINE_S) for _ in range(100)]
        assert {int(message.payload) for message in got} == set(range(100))
        for device in range(3):  # the order of one device is kept
            numbers = [int(m.payload) for m in got if m.topic == f"{base}/dev{device}/temp"]
            assert numbers == sorted(numbers)
        assert {message.qos for message in got} == {qos}
        assert reader.messages.empty()
    finally:
        reader.stop()
        writer.stop()


def test_paho_version_5_properties_travel_through_the_log(motelog_stack: MotelogProcess) -> None:
    reader = PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5, "props-r")
    writer = PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5, "props-w")
    try:
        reader.subscribe("pahoprops/#", 1)
        # paho sets its property attributes at run time.
        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's
        properties.ContentType = "application/json"
        properties.UserProperty = [("unit", "°C"), ("unit", "K")]
        properties.MessageExpiryInterval = 60
        writer.client.publish("pahoprops/a", b"{}", 1, properties=properties)
        got: Any = reader.messages.get(timeout=DEADLINE_S).properties
        assert got.ContentType == "application/json"
        assert got.UserProperty == [("unit", "°C"), ("unit", "K")]
        assert 0 < got.MessageExpiryInterval <= 60
    finally:
        reader.stop()
        writer.stop()


def test_unsubscribe_ends_delivery(motelog_stack: MotelogProcess) -> None:
    reader = PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv311, "unsub-r")
    writer = PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv311, "unsub-w")
    try:
        unsubscribed = threading.Event()
        reader.client.on_unsubscribe = lambda *_: unsubscribed.set()
        reader.subscribe("unsub/#", 1)
        writer.client.publish("unsub/a", b"1", 1)
        assert reader.messages.get(timeout=DEADLINE_S).payload == b"1"
        reader.client.unsubscribe("unsub/#")
        assert unsubscribed.wait(DEADLINE_S)
        writer.client.publish("unsub/a", b"2", 1).wait_for_publish(DEADLINE_S)
        reader._subscribed.clear()
        reader.subscribe("unsub/again", 1)
        writer.client.publish("unsub/again", b"3", 1)
        assert reader.messages.get(timeout=DEADLINE_S).payload == b"3"
    finally:
        reader.stop()
        writer.stop()


def test_aiomqtt_publishes_and_subscribes(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt

    async def exchange() -> list[bytes]:
        got: list[bytes] = []
        async with (
            aiomqtt.Client(host, port, identifier="aio-r") as reader,
            aiomqtt.Client(host, port, identifier="aio-w") as writer,
        ):
            await reader.subscribe("aio/#", qos=1)
            for number in range(20):
                await writer.publish(f"aio/{number % 2}", str(number), qos=1)
            async for message in reader.messages:
                assert isinstance(message.payload, bytes)
                got.append(message.payload)
                if len(got) == 20:
                    return got
        return got

    got = asyncio.run(asyncio.wait_for(exchange(), DEADLINE_S))
    assert sorted(got, key=int) == [b"%d" % number for number in range(20)]


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_clients_exchange_lines(motelog_stack: MotelogProcess, version: str) -> None:
    host, port = motelog_stack.mqtt
    common = ["-h", host, "-p", str(port), "-V", version, "-q", "1"]
    topic = f"mosq/{version}"
    reader = subprocess.Popen(
        # stdbuf: its lines must not wait in a buffer while the test waits for them.
        [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            *common,
            "-t",
            f"{topic}/#",
            "-C",
            "5",
            "-W",
            "20",
            "-v",
            "-d",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None
        for line in reader.stdout:
            if "SUBACK" in line or "Subscribed" in line:
                break
        lines = "".join(f"line {number}\n" for number in range(5))
        subprocess.run(
            ["mosquitto_pub", *common, "-t", f"{topic}/a", "-l"],
            input=lines,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        output, _ = reader.communicate(timeout=DEADLINE_S)
    finally:
        reader.kill()
        reader.wait()
    got = [line for line in output.splitlines() if line.startswith(topic)]
    assert got == [f"{topic}/a line {number}" for number in range(5)]


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed")
def test_clients_of_different_kinds_share_a_subscription(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt
    group = "$share/kinds/shared/#"
    common = ["-h", host, "-p", str(port), "-V", "mqttv311", "-q", "1"]
    reader = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", *common, "-t", group, "-W", "20", "-v", "-d"],
        stdout=subprocess.PIPE,
        text=True,
    )
    taken: queue.Queue[tuple[int, int]] = queue.Queue()  # (member, payload)
    subscribed = threading.Event()

    def read_lines() -> None:
        for line in reader.stdout or ():
            if "SUBACK" in line or "Subscribed" in line:
                subscribed.set()
            elif line.startswith("shared/a "):
                taken.put((0, int(line.split()[1])))

    thread = threading.Thread(target=read_lines)
    thread.start()
    clients = [
        PahoClient((host, port), version, f"shared-{number}")
        for number, version in enumerate(
            (MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv5)
        )
    ]
    try:
        assert subscribed.wait(DEADLINE_S)
        for number, member in enumerate(clients[:2], 1):
            member.client.on_message = lambda _c, _u, message, number=number: taken.put(
                (number, int(message.payload))
            )
            member.subscribe(group, 1)
        for number in range(30):
            sent = clients[2].client.publish("shared/a", b"%d" % number, qos=1)
            sent.wait_for_publish(DEADLINE_S)
        got = [taken.get(timeout=DEADLINE_S) for _ in range(30)]
    finally:
        reader.kill()
        reader.wait()
        thread.join()
        if reader.stdout is not None:
            reader.stdout.close()
        for client in clients:
            client.stop()
    assert sorted(payload for _, payload in got) == list(range(30))
    for number in (0, 1, 2):
        own = [payload for member_number, payload in got if member_number == number]
        assert own
        assert own == sorted(own)
    assert taken.empty()


MQTT_JS = """
const mqtt = require('mqtt');
const [port, version] = process.argv.slice(1).map(Number);
const options = { port, host: '127.0.0.1', protocolVersion: version, reconnectPeriod: 0 };
const reader = mqtt.connect({ ...options });
const got = [];
reader.on('error', e => { console.error(e); process.exit(1); });
reader.on('connect', () => reader.subscribe('js/+', { qos: 1 }, error => {
  if (error) { console.error(error); process.exit(1); }
  const writer = mqtt.connect({ ...options });
  for (let i = 0; i < 20; i++) writer.publish('js/a', String(i), { qos: 1 });
  reader.on('message', (topic, payload) => {
    got.push(Number(payload));
    if (got.length === 20) {
      console.log(JSON.stringify(got));
      writer.end(); reader.end();
    }
  });
}));
"""


@pytest.mark.node
@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js_exchanges_messages(motelog_stack: MotelogProcess, version: int) -> None:
    modules: Path = node_modules("mqtt@5")
    answer = subprocess.run(
        ["node", "-e", MQTT_JS, str(motelog_stack.mqtt[1]), str(version)],
        cwd=modules.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert answer.stdout.strip() == "[" + ",".join(map(str, range(20))) + "]", answer.stderr
