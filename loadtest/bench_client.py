"""Many MQTT clients on one reactor: connecting, subscribing, timing; the base of every bench.

Owns: the connections, the phases (connect, warm up, measure, drain), the latency histogram.
Must not touch: what is published and what counts; each bench defines that in ``begin`` and
``handle``.
"""

from __future__ import annotations

import random
import resource
import select
import socket
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from motelog.core.addresses import format_address
from motelog.core.net.reactor import CloseReason, Framing, Reactor, Turn
from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.frames import split
from motelog.gateway.mqtt.packet_types import Connect, PacketType, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import decode_suback, encode_subscribe
from motelog.loadtest.bench_process import Usage, UsageMeter
from motelog.loadtest.bench_report import (
    BenchError,
    BenchOptions,
    BenchRefusedError,
    BenchUnreachableError,
)
from motelog.loadtest.pace import NS, Pace

#: The fraction of the keep alive after which a client sends a PINGREQ.
PING_SHARE: Final = 0.75
WAIT_S: Final = 0.05
PACKET_BYTES_MAX: Final = 2 << 20
PINGREQ: Final = b"\xc0\x00"
#: Reason codes of a server that cannot accept a client now: the first is MQTT 3's, the others 5's.
NOT_NOW: Final = frozenset({0x03, 0x88, 0x89})
#: After such a code no other client of this process connects for this long.
TRY_AGAIN_NS: Final = NS

Frame = tuple[int, int, Any, Any, int, Any]


class Latency:
    """Counts latencies in steps of 1.024 us."""

    def __init__(self) -> None:
        self._steps: Counter[int] = Counter()

    def add_all(self, nanoseconds: list[int]) -> None:
        self._steps.update([ns >> 10 for ns in nanoseconds])

    def add(self, nanoseconds: int, times: int) -> None:
        self._steps[nanoseconds >> 10] += times

    def merge(self, other: Latency) -> None:
        self._steps.update(other._steps)

    def percentiles_us(self, quantiles: Sequence[float]) -> list[float]:
        """Return the latency at each quantile; 0 if there were no messages."""
        if not self._steps:
            return [0.0] * len(quantiles)
        steps = sorted(self._steps)
        seen = list(accumulate(self._steps[step] for step in steps))
        return [steps[bisect_left(seen, quantile * seen[-1])] * 1.024 for quantile in quantiles]


@dataclass(slots=True)
class Client:
    """One connection of the bench."""

    client_id: str
    topic_filter: str | None = None
    connection: int = -1
    began_ns: int = 0
    is_up: bool = False


