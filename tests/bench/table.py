"""The performance table: Motelog beside mosquitto in one run, and what has no peer.

Owns: which cases there are, the servers under test, the table as Markdown. Must not touch: the
measuring (loadtest.bench, tests.bench.bench_spark).
Question: what does each path cost, and how does it compare with Debian's mosquitto, which stores
nothing? With two processors or more the server is pinned to one and the load to another; servers
take turns in every round and the median round counts.

    python -m tests.bench.table [--seconds 5] [--rounds 3] [--sessions 15000] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from core.clock import SystemClock
from core.message import encode_host
from core.store.config import StoreConfig
from core.store.message_store import MessageStore
from loadtest.bench import BenchOptions, BenchReport, run
from motelog.cli.kernels import kernel_states
from motelog.cli.tools import find_java, has_pyspark
from motelog.testing import MotelogProcess

ROOT: Final = Path(__file__).resolve().parents[2]
SERVER_WITHIN_S: Final = 10.0
FAN_OUT: Final = 1000
APPEND_BATCH: Final = 1000
APPEND_BODY: Final = bytes(100)

CASES: Final = (
    ("QoS 1 publish, 1 in flight", "pub", BenchOptions(qos=1, window=1)),
    ("QoS 1 publish, 20 in flight", "pub", BenchOptions(qos=1, window=20)),
    ("QoS 0 publish", "pub", BenchOptions(qos=0, window=20)),
    ("1:1 pipe, QoS 0", "pipe", BenchOptions(qos=0, window=20)),
    ("1:1 pipe, QoS 1", "pipe", BenchOptions(qos=1, window=20)),
    (f"fan-out 1 -> {FAN_OUT}, QoS 0", "fanout", BenchOptions(qos=0, subscribers=FAN_OUT)),
)


@dataclass(frozen=True, slots=True)
class Server:
    """One MQTT server under test."""

    host: str
    port: int
    pid: int


Row = tuple[str, str, str, str]


def main() -> None:
    arguments = _arguments()
    say(f"{machine()}\n")
    rows: list[Row] = [("case", "Motelog", "mosquitto", "Motelog / mosquitto")]
    for name, kind, options in CASES:
        options = replace(options, duration_s=arguments.seconds)
        rows.append(compare(name, kind, options, arguments.rounds))
    rows.append(compare_sessions(arguments.sessions))
    rows.append(("append alone, 100 B bodies", f"{append_rate():,.0f} records/s", "", ""))
    rows.append(spark_row() if arguments.spark else ("Spark rows", "not run", "", ""))
    rows.append(start_row())
    text = "\n".join(("# Performance table", "", machine(), "", *markdown(rows), ""))
    say("\n" + text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


def compare(name: str, kind: str, options: BenchOptions, rounds: int) -> Row:
    """Run one case on both servers in turn and return its row."""
    ours: list[BenchReport] = []
    theirs: list[BenchReport] = []
    for number in range(rounds):
        with motelog_server() as server:
            ours.append(measure(kind, options, server))
        with mosquitto_server() as peer:
            if peer is not None:
                theirs.append(measure(kind, options, peer))
        say(f"{name}: round {number + 1} of {rounds}")
    ratio = ""
    if theirs:
        ratio = f"{median_rate(ours) / median_rate(theirs):.2f}"
    return name, rate_text(ours), rate_text(theirs), ratio


def compare_sessions(count: int) -> Row:
    """Return what one idle session costs in user memory, of so many."""
    options = BenchOptions(connections=count, duration_s=2.0, connect_timeout_s=120.0)
    with motelog_server() as server:
        ours = measure("connect", options, server)
    with mosquitto_server() as peer:
        theirs = None if peer is None else measure("connect", options, peer)
    name = f"memory per idle session, {count:,} sessions"
    return name, session_text(ours), "-" if theirs is None else session_text(theirs), ""


def append_rate() -> float:
    """Return records a second into a store, from Python, in batches, without a gateway."""
    with tempfile.TemporaryDirectory(prefix="motelog-bench-") as directory:
        config = StoreConfig(directory=directory)
        host = encode_host("127.0.0.1", 10911)
        store = MessageStore(config, store_host=host, clock=SystemClock())
        store.open()
        try:
            tails = [store.queue_tail("bench", queue_id) for queue_id in range(8)]
            begin = time.perf_counter()
            records = 0
            while time.perf_counter() - begin < 2.0:
                now_ms = time.time_ns() // 1_000_000
                store.append(
                    [
                        (tails[i & 7], APPEND_BODY, b"", 0, now_ms, host, 0, 0, 0, 0)
                        for i in range(APPEND_BATCH)
                    ]
                )
                records += APPEND_BATCH
            return records / (time.perf_counter() - begin)
        finally:
            store.close()


def spark_row() -> Row:
    """Return rows a second through the source, and its CPU beside a source that does nothing."""
    name = "Spark rows, CPU beside an idle source"
    if not has_pyspark() or find_java() is None:
        return name, "no Java or pyspark", "", ""
    command = [sys.executable, "-m", "tests.bench.bench_spark", "--rows=1000000", "--rounds=3"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True
    )
    column = json.loads(result.stdout)["columns"]["telemetry"]
    rate = column["motelog"]["rows_per_s"]
    return name, f"{rate:,.0f} rows/s, CPU {column['cpu_ratio']:.2f} x", "", ""


def start_row() -> Row:
    """Return how long ``motelog dev`` takes to be ready, and its memory then."""
    begin = time.monotonic()
    with MotelogProcess() as motelog:
        ready_s = time.monotonic() - begin
        status = Path(f"/proc/{motelog.pid}/status").read_text(encoding="utf-8")
    rss_kb = int(status.partition("VmRSS:")[2].split()[0])
    return "`motelog dev` ready", f"{ready_s:.2f} s, {rss_kb / 1000:.0f} MB", "", ""


def measure(kind: str, options: BenchOptions, server: Server) -> BenchReport:
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) > 1:
        os.sched_setaffinity(server.pid, {processors[0]})
        os.sched_setaffinity(0, {processors[1]})
    try:
        report = run(
            kind,
            replace(options, host=server.host, port=server.port, server_pid=server.pid),
        )
    finally:
        os.sched_setaffinity(0, processors)
    if report.lost or report.errors:
        say(f"{kind}: {report.lost} lost, {report.errors} errors {report.error_examples}")
    return report


@contextmanager
def motelog_server() -> Iterator[Server]:
    with MotelogProcess() as motelog:
        yield Server(*motelog.mqtt, motelog.pid)


@contextmanager
def mosquitto_server() -> Iterator[Server | None]:
    """A mosquitto of our own without persistence, or None where it is not installed."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="motelog-bench-") as directory:
        settings = Path(directory, "mosquitto.conf")
        # Without a limit on queued messages it would drop what the bench then waits for.
        settings.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n",
            encoding="utf-8",
        )
        process = subprocess.Popen(
            [program, "-c", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for_port(port)
            yield Server("127.0.0.1", port, process.pid)
        finally:
            process.terminate()
            process.wait(SERVER_WITHIN_S)


def median_rate(reports: list[BenchReport]) -> float:
    return statistics.median(report.rate for report in reports)


def rate_text(reports: list[BenchReport]) -> str:
    if not reports:
        return "not installed"
    middle = sorted(reports, key=lambda report: report.rate)[len(reports) // 2]
    cpu = "" if middle.server_cpu_us is None else f", {middle.server_cpu_us:.2f} us CPU"
    return f"{middle.rate:,.0f}/s, p99 {middle.latency_us_p99 / 1000:.2f} ms{cpu}"


def session_text(report: BenchReport) -> str:
    return "?" if report.server_session_bytes is None else f"{report.server_session_bytes:,} B"


def machine() -> str:
    """Return what the figures belong to."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    kernels = "; ".join(f"{name} {state}" for name, state in kernel_states().items())
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} processors, "
        f"Linux {platform.release()}, Python {platform.python_version()}, commit {commit}; "
        f"{kernels}"
    )


def markdown(rows: list[Row]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|" + "---|" * len(row)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + SERVER_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Motelog beside mosquitto, as a Markdown table.")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured per run (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs per server and case")
    parser.add_argument("--sessions", type=int, default=15_000, help="idle sessions to hold")
    parser.add_argument("--no-spark", dest="spark", action="store_false")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
