"""Hundreds of thousands of sessions: several load processes as one ``connect``, beside a canary.

Owns: the load processes, their reports, the canary, memory of both ends. Must not touch: packets
and phases of one process (loadtest.bench_connect).

    connect   each process opens its share, from its own source addresses on loopback: one address
              has too few ports, and one process too few descriptors
    hold      all are connected; keep alives are answered; memory is measured at the end
    end       the last keep alives are awaited, and everything is counted

The canary is a publisher and a subscriber (QoS 1) that connect first. It sends one message at a
time from one to the other, in all phases.
"""

from __future__ import annotations

import ipaddress
import math
import multiprocessing
import os
import resource
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Final

from motelog.core.niceness import NICENESS_MAX, niceness
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.loadtest.bench_client import Bench, Client, Frame, Latency
from motelog.loadtest.bench_connect import ConnectBench
from motelog.loadtest.bench_process import cpu_seconds, family, user_bytes
from motelog.loadtest.bench_report import BenchError, BenchOptions, BenchUnreachableError
from motelog.loadtest.pace import NS

#: Fraction of a process's descriptors; the system distributes connections over a server's workers
#: by a hash, and some get a percent more than others.
DESCRIPTORS_SHARE: Final = 0.9
SESSIONS_OF_PROCESS_MAX: Final = 25_000
#: An address has about 28,000 ports for connections to one other address. The system first tries
#: every second port, and once these are taken searches all of them: 1 ms for each connection.
SESSIONS_OF_ADDRESS_MAX: Final = 14_000
#: CONNECTs that are pending at once: in all processes together, or in each if that is more.
CONNECTING_TOGETHER_MAX: Final = 1_000
CONNECTING_OF_PROCESS_MAX: Final = 50
#: Niceness of load processes relative to workers: a third of the weight.
BEHIND_WORKERS: Final = 5
#: After this time without progress the server has stopped accepting connections.
STALL_S: Final = 60.0
CANARY_EVERY_NS: Final = NS // 10
CANARY_LOST_NS: Final = 10 * NS
#: The goal for both ends at a million sessions.
GOAL_BYTES: Final = 5_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """The results; latencies in microseconds."""

    sessions: int
    processes: int
    seconds: float
    """Seconds until the last session was connected."""
    rate: float
    tried_again: int
    """CONNECTs that the busy server refused, and that were repeated."""
    connect_us_p50: float
    connect_us_p99: float
    held_s: float
    pings: int
    pings_missing: int
    canary_messages: int
    canary_lost: int
    canary_us_p50: float
    canary_us_p99: float
    canary_us_max: float
    canary_held_us_p50: float
    """The same, after all sessions were connected."""
    canary_held_us_p99: float
    canary_held_us_max: float
    client_cpu_us: float
    """Per session, until the last was connected."""
    server_cpu_us: float | None
    client_held_cores: float
    """Cores in use after all sessions were connected."""
    server_held_cores: float | None
    client_bytes: int
    server_bytes: int | None
    server_base_bytes: int | None
    """Before the first session; None if the server is on another machine."""
    server_processes: int
    goal_bytes: int
    errors: int
    error_examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Up:
    sessions: int
    tried_again: int


@dataclass(frozen=True, slots=True)
class _Done:
    latency: Latency
    pings: int
    pings_missing: int
    errors: int
    error_examples: list[str]


class Canary(Bench):
    """Publishes one message after the other to itself; ``latency`` is that of each."""

    def __init__(self, options: BenchOptions) -> None:
        super().__init__(replace(options, qos=1, version=4, is_persistent=False))
        self.longest_ns = 0
        self._number = 0
        self._sent_ns = 0
        self._is_due = False

    def make_clients(self) -> list[Client]:
        self._topic = f"{self.options.topic_prefix}/canary/{self.run_id:08x}"
        return [self.client("canary-sub", 0, self._topic), self.client("canary-pub", 0)]

    def begin(self) -> None:
        self._number += 1
        self._sent_ns = time.monotonic_ns()
        payload = struct.pack(">Q", self._number)
        packet, id_at = encode_publish(self._topic.encode(), payload, 0x32, 4, None)
        self.reactor.send_numbered(packet, id_at, [(self.clients[1].connection, 1)])
        self._is_due = True

    def go_on(self) -> None:
        """Run one turn, and publish the next message if it is due."""
        self.turn()
        waited_ns = self.now_ns - self._sent_ns
        if self._is_due and waited_ns > CANARY_LOST_NS:
            self._is_due = False
            self.lost += 1
            self.fail("the canary's message did not arrive within 10 s")
        if not self._is_due and waited_ns > CANARY_EVERY_NS and self.clients[1].is_up:
            self.begin()

    def handle(self, frames: list[Frame]) -> None:
        for connection, first_byte, _, body, packet_id, _ in frames:
            if first_byte >> 4 != PacketType.PUBLISH:
                continue
            self.reactor.send_numbered(b"\x40\x02\0\0", 2, [(connection, packet_id)])
            if self._is_due and bytes(body) == struct.pack(">Q", self._number):
                self._is_due = False
                taken_ns = time.monotonic_ns() - self._sent_ns
                self.latency.add(taken_ns, 1)
                self.longest_ns = max(self.longest_ns, taken_ns)
                self.messages += 1

    def start_again(self) -> tuple[float, float, float]:
        """Return p50, p99 and maximum in microseconds, and reset them."""
        p50, p99 = self.latency.percentiles_us((0.5, 0.99))
        longest_us = self.longest_ns / 1000
        self.latency, self.longest_ns = Latency(), 0
        return p50, p99, longest_us


