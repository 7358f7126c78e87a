"""What does a returning session cost, beside a plain CONNECT with a SUBSCRIBE?

Usage: python -m motelog.loadtest.bench.bench_return [--sessions N] [--messages M] [--each K]
[--json]. A gateway on a real store in a temporary folder, clients in memory, so that no socket is
in the figures. N devices subscribe to "commands/{id}/#" at QoS 1 and leave; M messages are written
to that topic, K of them for each device; all come back and acknowledge what they receive. Prints
the processor time in total and for each session.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import struct
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final, cast

import trio

from motelog.core.clock import SystemClock
from motelog.core.message import encode_properties, tags_code
from motelog.core.net.reactor import CloseReason, Turn
from motelog.gateway.assembly import GatewayParts, Surroundings, assemble
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.view import View
from motelog.loadtest.bench.report import note
from tests.support.gateway_stage import FakeTurn
from tests.support.local_log import local_log, read_back
from tests.support.memory_output import MemoryOutput
from tests.support.stores import BORN_HOST, make_store

BATCH: Final = 1000


class Fleet:
    """A gateway, and devices whose packets go straight into its turns."""

    def __init__(self, log: LocalLog, folder: Path, sessions: int) -> None:
        self.log = log
        self.output = MemoryOutput()
        self.clock = SystemClock()
        view = View(str(folder / "view.db"))
        view.open()
        self.journal = SessionJournal(log, view, self.clock, gateway="bench")
        self.retained = RetainedStore(log, view, self.clock)
        self.parts: GatewayParts = assemble(
            Surroundings(
                GatewayConfig(connections_max=sessions),
                log,
                self.journal,
                self.retained,
                self.output,
                GatewayMetrics(),
                self.clock,
            ),
            connections_max=sessions,
            wake=lambda: None,
            meet=lambda: None,
        )
        self.got: Counter[int] = Counter()
        #: Processor time of the gateway alone, without its clients.
        self._spent_s = 0.0

    def turn(self, frames: list[tuple[int, bytes]], **what: list[object]) -> None:
        data, index = b"".join(frame for _, frame in frames), b""
        at = 0
        for number, frame in frames:
            variant = self.output.variants.get(number, 0)
            index += struct.pack("=4I", number, variant, at, at + len(frame))
            at += len(frame)
        turn = FakeTurn(data, index, len(frames), **what)  # type: ignore[arg-type]
        began = time.process_time()
        self.parts.listener.handle_turn(cast("Turn", turn))
        self._spent_s += time.process_time() - began

    def take_spent(self) -> float:
        """Return the processor time since the last call, in seconds."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def deliver(self) -> bool:
        """Deliver one slice; return whether there is more."""
        began = time.process_time()
        is_more = self.parts.delivery.deliver(self.clock.now_ms())
        self._spent_s += time.process_time() - began
        return is_more

    def connect(self, numbers: range, *, subscribe: bool) -> None:
        frames = []
        for number in numbers:
            packet = Connect(
                version=4, clean_start=False, keep_alive_s=600, client_id=f"device-{number:07}"
            )
            frames.append((number, encode_connect(packet)))
            self.output.open(number)
        self.turn(frames, opened=[(n, 0, ("127.0.0.1", 1)) for n in numbers])
        if subscribe:
            entry = [SubscribeEntry(f"commands/{number:07}/#", 1) for number in numbers]
            packets = [encode_subscribe(4, Subscribe(1, (one,))) for one in entry]
            self.turn(list(zip(numbers, packets, strict=True)))
        if subscribe:
            self.output.sent.clear()

    def leave(self, numbers: range) -> None:
        for number in numbers:
            self.output.end(number)
        self.turn([], closed=[(number, CloseReason.PEER) for number in numbers])

    def acknowledge(self) -> None:
        """Receive all messages, and acknowledge them in one turn."""
        acks = []
        for number, packets in self.output.sent.items():
            for packet in packets:
                if packet[0] & 0xF6 == 0x32:
                    end = 4 + packet[3] if packet[1] < 128 else 5 + packet[4]
                    acks.append((number, b"\x40\x02" + packet[end : end + 2]))
                    self.got[number] += 1
        self.output.sent.clear()
        for begin in range(0, len(acks), BATCH):
            self.turn(acks[begin : begin + BATCH])


