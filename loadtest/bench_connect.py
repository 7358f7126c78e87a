"""``connect``: how fast sessions open, and what an idle one costs the server.

Owns: the count of sessions. Must not touch: connections and phases (Bench).
"""

from __future__ import annotations

import time

from motelog.loadtest.bench_client import NS, Bench, Client
from motelog.loadtest.bench_process import UsageMeter, anonymous_bytes
from motelog.loadtest.bench_report import BenchOptions


class ConnectBench(Bench):
    """Opens sessions as fast as the server takes them, then holds them and answers keep alives."""

    def __init__(self, options: BenchOptions) -> None:
        super().__init__(options)
        self._said_ns = 0

    def make_clients(self) -> list[Client]:
        return [self.client("idle", i) for i in range(self.options.connections)]

    def opened(self, client: Client) -> None:
        self.messages += 1
        self.latency.add(time.monotonic_ns() - client.began_ns, 1)
        if self.now_ns - self._said_ns > NS:
            self._said_ns = self.now_ns
            self.say(f"{self.messages:,} of {len(self.clients):,} sessions")

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
