"""What ``motelog demo`` does: a stack on free ports, devices, a native consumer, a Spark batch.

Owns: the devices' messages and what each step has seen of them, per device. Must not touch: the
terminal, the stack's own folder (it is ephemeral).

A tally is (messages, sum of CRC-32 of the payloads): the sum does not depend on the order in which
queues are read, and every payload is different, so lost, duplicated and changed messages all show.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio
from msgspec.structs import replace

from motelog.bridge.pull import PullConsumer
from motelog.cli.mqtt_client import WANTED, MqttClient, connect
from motelog.cli.tools import find_java, has_pyspark, install_command
from motelog.core.errors import leaves
from motelog.testing import MotelogProcess

TOPIC: Final = "telemetry"
READ_WITHIN_S: Final = 30.0
CONSUMER_GROUP: Final = "motelog-demo"

Say = Callable[[str], None]
Tally = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    devices: int
    seconds: float
    rate: float
    spark: bool


@dataclass(frozen=True, slots=True)
class DemoStep:
    """What one step has seen; ``verdict`` compares it with what was sent."""

    name: str
    messages: int
    devices: int
    verdict: str


@dataclass(slots=True)
class DemoReport:
    steps: list[DemoStep] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    spark_skipped: str | None = None

    @property
    def agrees(self) -> bool:
        return not self.differences

    def add(self, name: str, seen: Mapping[str, Tally], sent: Mapping[str, Tally]) -> None:
        """Compare what a step has seen, per device, with what was sent."""
        wrong = [device for device in {*sent, *seen} if seen.get(device) != sent.get(device)]
        for device in sorted(wrong)[:5]:
            self.differences.append(
                f"{name}: {device}: {_text(seen.get(device))}, sent {_text(sent.get(device))}"
            )
        if len(wrong) > 5:
            self.differences.append(f"{name}: and {len(wrong) - 5} more devices")
        verdict = "agree" if not wrong else f"{len(wrong)} devices differ"
        self.steps.append(DemoStep(name, sum(n for n, _ in seen.values()), len(seen), verdict))

    def add_count(self, name: str, messages: int, devices: int, wanted: int) -> None:
        """Compare a step that counts messages without reading them."""
        if messages != wanted:
            self.differences.append(f"{name}: {messages}, sent {wanted}")
        verdict = "count agrees" if messages == wanted else "count differs"
        self.steps.append(DemoStep(name, messages, devices, verdict))

    def as_json(self) -> dict[str, Any]:
        return {
            "agrees": self.agrees,
            "steps": [asdict(step) for step in self.steps],
            "differences": self.differences,
            "spark_skipped": self.spark_skipped,
        }


class Device:
    """One simulated device: its connection, and the tally of what it has sent."""

    def __init__(self, number: int) -> None:
        self.name = f"dev{number:03d}"
        self.sent = 0
        self.checksum = 0
        self.acknowledged = 0
        self._random = random.Random(number)
        self._temperature = 20 + self._random.random() * 5

    async def run(self, mqtt: tuple[str, int], seconds: float, rate: float) -> None:
        """Publish for ``seconds``; return when everything is acknowledged."""
        client_id = f"motelog-demo-{os.getpid()}-{self.name}"
        async with connect(mqtt, replace(WANTED, client_id=client_id)) as client:
            begin = trio.current_time()
            # Devices do not publish in step.
            due = begin + self._random.random() / rate
            while due < begin + seconds:
                await trio.sleep_until(due)
                await self._publish(client)
                due += 1 / rate
            await client.settle()
            self.acknowledged = client.acknowledged

    async def _publish(self, client: MqttClient) -> None:
        self._temperature += self._random.uniform(-0.2, 0.2)
        payload = (
            f'{{"device":"{self.name}","n":{self.sent},"value":{self._temperature:.2f}}}'
        ).encode()
        self.sent += 1
        self.checksum += zlib.crc32(payload)
        await client.publish(f"{TOPIC}/{self.name}/temperature", payload, qos=1)


def run_demo(options: DemoOptions, say: Say) -> DemoReport:
    """Run everything in a temporary stack of its own."""
    report = DemoReport()
    with MotelogProcess() as stack:
        say(f"stack: process {stack.pid}, MQTT {stack.ready['mqtt']}")
        host, port = stack.namesrv
        namesrv = f"{host}:{port}"
        say(
            f"devices: {options.devices} publish {options.rate:g} messages a second at QoS 1 "
            f"for {options.seconds:g} s"
        )
        devices = [Device(number) for number in range(1, options.devices + 1)]
        stored, consumed = _run(devices, stack.mqtt, namesrv, options)
        sent = {device.name: (device.sent, device.checksum) for device in devices}
        wanted = sum(device.sent for device in devices)
        report.add("sent", sent, sent)
        acknowledged = sum(device.acknowledged for device in devices)
        report.add_count("acknowledged", acknowledged, len(devices), wanted)
        report.add_count("stored", stored, len(devices), wanted)
        report.add("native consumer", consumed, sent)
        report.spark_skipped = _why_no_spark(options)
        if report.spark_skipped is None:
            say("Spark: starting a local session")
            report.add("Spark rows", _spark_tallies(namesrv), sent)
    return report


def _run(
    devices: list[Device], mqtt: tuple[str, int], namesrv: str, options: DemoOptions
) -> tuple[int, dict[str, Tally]]:
    try:
        return trio.run(_publish_and_consume, devices, mqtt, namesrv, options)
    except BaseExceptionGroup as group:
        raise leaves(group)[0] from group


async def _publish_and_consume(
    devices: list[Device], mqtt: tuple[str, int], namesrv: str, options: DemoOptions
) -> tuple[int, dict[str, Tally]]:
    """Return (messages in the log, tally per device as the consumer has seen it)."""
    async with trio.open_nursery() as nursery:
        for device in devices:
            nursery.start_soon(device.run, mqtt, options.seconds, options.rate)
    consumed: dict[str, Tally] = {}
    async with PullConsumer(namesrv=namesrv, group=CONSUMER_GROUP) as consumer:
        queues = await consumer.queues(TOPIC)
        begins = await consumer.begin_offsets(queues)
        ends = await consumer.end_offsets(queues)
        stored = sum(ends[queue] - begins[queue] for queue in queues)
        consumer.assign(queues)
        received = 0
        with trio.move_on_after(READ_WITHIN_S):
            while received < stored:
                for message in await consumer.poll(timeout_s=1.0):
                    received += 1
                    messages, checksum = consumed.get(message.tags or "", (0, 0))
                    checksum += zlib.crc32(message.body)
                    consumed[message.tags or ""] = (messages + 1, checksum)
        await consumer.commit()
    return stored, consumed


def _spark_tallies(namesrv: str) -> dict[str, Tally]:
    """Return the tally per device of a Spark batch read."""
    from motelog.spark.session import start_session

    session = start_session("motelog demo", master="local[2]")
    try:
        rows = (
            session.read.format("motelog")
            .option("namesrv", namesrv)
            .option("topic", TOPIC)
            .option("columns", "device,payload")
            .load()
            .selectExpr("device", "crc32(payload) AS checksum")
            .groupBy("device")
            .agg({"device": "count", "checksum": "sum"})
            .select("device", "count(device)", "sum(checksum)")
            .collect()
        )
    finally:
        session.stop()
    return {row[0]: (row[1], row[2]) for row in rows}


def _why_no_spark(options: DemoOptions) -> str | None:
    if not options.spark:
        return "--no-spark"
    if not has_pyspark():
        return f"pyspark is not installed ({install_command('spark')})"
    if find_java() is None:
        return "Java is not installed (apt install openjdk-17-jre-headless)"
    return None


def _text(tally: Tally | None) -> str:
    return "nothing" if tally is None else f"{tally[0]} messages, checksum {tally[1]:x}"
