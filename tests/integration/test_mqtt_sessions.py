"""Persistent sessions, QoS 2 and wills with clients that are not ours, in their default settings.

What a client must be asked for is asked for (a session that stays, a QoS, a will); all else is what
its users get who do not know better.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.testing import MotelogProcess
from tests.support.durable_client import ClientSession
from tests.support.mqtt_wire import Wire
from tests.support.node import node_modules

DEADLINE_S = 20
COUNT = 10
AWAY = [b"%d" % number for number in range(COUNT)]

mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed"
)


def publish_meanwhile(address: tuple[str, int], topic: str) -> None:
    """Publish AWAY at QoS 2 with a client of our own, all acknowledged."""
    client = ClientSession(f"meanwhile-{topic}")
    with Wire(address) as wire:
        client.come(clean_start=True)
        wire.send(client.take_out())
        client.handle(*wire.packet())
        for payload in AWAY:
            client.publish(topic, payload, 2)
        while client.sending:
            wire.send(client.take_out())
            client.handle(*wire.packet())


class Paho:
    """A paho client whose connections, messages and SUBACKs can be waited for."""

    def __init__(self, version: MQTTProtocolVersion, client_id: str, **how: Any) -> None:
        self.version = version
        is_5 = version == MQTTProtocolVersion.MQTTv5
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            clean_session=None if is_5 else False,
            **how,
        )
        self.got: list[bytes] = []
        self.is_present: bool | None = None
        self._changed = threading.Condition()
        self._is_subscribed = False
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe

    def connect(self, address: tuple[str, int]) -> bool:
        """Connect and return whether the session was present."""
        self.is_present = None
        how: dict[str, Any] = {}
        if self.version == MQTTProtocolVersion.MQTTv5:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 600
            how = {"clean_start": False, "properties": properties}
        self.client.connect(*address, **how)
        self.client.loop_start()
        self.wait(lambda: self.is_present is not None)
        return bool(self.is_present)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        self.wait(lambda: self._is_subscribed)

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), self.got

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """End the connection without DISCONNECT."""
        sock: Any = self.client.socket()
        self.client.reconnect_delay_set(60, 60)
        sock.shutdown(2)
        self.client.loop_stop()

    def _on_connect(self, *call: Any) -> None:
        with self._changed:
            self.is_present = call[2].session_present
            self._changed.notify()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.got.append(bytes(message.payload))
            self._changed.notify()

    def _on_subscribe(self, *_: Any) -> None:
        with self._changed:
            self._is_subscribed = True
            self._changed.notify()


@pytest.mark.parametrize("version", list(MQTTProtocolVersion))
@pytest.mark.parametrize("qos", [1, 2])
def test_paho_gets_what_was_published_while_it_was_away(
    motelog_stack: MotelogProcess, version: MQTTProtocolVersion, qos: int
) -> None:
    topic = f"pahoaway{version}{qos}/t"
    client_id = f"paho-away-{version}-{qos}"  # MQTT 3.1 allows 23 characters
    reader = Paho(version, client_id)
    assert not reader.connect(motelog_stack.mqtt)
    reader.subscribe(topic, qos)
    reader.stop()
    publish_meanwhile(motelog_stack.mqtt, topic)
    reader = Paho(version, client_id)
    # The flag came with MQTT 3.1.1.
    assert reader.connect(motelog_stack.mqtt) == (version != MQTTProtocolVersion.MQTTv31)
    reader.wait(lambda: len(reader.got) >= COUNT)
    reader.stop()
    assert reader.got == AWAY


@pytest.mark.parametrize("version", list(MQTTProtocolVersion))
def test_paho_publishes_at_qos_2_and_has_its_will_published(
    motelog_stack: MotelogProcess, version: MQTTProtocolVersion
) -> None:
    reader = Paho(version, f"paho-will-r-{version}")
    reader.connect(motelog_stack.mqtt)
    reader.subscribe(f"pahowill{version}/#", 2)
    writer = Paho(version, f"paho-will-w-{version}")
    writer.client.will_set(f"pahowill{version}/gone", b"gone", qos=1)
    writer.connect(motelog_stack.mqtt)
    for payload in AWAY:
        info = writer.client.publish(f"pahowill{version}/t", payload, 2)
    info.wait_for_publish(DEADLINE_S)
    writer.vanish()
    reader.wait(lambda: len(reader.got) > COUNT)
    reader.stop()
    # Topics have an order each.
    assert [payload for payload in reader.got if payload != b"gone"] == AWAY
    assert reader.got.count(b"gone") == 1


def test_aiomqtt_gets_what_was_published_while_it_was_away(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt

    async def session() -> list[bytes]:
        async with aiomqtt.Client(host, port, identifier="aio-away", clean_session=False) as client:
            await client.subscribe("aioaway/#", qos=2)
        await asyncio.to_thread(publish_meanwhile, (host, port), "aioaway/t")
        got: list[bytes] = []
        async with aiomqtt.Client(host, port, identifier="aio-away", clean_session=False) as client:
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                got.append(message.payload)
                if len(got) == COUNT:
                    break
        return got

    assert asyncio.run(asyncio.wait_for(session(), DEADLINE_S)) == AWAY


def test_aiomqtt_has_its_will_published(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt

    async def exchange() -> bytes:
        async with aiomqtt.Client(host, port) as reader:
            await reader.subscribe("aiowill")
            will = aiomqtt.Will("aiowill", b"gone", qos=1)
            with suppress(aiomqtt.MqttError):
                async with aiomqtt.Client(host, port, will=will) as writer:
                    sock: Any = writer._client.socket()
                    sock.shutdown(2)
                    await asyncio.sleep(0.2)
            async for message in reader.messages:
                assert isinstance(message.payload, bytes)
                return message.payload
        raise AssertionError("no will")

    assert asyncio.run(asyncio.wait_for(exchange(), DEADLINE_S)) == b"gone"


def test_amqtt_gets_what_was_published_while_it_was_away(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt

    async def session() -> list[bytes]:
        config = {"auto_reconnect": False}
        url = f"mqtt://{host}:{port}"
        client = MQTTClient(client_id="amqtt-away", config=config)
        await client.connect(url, cleansession=False)
        assert await client.subscribe([("amqttaway/#", 2)]) == [2]
        await client.disconnect()
        await asyncio.to_thread(publish_meanwhile, (host, port), "amqttaway/t")
        await client.connect(url, cleansession=False)
        got = [bytes((await client.deliver_message()).data) for _ in range(COUNT)]
        await client.disconnect()
        return got

    assert asyncio.run(asyncio.wait_for(session(), DEADLINE_S)) == AWAY


@pytest.mark.mosquitto
@mosquitto
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["1", "2"])
def test_mosquitto_sub_gets_what_was_published_while_it_was_away(
    motelog_stack: MotelogProcess, version: str, qos: str
) -> None:
    host, port = motelog_stack.mqtt
    topic = f"mosqaway{version}{qos}/t"
    command = ["mosquitto_sub", "-h", host, "-p", str(port), "-V", version, "-c", "-q", qos]
    command += ["-i", f"mosq-{version}-{qos}", "-t", topic]
    if version == "mqttv5":
        command += ["-x", "600"]
    subprocess.run([*command, "-E"], check=True, timeout=DEADLINE_S)
    publish_meanwhile(motelog_stack.mqtt, topic)
    answer = subprocess.run(
        [*command, "-C", str(COUNT), "-W", "15"],
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert answer.stdout.split() == AWAY


@pytest.mark.mosquitto
@mosquitto
def test_mosquitto_pub_and_rr_and_a_will(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt
    at = ["-h", host, "-p", str(port)]
    got: list[tuple[str, bytes]] = []
    reader = ClientSession(
        "mosq-r", on_message=lambda message: got.append((message.topic, message.payload))
    )
    with Wire(motelog_stack.mqtt) as wire:

        def read_until(condition: Callable[[], bool]) -> None:
            while not condition():
                wire.send(reader.take_out())
                reader.handle(*wire.packet())

        reader.come(clean_start=True)
        read_until(lambda: reader.connack is not None)
        reader.subscribe(("mosqrr/#", 2))
        read_until(lambda: reader.granted == [2])
        lines = b"\n".join(AWAY)
        command = ["mosquitto_pub", *at, "-t", "mosqrr/lines", "-q", "2", "-l"]
        subprocess.run(command, input=lines, check=True, timeout=DEADLINE_S)
        read_until(lambda: len(got) == COUNT)
        assert got == [("mosqrr/lines", payload) for payload in AWAY]
        command = [
            "mosquitto_rr",
            *at,
            "-t",
            "mosqrr/ask",
            "-e",
            "answers/a",
            "-m",
            "?",
            "-W",
            "15",
        ]
        asked = subprocess.Popen(command, stdout=subprocess.PIPE)
        read_until(lambda: got[-1] == ("mosqrr/ask", b"?"))
        wire.publish("answers/a", b"42")
        assert asked.communicate(timeout=DEADLINE_S)[0].strip() == b"42"
        # stdbuf: its lines must not wait in a buffer while the test waits for them.
        command = ["stdbuf", "-oL", "mosquitto_sub", *at, "-d", "-t", "x"]
        command += ["--will-topic", "mosqrr/gone", "--will-payload", "gone"]
        gone = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert gone.stdout is not None
        for line in gone.stdout:
            if b"SUBACK" in line or b"Subscribed" in line:
                break
        gone.kill()
        gone.communicate(timeout=DEADLINE_S)
        read_until(lambda: got[-1] == ("mosqrr/gone", b"gone"))


MQTT_JS = """
const mqtt = require('mqtt');
const [port, version] = process.argv.slice(1).map(Number);
const base = { port, host: '127.0.0.1', protocolVersion: version };
const stays = { ...base, clientId: 'js-away-' + version, clean: false,
                properties: { sessionExpiryInterval: 600 } };
