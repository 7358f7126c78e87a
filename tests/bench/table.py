"""The performance table: Motelog beside mosquitto in one run, and what has no peer.

Owns: which cases there are, the servers under test, the table as Markdown. Must not touch: the
measuring (loadtest.bench, bench_spark, the store's cases in tests.bench.store).
Question: what does each path cost, and how does it compare with Debian's mosquitto, which stores
nothing? With two processors or more the server is pinned to one and the load to another; servers
take turns in every round and the medians of the rounds count. Where the load generator is what
limits the rate, the server's CPU time per message still tells.

    python -m tests.bench.table [--seconds 5] [--rounds 3] [--sessions 15000] [--output FILE]
                                [--ruler PATH] [--no-spark] [--no-store] [--store-case NAME ...]

The store's figures, each beside its floor, follow in a table of their own: some minutes;
``--store-case`` names some of them.
``--ruler`` names an independent load generator in place of our own: a program that is called as
``PATH pub|pipe|fanout|connect -p PORT -q QOS -W WINDOW ...`` and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from motelog.cli.tools import find_java, has_pyspark
from motelog.core.addresses import format_address
from motelog.loadtest.bench import BenchOptions, run
from motelog.testing import MotelogProcess
from tests.bench.report import Row, machine, markdown, run_json, say
from tests.support.gateway_process import GatewayProcess

SERVER_WITHIN_S: Final = 10.0
RULER_WITHIN_S: Final = 120.0
FAN_OUT: Final = 1000

ONE = BenchOptions(qos=1, window=1)
TWENTY = BenchOptions(qos=1, window=20)
CASES: Final = (
    ("QoS 1 publish, 1 in flight", "pub", ONE, "async"),
    ("QoS 1 publish, 20 in flight", "pub", TWENTY, "async"),
    ("QoS 1 publish, 1,000 topic names", "pub", replace(TWENTY, names=1_000), "async"),
    ("QoS 1 publish, 1,000,000 topic names", "pub", replace(TWENTY, names=1_000_000), "async"),
    ("QoS 1 publish, 1 in flight, fsync before PUBACK", "pub", ONE, "sync"),
    ("QoS 1 publish, 20 in flight, fsync before PUBACK", "pub", TWENTY, "sync"),
    ("QoS 0 publish", "pub", BenchOptions(qos=0, window=20), "async"),
    ("1:1 pipe, QoS 0", "pipe", BenchOptions(qos=0, window=20), "async"),
    ("1:1 pipe, QoS 1", "pipe", TWENTY, "async"),
    (f"fan-out 1 -> {FAN_OUT}, QoS 0", "fanout", BenchOptions(qos=0, subscribers=FAN_OUT), "async"),
)


@dataclass(frozen=True, slots=True)
class Server:
    """One MQTT server under test."""

    host: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Figure:
    """What one run of one case came to; times in microseconds."""

    rate: float
    cpu_us: float
    latency_us_p99: float
    session_bytes: int


Measure = Callable[[str, BenchOptions, Server], Figure]


def main() -> None:
    arguments = _arguments()
    say(f"{machine()}\n")
    measure = ruler(arguments.ruler) if arguments.ruler else own_bench
    rows: list[Row] = [("case", "Motelog", "mosquitto", "rate ratio", "CPU ratio")]
    for name, kind, options, flush in CASES:
        if arguments.ruler and options.names:
            continue  # it has no option for them
        options = replace(options, duration_s=arguments.seconds)
        rows.append(compare(name, kind, options, flush, arguments.rounds, measure))
    rows.append(apart_row(arguments.seconds, arguments.rounds))
    rows.append(compare_sessions(arguments.sessions, measure))
    rows.append(spark_row() if arguments.spark else ("Spark rows", "not run", "", "", ""))
    rows.append(start_row())
    load = "an independent load generator" if arguments.ruler else "`motelog bench`'s engine"
    text = "\n".join(
        (
            "# Performance table",
            "",
            machine(),
            "",
            f"Load: {load}; 100 connections, 64 B payloads; medians of {arguments.rounds} rounds "
            f"of {arguments.seconds:g} s, servers in turn. CPU is the server's, per message (per "
            "delivery where there are subscribers). CPU ratio is mosquitto's over Motelog's: above "
            "1, Motelog needs less. mosquitto stores nothing; Motelog appends each message to its "
            "log first.",
            "",
            *markdown(rows),
            "",
            *(store_lines(arguments.store_case) if arguments.store else ()),
        )
    )
    say("\n" + text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


def compare(
    name: str, kind: str, options: BenchOptions, flush: str, rounds: int, measure: Measure
) -> Row:
    """Run one case on both servers in turn and return its row."""
    ours: list[Figure] = []
    theirs: list[Figure] = []
    for number in range(rounds):
        with motelog_server(flush) as server:
            ours.append(measure(kind, options, server))
        with mosquitto_server() as peer:
            if peer is not None:
                theirs.append(measure(kind, options, peer))
        say(f"{name}: round {number + 1} of {rounds}")
    if not theirs:
        return name, figure_text(ours), "not installed", "", ""
    rate = median(theirs, "rate")
    cpu = median(ours, "cpu_us")
    return (
        name,
        figure_text(ours),
        figure_text(theirs),
        f"{median(ours, 'rate') / rate:.2f}" if rate else "",
        f"{median(theirs, 'cpu_us') / cpu:.2f}" if cpu else "",
    )


def compare_sessions(count: int, measure: Measure) -> Row:
    """Return what one idle session costs in user memory, of so many."""
    options = BenchOptions(connections=count, duration_s=2.0, connect_timeout_s=120.0)

    def text(server: AbstractContextManager[Server | None]) -> str:
        with server as started:
            if started is None:
                return "not installed"
            figure = measure("connect", options, started)
            return f"{figure.session_bytes:,} B, {figure.cpu_us:.0f} us CPU to connect"

    name = f"memory per idle session, {count:,} sessions"
    return name, text(motelog_server("async")), text(mosquitto_server()), "", ""


def apart_row(seconds: float, rounds: int) -> Row:
    """Return what a gateway in a process of its own comes to, beside one in its broker's."""
    apart, beside = [], []
    options = replace(TWENTY, duration_s=seconds)
    with (
        MotelogProcess() as motelog,
        tempfile.TemporaryDirectory(prefix="motelog-bench-") as folder,
        GatewayProcess(
            Path(folder), namesrv=format_address(*motelog.namesrv), settings='name = "apart"'
        ) as gateway,
    ):
        for _ in range(rounds):
            beside.append(own_bench("pub", options, Server(*motelog.mqtt, motelog.pid)))
            apart.append(own_bench("pub", options, Server(*gateway.address, gateway.pid)))
    ratio = median(apart, "rate") / median(beside, "rate")
    return (
        "QoS 1 publish, 20 in flight, gateway in a process of its own (its CPU alone)",
        figure_text(apart),
        f"(in the broker's: {figure_text(beside)})",
        f"{ratio:.2f}",
        "",
    )