def sessions_of_process() -> int:
    """Return how many sessions one process may have: a load process, or a worker of a server."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return SESSIONS_OF_PROCESS_MAX
    return max(1, min(int(hard * DESCRIPTORS_SHARE), SESSIONS_OF_PROCESS_MAX))


def processes_for(sessions: int) -> int:
    return math.ceil(sessions / sessions_of_process())


def sources_of(number: int, sessions: int, host: str) -> tuple[str, ...]:
    """Return the local addresses of a load process, empty unless the server is on IPv4 loopback.

    Each process has ``sessions``, or one more.
    """
    address = ipaddress.ip_address(host)
    if address.version != 4 or not address.is_loopback:
        return ()
    count = math.ceil((sessions + 1) / SESSIONS_OF_ADDRESS_MAX)
    first = ipaddress.IPv4Address("127.0.1.1") + number * count
    return tuple(str(first + offset) for offset in range(count))


def run_fleet(options: BenchOptions, *, processes: int | None = None) -> FleetReport:
    """Open ``options.connections`` sessions from several processes and hold them; blocks.

    BenchError if they cannot be opened.
    """
    fleet = _Fleet(options, processes or processes_for(options.connections))
    try:
        return fleet.run()
    finally:
        fleet.shut_down()


class _Fleet:
    def __init__(self, options: BenchOptions, processes: int) -> None:
        self._options = options
        self._canary = Canary(options)
        self._up = [0] * processes
        self._tried_again = [0] * processes
        self._done: dict[int, _Done] = {}
        self._lines: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        self._base_bytes = self._server_bytes()
        self._said_ns = 0

    def run(self) -> FleetReport:
        canary, options = self._canary, self._options
        canary.open_clients()
        canary.begin()
        begun_ns, begun_cpu = time.monotonic_ns(), self._cpu()
        self._start()
        self._wait_for_all()
        up_ns, up_cpu = time.monotonic_ns(), self._cpu()
        seconds = (up_ns - begun_ns) / NS
        whole = canary.start_again()
        end_ns = up_ns + int(options.duration_s * NS)
        while time.monotonic_ns() < end_ns:
            self._turn("are held")
        held = canary.start_again()
        held_s, held_cpu = (time.monotonic_ns() - up_ns) / NS, self._cpu()
        client_bytes = user_bytes(self._client_pids())
        server_bytes = self._server_bytes()
        for line in self._lines:
            line.send(None)
        while len(self._done) < len(self._lines):
            self._turn("end")
        latency = Latency()
        for done in self._done.values():
            latency.merge(done.latency)
        connect_us_p50, connect_us_p99 = latency.percentiles_us((0.5, 0.99))
        examples = [*canary.error_examples]
        examples += chain.from_iterable(done.error_examples for done in self._done.values())
        sessions = sum(self._up)
        return FleetReport(
            sessions=sessions,
            processes=len(self._lines),
            seconds=seconds,
            rate=sessions / seconds,
            tried_again=sum(self._tried_again),
            connect_us_p50=connect_us_p50,
            connect_us_p99=connect_us_p99,
            held_s=options.duration_s,
            pings=sum(done.pings for done in self._done.values()),
            pings_missing=sum(done.pings_missing for done in self._done.values()),
            canary_messages=canary.messages,
            canary_lost=canary.lost,
            canary_us_p50=whole[0],
            canary_us_p99=whole[1],
            canary_us_max=whole[2],
            canary_held_us_p50=held[0],
            canary_held_us_p99=held[1],
            canary_held_us_max=held[2],
            client_cpu_us=(up_cpu[0] - begun_cpu[0]) * 1e6 / sessions,
            server_cpu_us=(up_cpu[1] - begun_cpu[1]) * 1e6 / sessions if server_bytes else None,
            client_held_cores=(held_cpu[0] - up_cpu[0]) / held_s,
            server_held_cores=(held_cpu[1] - up_cpu[1]) / held_s if server_bytes else None,
            client_bytes=client_bytes,
            server_bytes=server_bytes,
            server_base_bytes=self._base_bytes,
            server_processes=len(self._server_pids()),
            goal_bytes=GOAL_BYTES,
            errors=canary.errors + sum(done.errors for done in self._done.values()),
            error_examples=tuple(examples[:5]),
        )

    def shut_down(self) -> None:
        for line in self._lines:
            line.close()  # ends a process that is still running
        for process in self._processes:
            process.join()
        self._canary.shut_down()

    def _start(self) -> None:
        # One process imports everything, and the others are forked from it and share its memory.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        total, count = self._options.connections, len(self._up)
        host = self._canary.server_host
        for number in range(count):
            ours, theirs = context.Pipe()
            share = total * (number + 1) // count - total * number // count
            options = replace(
                self._options,
                connections=share,
                sources=sources_of(number, total // count, host),
                server_pid=None,
                progress=None,
                connect_timeout_s=86_400,
                connecting_max=max(CONNECTING_OF_PROCESS_MAX, CONNECTING_TOGETHER_MAX // count),
                tries_again=True,
            )
            process = context.Process(target=_hold_share, args=(theirs, options), daemon=True)
            process.start()
            theirs.close()
            assert process.pid is not None
            # Lower priority than the canary and the server's workers, whose priority is below their
            # broker's: on a machine of its own the load would take no CPU time from either.
            own = os.getpriority(os.PRIO_PROCESS, 0)
            behind = min(own + niceness(count) + BEHIND_WORKERS, NICENESS_MAX)
            os.setpriority(os.PRIO_PROCESS, process.pid, behind)
            self._lines.append(ours)
            self._processes.append(process)

    def _wait_for_all(self) -> None:
        progressed_ns, before = time.monotonic_ns(), 0
        while (up := sum(self._up)) < self._options.connections:
            self._turn("are connected")
            if up > before:
                progressed_ns, before = time.monotonic_ns(), up
            if time.monotonic_ns() - progressed_ns > STALL_S * NS:
                again = sum(self._tried_again)
                raise BenchUnreachableError(
                    f"{up:,} sessions were connected, and no other within {STALL_S:g} s; "
                    f"{again:,} times the busy server refused a client"
                )

    def _turn(self, what: str) -> None:
        self._canary.go_on()
        for number, line in enumerate(self._lines):
            while number not in self._done and line.poll():
                self._take(number, line)
        now_ns = time.monotonic_ns()
        if now_ns - self._said_ns > NS:
            self._said_ns = now_ns
            p50, p99 = self._canary.latency.percentiles_us((0.5, 0.99))
            self._canary.say(
                f"{sum(self._up):,} of {self._options.connections:,} sessions {what}; canary "
                f"p50 {p50 / 1000:.1f} p99 {p99 / 1000:.1f} max "
                f"{self._canary.longest_ns / 1e6:.1f} ms, {self._canary.lost} lost"
            )

    def _take(self, number: int, line: Connection) -> None:
        try:
            told = line.recv()
        except (EOFError, OSError) as exc:
            raise BenchError(f"load process {number + 1} has ended") from exc
        match told:
            case _Up():
                self._up[number] = told.sessions
                self._tried_again[number] = told.tried_again
            case _Done():
                self._done[number] = told
            case BenchError():
                raise told

    def _client_pids(self) -> set[int]:
        # Our children: the process from which the load processes are forked, and our own server.
        pids = {process.pid for process in self._processes if process.pid is not None}
        return pids.union(family(os.getpid())) - {self._options.server_pid}

    def _server_pids(self) -> list[int]:
        pid = self._options.server_pid
        return [] if pid is None else family(pid)

    def _cpu(self) -> tuple[float, float]:
        """Return the seconds of CPU time that the clients and the server have used."""
        client, server = (
            sum(cpu_seconds(pid) or 0.0 for pid in pids)
            for pids in (self._client_pids(), self._server_pids())
        )
        return client, server

    def _server_bytes(self) -> int | None:
        pids = self._server_pids()
        return user_bytes(pids) if pids else None


class _Share(ConnectBench):
    """The sessions of one load process, which reports its progress."""

    def __init__(self, options: BenchOptions, line: Connection) -> None:
        super().__init__(options)
        self._line = line

    def say(self, line: str) -> None:
        del line  # the parent prints the numbers
        self._line.send(_Up(self.messages, self.tried_again))


def _hold_share(line: Connection, options: BenchOptions) -> None:
    """Run as a load process; it ends early if its parent ends."""
    with suppress(EOFError, OSError):
        try:
            _hold_to_the_end(line, options)
        except BenchError as exc:
            line.send(exc)


def _hold_to_the_end(line: Connection, options: BenchOptions) -> None:
    """Open the sessions, hold them until the parent asks to end, and report the results."""
    share = _Share(options, line)
    try:
        share.open_clients()
        line.send(_Up(share.messages, share.tried_again))
        share.hold(line.poll)
        line.recv()
        share.drain()
        share.finish()
        line.send(
            _Done(
                share.latency,
                share.pings,
                share.pings_missing,
                share.errors,
                share.error_examples,
            )
        )
    finally:
        share.shut_down()
