"""A gateway in a process of its own: its messages are at brokers elsewhere, ours or Apache's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trio
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.bridge.sync import SyncAdmin, SyncProducer, SyncPullConsumer
from motelog.core.message import Message
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.core.topic_names import GATEWAY_TOPICS
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import beside_namesrv, joined
from tests.support.gateway_process import GatewayProcess
from tests.support.java import VERSION_4, VERSION_5, ApacheServer

DEADLINE_S = 30.0
PUBLISHERS = 4
IN_FLIGHT = 10
PHASE_COUNT = 300


def until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} has not come about"
        time.sleep(0.01)


class Client:
    """A paho client: ``received`` topics and payloads, ``acknowledged`` and ``refused`` numbers."""

    def __init__(
        self, address: tuple[str, int], client_id: str, *, session_expiry_s: int = 0
    ) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self.sent = 0
        self._numbers: dict[int, int] = {}
        self._subscribed = threading.Event()
        self._connected = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5
        )
        self.is_session_present = False
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = session_expiry_s
        self.client.connect(*address, clean_start=not session_expiry_s, properties=properties)
        self.client.loop_start()
        assert self._connected.wait(DEADLINE_S)

    def subscribe(self, topic_filter: str) -> None:
        self.client.subscribe(topic_filter, 1)
        assert self._subscribed.wait(DEADLINE_S)

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, is_retained: bool = False
    ) -> None:
        message = self.client.publish(topic, payload, qos, retain=is_retained)
        self._numbers[message.mid] = self.sent
        self.sent += 1

    def answered(self) -> int:
        return len(self.acknowledged) + len(self.refused)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(
        self, _client: object, _data: object, flags: paho.ConnectFlags, *_: object
    ) -> None:
        self.is_session_present = flags.session_present
        self._connected.set()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.received.append((message.topic, bytes(message.payload)))

    def _on_publish(
        self, _client: object, _data: object, mid: int, reason: object, _properties: object
    ) -> None:
        until(lambda: mid in self._numbers, "the number of a publish")
        number = self._numbers.pop(mid)
        is_failure = getattr(reason, "is_failure", False)
        (self.refused if is_failure else self.acknowledged).append(number)


class Publisher(threading.Thread):
    """Publishes numbered messages, a few in flight, until it is told to stop."""

    def __init__(self, address: tuple[str, int], device: str) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.mqtt = Client(address, device)
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            if self.mqtt.sent - self.mqtt.answered() < IN_FLIGHT:
                self.mqtt.publish(f"kill/{self.device}/n", b"%d" % self.mqtt.sent)
            else:
                time.sleep(0.001)

    def stop(self) -> None:
        self.is_over.set()
        self.join(DEADLINE_S)
        until(lambda: self.mqtt.answered() == self.mqtt.sent, f"an answer for {self.device}")
        self.mqtt.stop()


def read_all(namesrv: str, topic: str) -> list[StoredMessage]:
    with SyncPullConsumer(namesrv=namesrv, group="after") as consumer:
        queues = consumer.queues(topic, wait_s=10)
        left = sum(consumer.end_offsets(queues).values())
        consumer.assign(queues)
        messages: list[StoredMessage] = []
        while len(messages) < left:
            some = consumer.poll(timeout_s=10)
            assert some, f"{left - len(messages)} messages do not arrive"
            messages += some
    return messages


def numbers_of(device: str, pairs: list[tuple[str, bytes]]) -> list[int]:
    return [int(body) for topic, body in pairs if topic == f"kill/{device}/n"]


async def test_what_was_acknowledged_survives_a_kill_of_the_broker(tmp_path: Path) -> None:
    await beside_namesrv(kill_the_broker_under_load, tmp_path)


def kill_the_broker_under_load(folder: Path, namesrv: str) -> None:
    with (
        BrokerProcess(folder / "store", namesrv=namesrv) as broker,
        GatewayProcess(folder, namesrv=namesrv) as gateway,
    ):
        subscriber = Client(gateway.address, "subscriber")
        subscriber.subscribe("kill/#")
        publishers = [Publisher(gateway.address, f"dev{i}") for i in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        wait_for_more(publishers)
        broker.kill()
        time.sleep(0.5)
        broker.start()
        wait_for_more(publishers)
        for publisher in publishers:
            publisher.stop()
        stored = [(m.properties["mqttRealTopic"], m.body) for m in read_all(namesrv, "kill")]
        until(lambda: len(subscriber.received) >= len(stored), "delivery of all that is stored")
        subscriber.stop()
        for publisher in publishers:
            numbers = numbers_of(publisher.device, stored)
            assert numbers == sorted(set(numbers)), f"{publisher.device}: out of order or doubled"
            lost = set(publisher.mqtt.acknowledged) - set(numbers)
            assert not lost, f"{publisher.device}: acknowledged and lost"
            assert len(publisher.mqtt.refused) <= IN_FLIGHT
            assert numbers_of(publisher.device, subscriber.received) == numbers
        restart_with_a_session(gateway)
        assert "a broker is away" in gateway.errors()
        assert "a broker is back" in gateway.errors()
        assert "Traceback" not in gateway.errors()
        assert gateway.stop() == 0


def restart_with_a_session(gateway: GatewayProcess) -> None:
    """Have a session and a retained message outlive their gateway, by a clean stop and SIGKILL."""
    for end in (gateway.stop, gateway.kill):
        device = Client(gateway.address, "device", session_expiry_s=600)
        device.subscribe("commands/device/#")
        device.stop()
        sender = Client(gateway.address, "sender")
        sender.publish("commands/device/set", b"1", qos=2)
        sender.publish("state/device", end.__name__.encode(), is_retained=True)
        until(lambda: sender.answered() == 2, "acknowledgements")  # noqa: B023
        sender.stop()
        end()
        gateway.start()
        sender = Client(gateway.address, "sender")
        sender.publish("commands/device/set", b"2")
        until(lambda: sender.answered() == 1, "an acknowledgement")  # noqa: B023
        sender.stop()
        device = Client(gateway.address, "device", session_expiry_s=600)
        assert device.is_session_present
        until(lambda: len(device.received) >= 2, "delivery")  # noqa: B023
        assert device.received == [("commands/device/set", b"%d" % n) for n in (1, 2)]
        device.stop()
        late = Client(gateway.address, "late")
        late.subscribe("state/#")
        until(lambda: bool(late.received), "the retained message")  # noqa: B023
        assert late.received == [("state/device", end.__name__.encode())]
        late.stop()


async def test_the_home_of_sessions_is_waited_for_and_the_other_broker_is_not_asked(
    tmp_path: Path,
) -> None:
    await beside_namesrv(start_without_the_home, tmp_path)


def start_without_the_home(folder: Path, namesrv: str) -> None:
    settings = "append_wait_s = 1"
    with (
        BrokerProcess(folder / "a", namesrv=namesrv, name="broker-a") as home,
        BrokerProcess(folder / "b", namesrv=namesrv, name="broker-b"),
    ):
        for name in ("beside", "elsewhere"):
            (folder / name).mkdir()
        beside = GatewayProcess(
            folder / "beside", namesrv=namesrv, settings=f'{settings}\nname = "beside"'
        )
        with GatewayProcess(folder, namesrv=namesrv, settings=settings) as gateway, beside:
            keep_a_session(gateway.address)
            connected = [Client(beside.address, f"connected{number}") for number in range(8)]
            home.kill()
            for one in (gateway, beside):
                until(lambda: "a broker is away" in one.errors(), "the outage")  # noqa: B023
                # A client may connect whose session ends with its connection, and no other.
                until(lambda: is_refused(one.address), "the refusal of a session that lasts")  # noqa: B023
                clean = Client(one.address, "clean")
                clean.subscribe("orders/#")
            # Clients that are connected go on, at the other broker.
            for client in connected:
                client.publish("orders/2", b"x")
            until(lambda: all(client.answered() for client in connected), "answers")
            assert any(client.acknowledged for client in connected)
            gateway.kill()
            beside.kill()
        late = GatewayProcess(folder / "elsewhere", namesrv=namesrv, settings=settings)
        starting = threading.Thread(target=late.start)
        starting.start()
        try:
            until(lambda: late.errors().count("could not be created") > 2, "its waiting")
            assert starting.is_alive()
            home.start()
            starting.join(DEADLINE_S)
            device = Client(late.address, "device", session_expiry_s=600)
            assert device.is_session_present
            until(lambda: device.received == [("orders/1", b"kept")], "delivery")
            assert late.stop() == 0
        finally:
            late.kill()
    with SyncAdmin(namesrv=namesrv) as admin:
        assert admin.value("MQTT_GATEWAY", "home") == "1:broker-a"


def keep_a_session(address: tuple[str, int]) -> None:
    """Have a message wait for a client that is away."""
    device = Client(address, "device", session_expiry_s=600)
    device.subscribe("orders/1")
    device.stop()
    sender = Client(address, "sender")
    sender.publish("orders/1", b"kept")
    until(lambda: sender.answered() == 1, "an acknowledgement")
    sender.stop()


def is_refused(address: tuple[str, int]) -> bool:
    """Whether a client is refused whose session outlives its connection."""
    codes: list[int] = []
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id="new", protocol=MQTTProtocolVersion.MQTTv5
    )
    client.on_connect = lambda _client, _data, _flags, reason, _properties: codes.append(
        reason.value
    )
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 600
    client.connect(*address, properties=properties)
    while not codes:
        client.loop(0.1)
    client.disconnect()
    return codes == [0x88]


def wait_for_more(publishers: list[Publisher]) -> None:
    """Return when each publisher has got PHASE_COUNT further acknowledgements."""
    goals = [(p.mqtt.acknowledged, len(p.mqtt.acknowledged) + PHASE_COUNT) for p in publishers]
    until(lambda: all(len(done) >= goal for done, goal in goals), "acknowledgements")


@pytest.mark.java
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_a_gateway_in_front_of_apache_rocketmq(tmp_path: Path, version: str) -> None:
    async with ApacheServer(version, tmp_path / "store") as apache:
        namesrv = apache.namesrv_address
        with GatewayProcess(tmp_path, namesrv=namesrv) as gateway:
            await trio.to_thread.run_sync(publish_and_receive, gateway.address, namesrv)
            await trio.to_thread.run_sync(restart_with_a_session, gateway)
            assert "Traceback" not in gateway.errors()
            assert gateway.stop() == 0


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_a_gateway_goes_on_when_apaches_broker_comes_after_it(
    tmp_path: Path, version: str
) -> None:
    async with trio.open_nursery() as nursery:
        names = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(names.run)
        namesrv = joined(names.address)
        gateway = GatewayProcess(tmp_path, namesrv=namesrv, settings="append_wait_s = 1")
        nursery.start_soon(trio.to_thread.run_sync, gateway.start)
        try:
            with trio.fail_after(DEADLINE_S):
                # It has given up its own topics, and asked for them again.
                while gateway.errors().count("could not be created") < 2 * len(GATEWAY_TOPICS):  # noqa: ASYNC110  # another process
                    await trio.sleep(0.05)
            async with ApacheServer(version, tmp_path / "store", namesrv=namesrv):
                with trio.fail_after(DEADLINE_S):
                    while not gateway.address[1]:  # noqa: ASYNC110  # a thread sets it
                        await trio.sleep(0.05)
                await trio.to_thread.run_sync(publish_and_receive, gateway.address, namesrv)
                assert "Traceback" not in gateway.errors()
                assert await trio.to_thread.run_sync(gateway.stop) == 0
        except BaseException:
            gateway.kill()
            raise
        nursery.cancel_scope.cancel()


def publish_and_receive(address: tuple[str, int], namesrv: str) -> None:
    subscriber = Client(address, "subscriber")
    subscriber.subscribe("plant/#")
    publisher = Client(address, "publisher")
    expected = [(f"plant/line{i % 7}/n", b"%d" % i) for i in range(500)]
    for topic, payload in expected:
        publisher.publish(topic, payload)
    until(lambda: len(publisher.acknowledged) == len(expected), "acknowledgements")
    assert publisher.acknowledged == list(range(len(expected)))  # in the order of the publishes
    until(lambda: len(subscriber.received) >= len(expected), "delivery")
    assert sorted(subscriber.received) == sorted(expected)
    for line in range(7):
        topic = f"plant/line{line}/n"
        numbers = [int(payload) for name, payload in subscriber.received if name == topic]
        assert numbers == sorted(numbers)
    stored = read_all(namesrv, "plant")
    assert sorted((m.properties["mqttRealTopic"], m.body) for m in stored) == sorted(expected)
    assert {m.tags for m in stored} == {f"line{line}" for line in range(7)}
    assert all(m.properties["__BORNHOST"].startswith("127.0.0.1:") for m in stored)
    assert {m.properties["clientId"] for m in stored} == {"publisher"}
    # A topic that a native producer creates reaches subscribers too, from its first message on.
    everything = Client(address, "everything")
    everything.subscribe("#")
    with SyncProducer(namesrv=namesrv, timeout_s=10) as producer:
        for number in range(5):
            producer.send(Message("Native", b"%d" % number, "tag"))
    until(lambda: len(everything.received) >= 5, "delivery of native messages")
    assert sorted(everything.received) == [("Native/tag", b"%d" % n) for n in range(5)]
    for client in (subscriber, publisher, everything):
        client.stop()
