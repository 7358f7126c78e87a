"""Loads that are not a kind of ``motelog bench``: groups, many filters, sessions that come back.

Owns: the packets of each, what counts. Must not touch: connections (loadtest.bench_client), which
servers are measured (``table``).

    share      publishers, and a group whose members divide the messages among themselves
    subscribe  many filters, then SUBSCRIBE packets of one filter each, which count
    replay     many retained messages; one client subscribes to all of them
    drain      one persistent session; it is away while its messages are published, and comes back
    reconnect  many persistent sessions: new ones, idle ones, and all back at once
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from motelog.gateway.mqtt.acks import PACKET_ID_AT
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.packet_types import PacketType, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.loadtest.bench_client import Bench, Client, Frame
from motelog.loadtest.bench_connect import ConnectBench
from motelog.loadtest.bench_process import UsageMeter, anonymous_bytes, cpu_seconds
from motelog.loadtest.bench_pub import PubBench
from motelog.loadtest.bench_report import BenchError, BenchOptions
from motelog.loadtest.pace import NS

PUBACK: Final = b"\x40\x02\x00\x00"
MEMBERS: Final = 30
#: Filters of one client, about: the gateway's default configuration allows 1,000.
FILTERS_EACH: Final = 900
FILTERS_IN_PACKET: Final = 100
PACKETS_IN_FLIGHT: Final = 50
#: How long a load waits for progress before it gives up.
PATIENCE_S: Final = 20.0
#: Messages in flight to the server while they are stored for later.
STORE_WINDOW: Final = 500
#: A server that uses less of a processor than this is idle.
IDLE_CPU_SHARE: Final = 0.05
SETTLED_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The count of one stretch, and the server's usage for each."""

    count: int
    seconds: float
    cpu_us: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Stretch:
    """Measures from its creation to ``counted``."""

    def __init__(self, options: BenchOptions) -> None:
        self._meter = UsageMeter(options.server_pid)
        self._begun_ns = time.monotonic_ns()

    def counted(self, count: int) -> Counted:
        seconds = (time.monotonic_ns() - self._begun_ns) / NS
        return Counted(count, seconds, (self._meter.read().server_cpu_s or 0.0) * 1e6 / count)


def _wait(bench: Bench, until: Callable[[], bool], progress: Callable[[], int]) -> None:
    """Take turns until a condition is true; BenchError if there is no more progress."""
    last, give_up_s = progress(), time.monotonic() + PATIENCE_S
    while not until():
        bench.turn()
        if bench.errors:
            raise BenchError(bench.error_examples[0])
        now_s = time.monotonic()
        if progress() != last:
            last, give_up_s = progress(), now_s + PATIENCE_S
        elif now_s > give_up_s:
            raise BenchError(f"no progress for {PATIENCE_S:g} s, after {last:,}")


# --- a group that divides the messages ----------------------------------------------------


class ShareBench(PubBench):
    """Publishers whose windows are of PUBACKs; ``taken`` counts what the members got."""

    taken = 0

    def make_clients(self) -> list[Client]:
        topic_filter = f"$share/bench/{self.options.topic_prefix}/+/telemetry"
        members = [self.client("member", i, topic_filter) for i in range(MEMBERS)]
        self._members = members
        return super().make_clients() + members

    def handle(self, frames: list[Frame]) -> None:
        others = [frame for frame in frames if frame[2] is None]
        if len(others) < len(frames):
            got = [(frame[0], frame[4]) for frame in frames if frame[2] is not None]
            self.reactor.send_numbered(PUBACK, PACKET_ID_AT, got)
            if self.is_measuring:
                self.taken += len(got)
        if others:
            super().handle(others)


def share(options: BenchOptions) -> tuple[Counted, float]:
    """Return the publishes, and the members' share of them in the same time."""
    bench = ShareBench(options)
    try:
        bench.open_clients()
        bench.begin()
        bench.spend(options.warm_up_s)
        stretch = Stretch(options)
        bench.is_measuring = True
        bench.spend(options.duration_s)
        counted = stretch.counted(max(1, bench.messages))
        bench.is_measuring = False
    finally:
        bench.shut_down()
    if bench.errors:
        raise BenchError(bench.error_examples[0])
    return counted, bench.taken / counted.count