async def measure(sessions: int, messages: int, each: int) -> dict[str, float]:
    """Return microseconds of processor time for each session, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(
            Path(folder) / "store",
            clock=SystemClock(),
            commitlog_file_bytes=1 << 28,
            consume_queue_file_units=300_000,
            index_slots=5_000_000,
            index_entries=20_000_000,
        )
        async with local_log(store, SystemClock()) as log:
            fleet = Fleet(log, Path(folder), sessions)
            await read_back(fleet.journal, fleet.retained)
            return await run(fleet, sessions, messages, each)


async def run(fleet: Fleet, sessions: int, messages: int, each: int) -> dict[str, float]:
    batches = [range(at, min(at + BATCH, sessions)) for at in range(0, sessions, BATCH)]

    for batch in batches:
        fleet.connect(batch, subscribe=True)
        await trio.lowlevel.checkpoint()
    new = fleet.take_spent()
    say("connect and subscribe, persistent", new, sessions)
    for batch in batches:
        fleet.leave(batch)
        await trio.lowlevel.checkpoint()
    say("leave", fleet.take_spent(), sessions)
    began = time.process_time()
    while fleet.journal.refresh(100):
        await trio.lowlevel.checkpoint()
    say("read back into the view", time.process_time() - began, sessions)
    await write(fleet.log, sessions, messages, each)
    gc.collect()
    began_s = time.monotonic()
    for batch in batches:
        fleet.connect(batch, subscribe=False)
        await trio.lowlevel.checkpoint()
    connected = fleet.take_spent()
    while sum(fleet.got.values()) < sessions * each:
        while fleet.deliver():
            await trio.lowlevel.checkpoint()
        fleet.acknowledge()
        await trio.lowlevel.checkpoint()
    back, back_s = connected + fleet.take_spent(), time.monotonic() - began_s
    say("  of this, CONNECT", connected, sessions)
    say("all back and served", back, sessions)
    say("  seconds on the clock", back_s, sessions)
    assert all(fleet.got[number] == each for number in range(sessions))
    return {
        "new_us": new / sessions * 1e6,
        "connect_us": connected / sessions * 1e6,
        "us_each": back / sessions * 1e6,
        "seconds": back_s,
    }


async def write(log: LocalLog, sessions: int, messages: int, each: int) -> None:
    """Write the messages in a random order, ``each`` of them for each device."""
    names = [number for number in range(sessions) for _ in range(each)]
    names += [sessions + number for number in range(messages - len(names))]
    random.Random(1).shuffle(names)
    log.create_topic("commands", 8)
    for begin in range(0, len(names), BATCH):
        batch = []
        for number in names[begin : begin + BATCH]:
            tag = f"{number:07}"
            text = {"mqttRealTopic": f"commands/{tag}/set", "TAGS": tag, "qosLevel": "1"}
            handle = log.queue_of("commands", tag)
            properties = encode_properties(text)
            batch.append((handle, b"x" * 64, properties, tags_code(tag), 0, BORN_HOST, 0, 0, 0, 0))
        log.append(batch)
        await trio.lowlevel.checkpoint()


def say(label: str, seconds: float, sessions: int) -> None:
    note(f"{label:36}{seconds:8.2f} s{seconds / sessions * 1e6:8.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    args = parser.parse_args()
    about = f"{platform.machine()}, Python {platform.python_version()}"
    note(f"{about}, {args.sessions} sessions, {args.messages} messages")
    report = trio.run(measure, args.sessions, args.messages, args.each)
    if args.json:
        print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main()
