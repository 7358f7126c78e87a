"""Throughput and latency of an MQTT server: what ``motelog bench`` runs and reports.

Owns: the choice of the bench and the report. Must not touch: sockets and packets
(loadtest.bench_client), terminals (the caller prints).

    pub      publishers with a window of unacknowledged messages each; counts acknowledged messages
    pipe     publisher i has one subscriber, of exactly its topic; counts delivered messages
    fanout   few publishers, many subscribers of all of them; counts each delivered copy
    connect  opens sessions and holds them; counts sessions

At QoS 0 nothing is acknowledged. So in ``pub`` a PINGREQ follows each window of messages, two such
batches are in flight, and a batch counts at its PINGRESP; messages in socket buffers do not count.
In ``pipe`` and ``fanout`` at most one window of messages per publisher is undelivered. If nothing
arrives for a second, the window opens again, and messages that stay missing count as lost.

With a rate, publishers send in turn at even intervals, and a window only limits what each has in
flight. The latency of a message that had to wait is measured from when it was due.
"""

from __future__ import annotations

import platform
from typing import Final

from motelog.loadtest.bench_client import Bench
from motelog.loadtest.bench_connect import ConnectBench
from motelog.loadtest.bench_delivery import DeliveryBench
from motelog.loadtest.bench_pub import PubBench
from motelog.loadtest.bench_report import (
    BenchError,
    BenchOptions,
    BenchRefusedError,
    BenchReport,
    BenchUnreachableError,
)

__all__ = [
    "KINDS",
    "BenchError",
    "BenchOptions",
    "BenchRefusedError",
    "BenchReport",
    "BenchUnreachableError",
    "keeps_rate",
    "run",
]

KINDS: Final = ("pub", "pipe", "fanout", "connect")


def run(kind: str, options: BenchOptions) -> BenchReport:
    """Run one bench; blocks until it has ended. BenchError if it cannot run."""
    bench = make(kind, options)
    try:
        bench.run()
    finally:
        bench.shut_down()
    percentiles = bench.latency.percentiles_us((0.5, 0.9, 0.99, 0.999))
    seconds = bench.measured_s
    messages = bench.messages
    return BenchReport(
        kind=kind,
        version=options.version,
        qos=options.qos,
        publishers=bench.publishers_count,
        subscribers=bench.subscribers_count,
        window=options.window,
        rate_asked=options.rate,
        payload_bytes=options.payload_bytes,
        messages=messages,
        seconds=seconds,
        rate=messages / seconds if seconds else 0.0,
        latency_us_p50=percentiles[0],
        latency_us_p90=percentiles[1],
        latency_us_p99=percentiles[2],
        latency_us_p99_9=percentiles[3],
        lost=bench.lost,
        duplicates=bench.duplicates,
        errors=bench.errors,
        error_examples=tuple(bench.error_examples),
        client_cpu_us=bench.usage.client_cpu_s * 1e6 / max(1, messages),
        server_cpu_us=(
            None
            if bench.usage.server_cpu_s is None
            else bench.usage.server_cpu_s * 1e6 / max(1, messages)
        ),
        server_rss_bytes=bench.usage.server_rss_bytes,
        server_session_bytes=bench.session_bytes,
        python=platform.python_version(),
        machine=platform.machine(),
    )


def keeps_rate(kind: str, qos: int) -> bool:
    """Return whether a bench supports a rate; at QoS 0 ``pub`` has no acknowledgements."""
    return kind in ("pipe", "fanout") or (kind == "pub" and qos > 0)


def make(kind: str, options: BenchOptions) -> Bench:
    if options.rate and not keeps_rate(kind, options.qos):
        raise BenchError("a rate is only for pub at QoS 1 or 2, pipe and fanout")
    match kind:
        case "pub":
            return PubBench(options)
        case "pipe":
            return DeliveryBench(options, publishers=options.connections)
        case "fanout":
            publishers, subscribers = options.publishers, options.subscribers
            return DeliveryBench(options, publishers=publishers, subscribers=subscribers)
        case "connect":
            return ConnectBench(options)
        case _:
            raise BenchError(f"{kind!r} is not one of {', '.join(KINDS)}")
