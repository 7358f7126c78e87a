"""One of two brokers is away for a while: that costs the messages of its own queues alone."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from motelog.bridge.pull import PullConsumer
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.gateway.log.reckoning import ANSWER_S
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect, Properties
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import joined
from tests.support.durable_client import split
from tests.support.gateway_process import GatewayProcess
from tests.support.mqtt_wire import varint

DEVICES = 24
LASTS = Properties(session_expiry_interval_s=3600)
PERIOD_S = 0.2
WAIT_S = 2
#: Before, during and after the outage, which is longer than publishes wait.
USUAL_S, AWAY_S, AFTER_S = 2.0, 3 * WAIT_S, 4.0
#: An answer that waits for the broker that is away takes WAIT_S at least.
PROMPT_S = 0.9 * WAIT_S


@dataclass
class Device:
    """Publishes a number each PERIOD_S; has for each when it was sent and its answer.

    If it ``is_plain``, what it publishes needs no other broker than that of its queue: a retained
    message has a copy elsewhere, and a QoS 2 message of a session that lasts has a mark.
    """

    name: str
    qos: int = 1
    retains: bool = False
    sent: list[float] = field(default_factory=list)
    #: Number -> (when its answer came, the reason code).
    answers: dict[int, tuple[float, int]] = field(default_factory=dict)
    sending: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_plain(self) -> bool:
        return self.qos == 1 and not self.retains

    async def run(self, address: tuple[str, int], over: trio.Event) -> None:
        """Connect again each time that the connection ends; what was not answered is in doubt."""
        while not over.is_set():
            stream = await trio.open_tcp_stream(*address)
            async with stream, trio.open_nursery() as nursery:
                connect = Connect(5, False, 60, self.name, properties=LASTS)
                await self._send(stream, encode_connect(connect))
                nursery.start_soon(self._receive, stream, nursery.cancel_scope)
                while not over.is_set():
                    number = len(self.sent)
                    self.sent.append(trio.current_time())
                    await self._send(stream, self._publish(number))
                    await trio.sleep_until(self.sent[-1] + PERIOD_S)
                await trio.sleep(2 * WAIT_S)
                nursery.cancel_scope.cancel()

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        async with self.sending:
            with suppress(trio.BrokenResourceError):  # ``_receive`` sees the end
                await stream.send_all(data)

    def _publish(self, number: int) -> bytes:
        topic = f"fleet/{self.name}/n".encode()
        rest = (number + 1).to_bytes(2, "big") + bytes(1) + b"%d" % number
        body = len(topic).to_bytes(2, "big") + topic + rest
        return bytes([0x30 | self.qos << 1 | self.retains]) + varint(len(body)) + body

    async def _receive(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        data = b""
        with suppress(trio.BrokenResourceError):
            async for some in stream:
                packets, data = split(data + some)
                for first_byte, body in packets:
                    if first_byte in (0x40, 0x50):  # PUBACK, PUBREC
                        await self._answered(stream, first_byte, body)
        scope.cancel()

    async def _answered(self, stream: trio.SocketStream, first_byte: int, body: bytes) -> None:
        number = int.from_bytes(body[:2], "big") - 1
        assert number not in self.answers, f"{self.name}: {number} answered twice"
        code = body[2] if len(body) > 2 else 0
        self.answers[number] = trio.current_time(), code
        if first_byte == 0x50 and code < 0x80:
            await self._send(stream, b"\x62\x02" + body[:2])

    def with_code(self, *, is_refused: bool) -> set[int]:
        return {n for n, (_, code) in self.answers.items() if (code >= 0x80) is is_refused}

    def slowest_s(self) -> float:
        return max(at - self.sent[number] for number, (at, _) in self.answers.items())


@pytest.mark.parametrize(("away", "hangs"), [(0, False), (1, False), (0, True)])
async def test_a_broker_that_is_away_costs_its_own_messages_alone(
    tmp_path: Path, away: int, *, hangs: bool
) -> None:
    async with trio.open_nursery() as nursery:
        names = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(names.run)
        namesrv = joined(names.address)
        brokers = [
            BrokerProcess(tmp_path / name, namesrv=namesrv, name=name)
            for name in ("broker-a", "broker-b")
        ]
        gateway = GatewayProcess(tmp_path, namesrv=namesrv, settings=f"append_wait_s = {WAIT_S}")
        servers = (*brokers, gateway)
        in_thread = trio.to_thread.run_sync
        for server in servers:
            await in_thread(server.start)
        try:
            devices = [
                Device(f"dev{n}", qos=2 if n % 4 == 0 else 1, retains=n % 4 == 1)
                for n in range(DEVICES)
            ]
            await _publish(devices, gateway.address, brokers[away], hangs=hangs)
            stored = await _read_all(namesrv)
            _judge(devices, stored, brokers[away].address, in_doubt_s=2 * ANSWER_S * hangs)
            errors = gateway.errors()
            assert errors.count("a broker is away") == errors.count("a broker is back") == 1
            assert "Traceback" not in errors
            assert await in_thread(gateway.stop) == 0
        finally:
            for server in servers:
                server.kill()
        nursery.cancel_scope.cancel()


async def _publish(
    devices: list[Device], address: tuple[str, int], broker: BrokerProcess, *, hangs: bool
) -> None:
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        for device in devices:
            nursery.start_soon(device.run, address, over)
        await trio.sleep(USUAL_S)
        if hangs:
            os.kill(broker.pid, signal.SIGSTOP)
            await trio.sleep(AWAY_S)
            os.kill(broker.pid, signal.SIGCONT)
        else:
            await trio.to_thread.run_sync(broker.kill)
            await trio.sleep(AWAY_S)
            await trio.to_thread.run_sync(broker.start)
        await trio.sleep(AFTER_S)
        over.set()


async def _read_all(namesrv: str) -> list[StoredMessage]:
    async with PullConsumer(namesrv=namesrv, group="after") as consumer:
        queues = await consumer.queues("fleet")
        consumer.assign(queues)
        count = sum((await consumer.end_offsets(queues)).values())
        stored: list[StoredMessage] = []
        with trio.fail_after(30):
            while len(stored) < count:
                stored += await consumer.poll(timeout_s=10)
        return stored


def _judge(
    devices: list[Device], stored: list[StoredMessage], away: str, *, in_doubt_s: float
) -> None:
    places: dict[str, set[str]] = {}
    found: dict[str, list[int]] = {}
    for message in stored:
        name = message.properties["clientId"]
        places.setdefault(name, set()).add("{}:{}".format(*message.store_host))
        found.setdefault(name, []).append(int(message.body))
    faults: Counter[str] = Counter()
    at_away = 0
    for device in devices:
        numbers = found[device.name]
        assert numbers == sorted(set(numbers)), f"{device.name}: out of order or doubled"
        [place] = places[device.name]
        acknowledged, refused = (device.with_code(is_refused=r) for r in (False, True))
        faults["acknowledged and lost"] += len(acknowledged.difference(numbers))
        faults["refused and stored"] += len(refused.intersection(numbers))
        if place == away:
            at_away += device.is_plain
            in_doubt = len(device.sent) - len(device.answers)
            # What was under way when the broker was killed, the last of them as the line ended;
            # if it hangs, what was published before that is known.
            faults["in doubt"] += max(0, in_doubt - 3 - round(in_doubt_s / PERIOD_S))
        elif device.is_plain:
            faults["not acknowledged by the other"] += len(device.sent) - len(acknowledged)
            faults["late at the other"] += device.slowest_s() > PROMPT_S
        # The first seconds after its return are no worse.
        last = range(len(device.sent) - round((AFTER_S - 2) / PERIOD_S), len(device.sent))
        faults["not acknowledged after its return"] += len(set(last) - acknowledged)
    assert 0 < at_away < sum(device.is_plain for device in devices)
    assert not +faults, +faults
