"""Two gateways before one broker: a client finds its session at both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import trio
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from trio.testing import MockClock, wait_all_tasks_blocked

from motelog.core.clock import ManualClock
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.reckoning import TICK_S
from motelog.gateway.log.remote.remote_log import RemoteLog
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.gateway.server import Gateway
from motelog.gateway.tasks import GATHER_S
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import joined, started_stack
from tests.support.gateway_process import GatewayProcess

DEADLINE_S = 30.0
TAKEN_OVER = 0x8E
#: Real time in which sockets may answer while the clock stands still, and how often.
ANSWER_S = 0.01
ROUNDS_MAX = 500


class Client:
    """A paho client that does not come back by itself; with a session if ``lasts``."""

    def __init__(self, address: tuple[str, int], client_id: str, *, lasts: bool = True) -> None:
        self.received: list[bytes] = []
        self.is_present = False
        self.ended: ReasonCode | None = None
        self._acknowledged = 0
        self._subscribed = False
        self._connected = False
        self._changed = threading.Condition()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 600 if lasts else 0
        self.client.connect(*address, clean_start=not lasts, properties=properties)
        self.client.loop_start()
        self.wait(lambda: self._connected)

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        self._subscribed = False
        self.client.subscribe(topic_filter, qos)
        self.wait(lambda: self._subscribed)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish at QoS 2 and wait until it is acknowledged."""
        goal = self._acknowledged + 1
        self.client.publish(topic, payload, 2, retain=retain)
        self.wait(lambda: self._acknowledged == goal)

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), self.received

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(
        self, _client: object, _data: object, flags: paho.ConnectFlags, code: ReasonCode, *_: object
    ) -> None:
        with self._changed:
            self._connected = not code.is_failure
            self.is_present = flags.session_present
            self._changed.notify()

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, code: ReasonCode, *_: object
    ) -> None:
        with self._changed:
            self.ended = code
            self._changed.notify()

    def _on_subscribe(self, *_: object) -> None:
        with self._changed:
            self._subscribed = True
            self._changed.notify()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.received.append(bytes(message.payload))
            self._changed.notify()

    def _on_publish(self, *_: object) -> None:
        with self._changed:
            self._acknowledged += 1
            self._changed.notify()


@contextmanager
def publisher(address: tuple[str, int]) -> Iterator[Client]:
    client = Client(address, "publisher", lasts=False)
    yield client
    client.stop()


def gateway(folder: Path, namesrv: str, name: str) -> GatewayProcess:
    (folder / name).mkdir()
    settings = f'name = "{name}"\nview_path = "{folder / name / "view.db"}"'
    return GatewayProcess(folder / name, namesrv=namesrv, settings=settings)


async def test_session_goes_from_gateway_to_gateway_and_outlives_a_kill(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        await trio.to_thread.run_sync(wander, tmp_path, joined(namesrv.address))
        nursery.cancel_scope.cancel()


def wander(folder: Path, namesrv: str) -> None:
    with (
        BrokerProcess(folder / "store", namesrv=namesrv),
        gateway(folder, namesrv, "a") as a,
        gateway(folder, namesrv, "b") as b,
    ):
        device = Client(a.address, "device")
        assert not device.is_present
        device.subscribe("plant/#", 2)
        with publisher(b.address) as other:
            other.publish("plant/1", b"1")
        device.wait(lambda: device.received == [b"1"])

        # Taken over while it is connected, in both directions.
        for number, target in ((2, b), (3, a)):
            began = time.monotonic()
            moved = Client(target.address, "device")
            took_s = time.monotonic() - began
            assert moved.is_present
            assert took_s < 5, "it has not waited for a gateway to be lost"
            device.wait(lambda: device.ended is not None)  # noqa: B023
            assert device.ended is not None
            assert device.ended.value == TAKEN_OVER
            device.client.loop_stop()
            device = moved
            with publisher(b.address) as other:
                other.publish("plant/1", b"%d" % number)
            device.wait(lambda: device.received == [b"%d" % number])  # noqa: B023

        # What was acknowledged at one gateway is retained at the other.
        with publisher(b.address) as other:
            other.publish("state/plant", b"retained", retain=True)
        late = Client(a.address, "late", lasts=False)
        late.subscribe("state/#")
        late.wait(lambda: late.received == [b"retained"])
        late.stop()

        # Its gateway is killed: the other one has it when the first counts as lost.
        a.kill()
        device.client.loop_stop()
        with publisher(b.address) as other:
            other.publish("plant/1", b"4")
        device = Client(b.address, "device")
        assert device.is_present
        device.wait(lambda: device.received == [b"4"])

        # It starts again, and has the session at once.
        a.start()
        moved = Client(a.address, "device")
        assert moved.is_present
        device.wait(lambda: device.ended is not None)
        device.client.loop_stop()
        with publisher(b.address) as other:
            other.publish("plant/1", b"5")
        moved.wait(lambda: moved.received == [b"5"])
        moved.stop()
        assert a.stop() == 0
        assert b.stop() == 0
        assert "Traceback" not in a.errors() + b.errors()


async def test_a_claim_waits_for_nothing_but_the_log_when_all_is_quiet(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async def let_pass(seconds: float) -> None:
        mock_clock.jump(seconds)
        clock.advance(int(seconds * 1000))
        await wait_all_tasks_blocked(ANSWER_S)

    async def connect(gateway: Gateway, client_id: str) -> None:
        async with await trio.open_tcp_stream(*gateway.address) as stream:
            await stream.send_all(encode_connect(Connect(4, True, 60, client_id)))
            if (await stream.receive_some(100))[:1] == b"\x20":
                connected.append(client_id)

    clock = ManualClock()
    connected: list[str] = []
    async with started_stack(tmp_path) as stack, trio.open_nursery() as nursery:
        gateways = []
        for name in ("a", "b"):
            config = GatewayConfig(
                listen="127.0.0.1:0", name=name, namesrv=(stack.namesrv_address,)
            )
            gateways.append(Gateway(config, RemoteLog.of(config), clock=clock))
        async with trio.open_nursery() as starting:
            for gateway in gateways:
                starting.start_soon(nursery.start, gateway.run)
            while not all(gateway.address[1] for gateway in gateways):
                await let_pass(TICK_S / 2)
        for number in range(6):
            await let_pass(2 * TICK_S)  # both tick, at once
            for _ in range(3):
                await let_pass(GATHER_S)  # what they have told is read
            # Now time stands still: who waits for it is not answered.
            nursery.start_soon(connect, gateways[number % 2], f"client{number}")
            for _ in range(ROUNDS_MAX):
                await wait_all_tasks_blocked(ANSWER_S)
                if len(connected) > number:
                    break
            assert len(connected) > number, "a CONNECT waits for time to pass"
        mock_clock.autojump_threshold = ANSWER_S  # goodbyes have deadlines
        nursery.cancel_scope.cancel()
