"""``connect``: how fast sessions open, and what an idle session costs the server.

Owns: counting sessions and keep alives. Must not touch: connections and phases (Bench).
Invariant: keep alives are spread over their interval, as those of devices are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from motelog.gateway.mqtt.packet_types import PacketType
from motelog.loadtest.bench_client import PINGREQ, Bench, Client, Frame
from motelog.loadtest.bench_process import UsageMeter, anonymous_bytes
from motelog.loadtest.bench_report import BenchOptions
from motelog.loadtest.pace import NS

PING_SLICES: Final = 45


class ConnectBench(Bench):
    """Opens sessions as fast as the server accepts them, then holds them and sends keep alives."""

    def __init__(self, options: BenchOptions) -> None:
        super().__init__(options)
        self._said_ns = 0
        self._ping_ns = self.now_ns
        self.pings = 0
        self.pings_missing = 0
        self._slice = 0
        #: Connections that wait for a PINGRESP.
        self._unanswered: set[int] = set()

    def make_clients(self) -> list[Client]:
        return [self.client("idle", i) for i in range(self.options.connections)]

    def opened(self, client: Client) -> None:
        self.messages += 1
        self.latency.add(time.monotonic_ns() - client.began_ns, 1)
        if self.now_ns - self._said_ns > NS:
            self._said_ns = self.now_ns
            self.say(f"{self.messages:,} of {len(self.clients):,} sessions")

    def ping(self) -> int:
        # A process with little CPU time is late, but must not become later each time.
        step_ns = self.ping_every_ns // PING_SLICES
        late = (self.now_ns - self._ping_ns) // step_ns if step_ns else 0
        slices = {(self._slice + i) % PING_SLICES for i in range(min(late + 1, PING_SLICES))}
        self._slice = (self._slice + len(slices)) % PING_SLICES
        due = [
            number
            for number, client in self._by_connection.items()
            if number % PING_SLICES in slices and client.is_up
        ]
        for number in self._unanswered.intersection(due):
            self._missing(number)
        self.reactor.fan_out(PINGREQ, due)
        self.pings += len(due)
        self._unanswered.update(due)
        return self._ping_ns + (late + 1) * step_ns

    def handle(self, frames: list[Frame]) -> None:
        self._unanswered.difference_update(
            [frame[0] for frame in frames if frame[1] >> 4 == PacketType.PINGRESP]
        )

    def hold(self, is_over: Callable[[], bool]) -> None:
        """Keep the sessions alive until ``is_over``."""
        while not is_over():
            self.turn()

    def unfinished(self) -> bool:
        return bool(self._unanswered)

    def finish(self) -> None:
        for number in self._unanswered:
            self._missing(number)

    def _missing(self, connection: int) -> None:
        self.pings_missing += 1
        client = self._by_connection.get(connection)
        if client is not None:  # the end of a connection already is a failure
            self.fail(f"{client.client_id}: a keep alive was not answered")

    def run(self) -> None:
        before_bytes = anonymous_bytes(self.options.server_pid)
        meter = UsageMeter(self.options.server_pid)
        begun_ns = time.monotonic_ns()
        self.open_clients()
        self.measured_s = (self.now_ns - begun_ns) / NS
        self.usage = meter.read()
        self.spend(self.options.duration_s)
        after_bytes = anonymous_bytes(self.options.server_pid)
        if before_bytes is not None and after_bytes is not None:
            self.session_bytes = (after_bytes - before_bytes) // len(self.clients)
        self.drain()
        self.finish()