if (version !== 5) delete stays.properties;
const topic = 'jsaway' + version + '/t';
const fail = e => { console.error(e); process.exit(1); };
const first = mqtt.connect(stays);
first.on('error', fail);
first.on('connect', () => first.subscribe(topic, { qos: 2 }, () => first.end(false, () => {
  const writer = mqtt.connect(base);
  let left = 10;
  for (let i = 0; i < 10; i++) writer.publish(topic, String(i), { qos: 2 }, error => {
    if (error) fail(error);
    if (--left) return;
    writer.end(false, () => {
      const got = [];
      const second = mqtt.connect(stays);
      second.on('message', (_, payload) => {
        got.push(Number(payload));
        if (got.length === 10) second.end(false, () => console.log(JSON.stringify([present, got])));
      });
      let present;
      second.on('connect', connack => { present = connack.sessionPresent; });
    });
  });
})));
"""


@pytest.mark.node
@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js_gets_what_was_published_while_it_was_away(
    motelog_stack: MotelogProcess, version: int
) -> None:
    modules: Path = node_modules("mqtt@5")
    answer = subprocess.run(
        ["node", "-e", MQTT_JS, str(motelog_stack.mqtt[1]), str(version)],
        cwd=modules.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert answer.stdout, answer.stderr
    assert json.loads(answer.stdout) == [True, list(range(10))], answer.stderr