class Bench:
    """Runs the phases; a bench overrides the methods of the first section."""

    publishers_count = 0
    subscribers_count = 0

    def __init__(self, options: BenchOptions, *, output_bytes: int = 0) -> None:
        """``output_bytes`` is the most output that one client queues."""
        self.options = options
        # Distinguishes concurrent runs.
        self.run_id = random.getrandbits(31) if options.run_id is None else options.run_id
        self.latency = Latency()
        self.usage = Usage()
        self.messages = 0
        self.measured_s = 0.0
        self.lost = 0
        self.duplicates = 0
        self.errors = 0
        self.error_examples: list[str] = []
        self.is_refused = False
        self.tried_again = 0
        #: Connections whose clients will reconnect; the server closes these.
        self._not_now: set[int] = set()
        self.session_bytes: int | None = None
        self.is_measuring = False
        self.now_ns = time.monotonic_ns()
        self.progressed_ns = self.now_ns
        self._ping_ns = self.now_ns + self.ping_every_ns
        self._by_connection: dict[int, Client] = {}
        self._waiting: deque[Client] = deque()
        self._connecting = 0
        self._connect_from_ns = 0
        self._address = resolve(options.host, options.port)
        self.clients = self.make_clients()
        allow_descriptors(len(self.clients) + options.connecting_max)
        high = max(262_144, 2 * output_bytes)
        self.reactor = Reactor(
            connections_max=len(self.clients) + options.connecting_max,
            output_bytes_high=high,
            output_bytes_max=4 * high,
        )
        #: When messages are due, from ``begin`` on, if there is a rate.
        self.pace: Pace | None = None

    # ------------------------------------------------------------------ what a bench overrides

    def client(self, role: str, number: int, topic_filter: str | None = None) -> Client:
        return Client(f"bench-{self.run_id:08x}-{role}-{number}", topic_filter)

    def make_clients(self) -> list[Client]:
        """Return every client that the bench needs, in the order of connecting."""
        raise NotImplementedError

    def begin(self) -> None:
        """Publish the first window, after all clients are connected."""

    def send_due(self, number: int, due_ns: int) -> None:
        """Publish a message of ``Pace.due``, now or as soon as the window allows."""

    def handle(self, frames: list[Frame]) -> None:
        """Handle the packets that arrived, except CONNACK and SUBACK."""

    def stalled(self) -> None:
        """React to a second in which nothing was counted."""

    def finish(self) -> None:
        """Count what is lost, after publishing and the wait for late answers."""

    def unfinished(self) -> bool:
        """Return whether answers are still outstanding after publishing has ended."""
        return False

    @property
    def server_host(self) -> str:
        """The numeric address of the server."""
        return self._address[0]

    # ------------------------------------------------------------------ phases

    def run(self) -> None:
        self.open_clients()
        if self.options.rate:
            self.pace = Pace(self.options.rate, self.publishers_count, self.now_ns)
        self.begin()
        self.spend(self.options.warm_up_s)
        meter = UsageMeter(self.options.server_pid)
        begun_ns = self.now_ns
        self.is_measuring = True
        self.spend(self.options.duration_s, self.say_rate)
        self.is_measuring = False
        self.measured_s = (self.now_ns - begun_ns) / NS
        self.usage = meter.read()
        self.drain()
        self.finish()

    def open_clients(self) -> None:
        """Connect and subscribe all clients; BenchError if refused or too slow."""
        self._waiting.extend(self.clients)
        give_up_ns = time.monotonic_ns() + int(self.options.connect_timeout_s * NS)
        next_second_ns = time.monotonic_ns() + NS
        while self._waiting or self._connecting:
            if self.now_ns >= self._connect_from_ns:
                while self._waiting and self._connecting < self.options.connecting_max:
                    self._connect(self._waiting.popleft())
            self.turn()
            if self.errors:
                kind = BenchRefusedError if self.is_refused else BenchUnreachableError
                where = format_address(self.options.host, self.options.port)
                raise kind(f"cannot connect the clients to {where}: {self.error_examples[0]}")
            if self.now_ns >= next_second_ns:
                next_second_ns = self.now_ns + NS
                up = sum(client.is_up for client in self.clients)
                self.say(f"{up:,} of {len(self.clients):,} clients are connected")
            if self.now_ns > give_up_ns:
                up = sum(client.is_up for client in self.clients)
                raise BenchUnreachableError(
                    f"{up} of {len(self.clients)} clients were connected after "
                    f"{self.options.connect_timeout_s:g} s"
                )

    def spend(self, seconds: float, every_second: Callable[[float], None] | None = None) -> None:
        """Run the reactor for that long."""
        begun_ns = self.now_ns = time.monotonic_ns()
        end_ns = begun_ns + int(seconds * NS)
        next_second_ns = begun_ns + NS
        self.progressed_ns = begun_ns
        while self.now_ns < end_ns:
            self.turn()
            if self.now_ns >= next_second_ns:
                next_second_ns += NS
                if every_second is not None:
                    every_second((self.now_ns - begun_ns) / NS)
                if self.now_ns - self.progressed_ns > NS:
                    self.progressed_ns = self.now_ns
                    self.stalled()

    def drain(self) -> None:
        """Wait for outstanding answers, for a bounded time."""
        self.pace = None  # nothing is due any more
        end_ns = time.monotonic_ns() + int(self.options.drain_s * NS)
        while self.unfinished() and self.now_ns < end_ns:
            self.turn()

    def shut_down(self) -> None:
        self.reactor.shut_down()

    # ------------------------------------------------------------------ a turn

    def turn(self) -> None:
        if self.now_ns >= self._ping_ns:
            # Even while other clients connect: that may take longer than the keep alive.
            self._ping_ns = self.ping()
        if self.pace is not None:
            for number, due_ns in self.pace.due(self.now_ns):
                self.send_due(number, due_ns)
        turn = self.reactor.poll(self.now_ns // NS)
        if not turn:
            if not turn.more:
                self._wait()
            self.now_ns = time.monotonic_ns()
            return
        self.now_ns = time.monotonic_ns()
        if turn.opened:
            self._greet(turn)
        if turn.frames:
            frames: list[Frame] = split(turn.data, turn.index)
            self.handle(self._set_up(frames) if self._connecting else frames)
        for connection, reason in turn.closed:
            self._ended(connection, reason)

    def _wait(self) -> None:
        """Wait until something arrives or is due."""
        seconds = WAIT_S
        if self.pace is not None:
            seconds = min(WAIT_S, max(0, self.pace.next_ns - time.monotonic_ns()) / NS)
        # Not poll, which has millisecond resolution: messages due in between would be sent at once.
        select.select([self.reactor], [], [], seconds)

    @property
    def ping_every_ns(self) -> int:
        return int(self.options.keep_alive_s * PING_SHARE * NS)

    def ping(self) -> int:
        """Send the pings that are due; return when to do so again."""
        up = [number for number, client in self._by_connection.items() if client.is_up]
        self.reactor.fan_out(PINGREQ, up)
        return self.now_ns + self.ping_every_ns

    def fail(self, what: str) -> None:
        """Count an error; the first few are kept as examples."""
        self.errors += 1
        if len(self.error_examples) < 5:
            self.error_examples.append(what)

    def say(self, line: str) -> None:
        if self.options.progress is not None:
            self.options.progress(line)

    def say_rate(self, elapsed_s: float) -> None:
        self.say(f"{elapsed_s:4.0f} s  {self.messages / elapsed_s:12,.0f} messages/s")

    def _connect(self, client: Client) -> None:
        sources = self.options.sources
        try:
            connection = self.reactor.connect(
                self._address,
                Framing.MQTT,
                frame_bytes_max=PACKET_BYTES_MAX,
                source=sources[len(self._by_connection) % len(sources)] if sources else None,
            )
        except OSError as exc:
            raise BenchError(
                f"cannot open more than {len(self._by_connection)} connections: {exc.strerror}"
            ) from exc
        client.connection = connection
        client.began_ns = time.monotonic_ns()
        self._by_connection[connection] = client
        self._connecting += 1

    def _greet(self, turn: Turn) -> None:
        for connection, _, _ in turn.opened:
            connect = Connect(
                version=self.options.version,
                clean_start=not self.options.is_persistent,
                keep_alive_s=self.options.keep_alive_s,
                client_id=self._by_connection[connection].client_id,
            )
            self.reactor.set_variant(connection, self.options.version)
            self.reactor.send(connection, encode_connect(connect))

    def _set_up(self, frames: list[Frame]) -> list[Frame]:
        """Handle CONNACK and SUBACK; return the other frames."""
        others = []
        version = self.options.version
        for frame in frames:
            connection, first_byte, _, body, _, _ = frame
            client = self._by_connection[connection]
            try:
                match first_byte >> 4:
                    case PacketType.CONNACK:
                        code = decode_connack(version, body).reason_code
                        if code in NOT_NOW and self.options.tries_again:
                            self._not_now.add(connection)
                        elif code:
                            self.is_refused = True
                            self.fail(f"CONNECT was refused with code 0x{code:02x}")
                        elif client.topic_filter is None:
                            self._up(client)
                        else:
                            entry = SubscribeEntry(client.topic_filter, self.options.qos)
                            packet = encode_subscribe(version, Subscribe(1, (entry,)))
                            self.reactor.send(connection, packet)
                    case PacketType.SUBACK:
                        granted = decode_suback(version, body).reason_codes[0]
                        if granted != self.options.qos:
                            self.is_refused = True
                            self.fail(f"SUBSCRIBE was refused with code 0x{granted:02x}")
                        self._up(client)
                    case _:
                        others.append(frame)
            except GatewayError as exc:
                self.fail(f"the server sent a malformed packet: {exc}")
        return others

    def _up(self, client: Client) -> None:
        client.is_up = True
        self._connecting -= 1
        self.opened(client)

    def opened(self, client: Client) -> None:
        """Count a client that is connected (and subscribed)."""

    def _ended(self, connection: int, reason: CloseReason) -> None:
        client = self._by_connection.pop(connection)
        self._connecting -= not client.is_up
        if connection in self._not_now:
            self._not_now.remove(connection)
            self.tried_again += 1
            self._waiting.append(client)
            self._connect_from_ns = self.now_ns + TRY_AGAIN_NS
            self.say(f"{client.client_id} reconnects, because the server was busy")
            return
        client.is_up = False
        how = reason.name.lower().replace("_", " ")
        self.fail(f"{client.client_id}: the connection ended ({how})")


def allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files as needed, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def resolve(host: str, port: int) -> tuple[str, int]:
    """Return a numeric address for the reactor; BenchError if there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise BenchUnreachableError(f"{host}: {exc.strerror}") from exc
    address = found[0][4]
    return str(address[0]), port