def store_lines(cases: Sequence[str]) -> Iterator[str]:
    """Yield the store's figures beside their floors, as Markdown."""
    arguments = [argument for case in cases for argument in ("--case", case)]
    report = run_json("store", "--json", "--rounds=2", *arguments)
    yield from ("## Store", "", report["explanation"], "", *report["table"], "")


def spark_row() -> Row:
    """Return rows a second through the source, and its CPU beside a source that does nothing."""
    name = "Spark rows, beside an idle source"
    if not has_pyspark() or find_java() is None:
        return name, "no Java or pyspark", "", "", ""
    column = run_json("bench_spark", "--rows=1000000", "--rounds=3")["columns"]["telemetry"]
    ours, idle = column["motelog"]["rows_per_s"], column["idle"]["rows_per_s"]
    return (
        name,
        f"{ours:,.0f} rows/s, CPU {column['cpu_ratio']:.2f} x idle",
        f"(idle: {idle:,.0f} rows/s)",
        "",
        "",
    )


def start_row() -> Row:
    """Return how long ``motelog dev`` takes to be ready, and its memory then."""
    begin = time.monotonic()
    with MotelogProcess() as motelog:
        ready_s = time.monotonic() - begin
        status = Path(f"/proc/{motelog.pid}/status").read_text(encoding="utf-8")
    rss_kb = int(status.partition("VmRSS:")[2].split()[0])
    return "`motelog dev` ready", f"{ready_s:.2f} s, {rss_kb / 1000:.0f} MB", "", "", ""


def own_bench(kind: str, options: BenchOptions, server: Server) -> Figure:
    """Measure with ``motelog bench``'s engine, in this process."""
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
    return Figure(
        rate=report.rate,
        cpu_us=report.server_cpu_us or 0.0,
        latency_us_p99=report.latency_us_p99,
        session_bytes=report.server_session_bytes or 0,
    )


def ruler(program: Path) -> Measure:
    """Return a measure that calls an independent load generator."""

    def measure(kind: str, options: BenchOptions, server: Server) -> Figure:
        command = [str(program), kind, "-p", str(server.port), "--server-pid", str(server.pid)]
        if kind == "connect":
            command += ["-n", str(options.connections), "--hold", "2", "--rate", "5000"]
        else:
            command += ["-q", str(options.qos), "-W", str(options.window), "-w", "1"]
            command += ["-z", str(options.payload_bytes), "-d", f"{options.duration_s:g}"]
            publishers = 1 if kind == "fanout" else options.connections
            command += ["-P", str(publishers), "-S", str(options.subscribers)]
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) > 1:
            os.sched_setaffinity(server.pid, {processors[0]})
            command = ["taskset", "-c", str(processors[1]), *command]
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=RULER_WITHIN_S, check=True
        )
        report = json.loads(answer.stdout)
        if kind == "connect":
            cpu_us = report["server_cpu_us_per_connect"]
            return Figure(report["connects_per_s"], cpu_us, 0.0, report["rss_bytes_per_session"])
        if report["lost"] or report["dropped_conns"]:
            say(f"{kind}: {report['lost']} lost, {report['dropped_conns']} connections dropped")
        return Figure(report["msgs_per_s"], report["server_us_per_msg"], report["p99_us"], 0)

    return measure


@contextmanager
def motelog_server(flush: str) -> Iterator[Server]:
    with MotelogProcess(options=["--flush", flush]) as motelog:
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


def median(figures: Sequence[Figure], name: str) -> float:
    values: list[float] = [getattr(figure, name) for figure in figures]
    return statistics.median(values)


def figure_text(figures: Sequence[Figure]) -> str:
    return (
        f"{median(figures, 'rate'):,.0f}/s, {median(figures, 'cpu_us'):.2f} us CPU, "
        f"p99 {median(figures, 'latency_us_p99') / 1000:.2f} ms"
    )


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
    parser.add_argument("--no-store", dest="store", action="store_false")
    parser.add_argument("--store-case", action="append", default=[], help="only these of the store")
    parser.add_argument("--ruler", type=Path, help="an independent load generator to use")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