# --- many filters -------------------------------------------------------------------------


class SubscribeBench(Bench):
    """Clients that subscribe to more and more filters; ``answered`` counts filters."""

    def __init__(self, options: BenchOptions) -> None:
        super().__init__(options)
        self.answered = 0
        self._next = 0

    def make_clients(self) -> list[Client]:
        return [self.client("sub", i) for i in range(self.options.connections)]

    def handle(self, frames: list[Frame]) -> None:
        for _, first_byte, _, body, _, _ in frames:
            if first_byte >> 4 == PacketType.SUBACK:
                self.answered += len(body) - 2
                if max(body[2:]) >= 0x80:
                    self.fail("a filter was refused")

    def subscribe(self, count: int, *, each: int) -> None:
        """Subscribe to ``count`` new filters, ``each`` in one packet, client after client."""
        wanted = self.answered + count
        while self.answered < wanted:
            # A few clients, then their answers, then the next ones.
            for _ in range(min(PACKETS_IN_FLIGHT, -(-(wanted - self._next) // each))):
                numbers = range(self._next, self._next + each)
                entries = tuple(SubscribeEntry(f"dev/{number}/#", 1) for number in numbers)
                packet = encode_subscribe(self.options.version, Subscribe(1, entries))
                client = self.clients[self._next // each % len(self.clients)]
                self.reactor.send(client.connection, packet)
                self._next += each
            _wait(self, lambda: self.answered == self._next, lambda: self.answered)


def subscribe(options: BenchOptions, *, before: int, count: int) -> Counted:
    """Return ``count`` SUBSCRIBEs of one filter each, to a server with ``before`` filters."""
    bench = SubscribeBench(replace(options, connections=-(-(before + count) // FILTERS_EACH)))
    try:
        bench.open_clients()
        bench.subscribe(before, each=FILTERS_IN_PACKET)
        stretch = Stretch(options)
        bench.subscribe(count, each=1)
        return stretch.counted(count)
    finally:
        bench.shut_down()


# --- one receiver of many existing messages -----------------------------------------------


class StoreBench(Bench):
    """One client that publishes at QoS 1, each message under its own topic name or all one."""

    def __init__(self, options: BenchOptions, *, is_retained: bool) -> None:
        super().__init__(options, output_bytes=STORE_WINDOW * 200)
        self._first_byte = 0x33 if is_retained else 0x32
        self._is_retained = is_retained
        self.stored = 0
        self._sent = 0

    def make_clients(self) -> list[Client]:
        return [self.client("pub", 0)]

    def handle(self, frames: list[Frame]) -> None:
        self.stored += sum(frame[1] == 0x40 for frame in frames)

    def store(self, count: int) -> None:
        payload = b"x" * self.options.payload_bytes
        prefix, version = self.options.topic_prefix, self.options.version
        while self.stored < count:
            packets = []
            for number in range(self._sent, min(count, self.stored + STORE_WINDOW)):
                name = f"{prefix}/{number if self._is_retained else 0}/telemetry".encode()
                packet, id_at = encode_publish(name, payload, self._first_byte, version, None)
                packet_id = (number % STORE_WINDOW + 1).to_bytes(2, "big")
                packets.append(packet[:id_at] + packet_id + packet[id_at + 2 :])
            self._sent += len(packets)
            self.reactor.send(self.clients[0].connection, b"".join(packets))
            at_least = min(count, self._sent) - STORE_WINDOW // 2
            _wait(self, lambda low=at_least: self.stored >= low, lambda: self.stored)  # type: ignore[misc]
            if self._sent == count:
                _wait(self, lambda: self.stored == count, lambda: self.stored)


class ReceiveBench(Bench):
    """One client that takes messages and acknowledges them; ``got`` counts them."""

    def __init__(self, options: BenchOptions) -> None:
        super().__init__(options)
        self.got = 0

    def make_clients(self) -> list[Client]:
        return [self.client("one", 0)]

    def handle(self, frames: list[Frame]) -> None:
        acks = [(frame[0], frame[4]) for frame in frames if frame[2] is not None]
        self.got += len(acks)
        self.reactor.send_numbered(PUBACK, PACKET_ID_AT, acks)

    def subscribe(self) -> None:
        entry = SubscribeEntry(f"{self.options.topic_prefix}/#", 1)
        packet = encode_subscribe(self.options.version, Subscribe(1, (entry,)))
        self.reactor.send(self.clients[0].connection, packet)

    def receive(self, count: int) -> None:
        _wait(self, lambda: self.got >= count, lambda: self.got)


def _store(options: BenchOptions, count: int, *, is_retained: bool) -> None:
    bench = StoreBench(replace(options, is_persistent=False), is_retained=is_retained)
    try:
        bench.open_clients()
        bench.store(count)
    finally:
        bench.shut_down()


def _settle(server_pid: int | None) -> None:
    """Wait until the server has finished the work that publishes have left."""
    last = cpu_seconds(server_pid)
    give_up_s = time.monotonic() + SETTLED_WITHIN_S
    while time.monotonic() < give_up_s:
        time.sleep(1.0)
        now = cpu_seconds(server_pid)
        if now is None or last is None or now - last < IDLE_CPU_SHARE:
            return
        last = now


def replay(options: BenchOptions, *, count: int) -> Counted:
    """Return the delivery of ``count`` retained messages to one subscription."""
    _store(options, count, is_retained=True)
    _settle(options.server_pid)
    bench = ReceiveBench(options)
    try:
        bench.open_clients()
        stretch = Stretch(options)
        bench.subscribe()
        bench.receive(count)
        return stretch.counted(count)
    finally:
        bench.shut_down()


def drain(options: BenchOptions, *, count: int) -> Counted:
    """Return the delivery of ``count`` messages to a session that was away, CONNECT included."""
    options = replace(options, is_persistent=True, run_id=time.monotonic_ns() % (1 << 31))
    bench = ReceiveBench(options)
    try:
        bench.open_clients()
        bench.subscribe()
        bench.spend(0.3)  # SUBACK
    finally:
        bench.shut_down()
    _store(options, count, is_retained=False)
    bench = ReceiveBench(options)
    try:
        stretch = Stretch(options)
        bench.open_clients()
        bench.receive(count)
        return stretch.counted(count)
    finally:
        bench.shut_down()


# --- sessions that come back --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Persistent sessions with one subscription; memory is the server's, for each."""

    new: Counted
    present_bytes: float
    back: Counted


class SubscribedBench(ConnectBench):
    """Sessions with one filter each."""

    def make_clients(self) -> list[Client]:
        count = self.options.connections
        return [self.client("dev", i, f"commands/{i}/#") for i in range(count)]


class BackBench(ConnectBench):
    """The same clients; their subscriptions already exist."""

    def make_clients(self) -> list[Client]:
        return [self.client("dev", i) for i in range(self.options.connections)]


def reconnect(options: BenchOptions) -> Reconnected:
    """Open ``connections`` persistent sessions, end the connections, and open all again.

    The options have a ``run_id``, so that ``end_sessions`` finds the sessions.
    """
    options = replace(options, is_persistent=True, qos=1)
    before_bytes = anonymous_bytes(options.server_pid) or 0
    bench = SubscribedBench(options)
    try:
        stretch = Stretch(options)
        bench.open_clients()
        new = stretch.counted(options.connections)
        bench.spend(options.duration_s)
        grown_bytes = (anonymous_bytes(options.server_pid) or 0) - before_bytes
    finally:
        bench.shut_down()
    time.sleep(2.0)  # the server stores them
    returning = BackBench(options)
    try:
        stretch = Stretch(options)
        returning.open_clients()
        back = stretch.counted(options.connections)
    finally:
        returning.shut_down()
    return Reconnected(new, grown_bytes / options.connections, back)


def end_sessions(options: BenchOptions) -> None:
    """End the sessions that ``reconnect`` has left, by a clean start each."""
    bench = BackBench(replace(options, is_persistent=False))
    try:
        bench.open_clients()
    finally:
        bench.shut_down()
    time.sleep(2.0)  # the server reads back that they have ended
