"""The performance table: Motelog beside mosquitto in one run, and figures without a peer.

Owns: which cases there are, the servers under test, the table as Markdown. Must not touch: the
measuring (loadtest.bench_run, bench_spark, the store's cases in motelog.loadtest.bench.store).
Question: what does each path cost, and how does it compare with Debian's mosquitto, which stores
nothing? With two processors or more the server is pinned to one and the load to another; servers
take turns in every round and the medians of the rounds count. If the load generator limits the
rate, the server's CPU time per message is still valid: so goals are about it, unless they are
rates.

    python -m motelog.loadtest.bench.table [--seconds 3] [--rounds 2] [--only TEXT ...]
        [--sessions 15000] [--output FILE] [--ruler PATH] [--no-spark] [--no-store]
        [--store-case NAME ...]

The gateway's part takes about ten minutes. ``--only`` names rows by a part of their text. The
store's figures, each beside its floor, follow in a table of their own: some minutes more;
``--store-case`` names some of them.
``--ruler`` names an independent load generator in place of our own: a program that is called as
``PATH pub|pipe|fanout|connect -p PORT -q QOS -W WINDOW ...`` and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from motelog.cli.tools import find_java, has_pyspark
from motelog.core.addresses import format_address
from motelog.core.errors import MotelogError
from motelog.loadtest.bench import session_load
from motelog.loadtest.bench.report import Row, machine, markdown, run_json, say
from motelog.loadtest.bench_process import anonymous_bytes
from motelog.loadtest.bench_run import BenchOptions, run
from motelog.testing import MotelogProcess, MotelogProcessError
from tests.support.gateway_process import GatewayProcess

SERVER_WITHIN_S: Final = 10.0
#: A million subscriptions take their time to end.
STOPPED_WITHIN_S: Final = 120.0
RULER_WITHIN_S: Final = 120.0
FAN_OUT: Final = 1000
#: Of "100 -> 3,000": with more in flight each the copies would wait in gigabytes.
WIDE: Final = BenchOptions(qos=0, publishers=100, subscribers=3000, window=1, drain_s=8.0)
#: Descriptors of a process that are not for clients, at the server and at the load generator.
DESCRIPTORS_KEPT: Final = 1500
PAIRS: Final = 10_000
SUBSCRIBED_BEFORE: Final = 1_000_000
SUBSCRIBED: Final = 20_000
RETAINED: Final = 100_000
DRAINED: Final = 200_000
RECONNECTED: Final = 10_000

ONE = BenchOptions(qos=1, window=1)
TWENTY = BenchOptions(qos=1, window=20)
#: Like a fleet: each message comes by itself, and finds the caches cold.
SEDATE = replace(TWENTY, connections=500, rate=2_000)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load on both servers; ``goal`` is the least CPU ratio."""

    name: str
    kind: str
    options: BenchOptions
    goal: float | None = None
    flush: str = "async"
    has_ruler: bool = True
    """Whether an independent load generator has options for it."""


def pairs_count() -> int:
    """Return how many pairs the descriptors of one process permit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return PAIRS if hard == resource.RLIM_INFINITY else min(PAIRS, (hard - DESCRIPTORS_KEPT) // 2)


def cases() -> tuple[Case, ...]:
    pairs = replace(ONE, connections=pairs_count(), is_persistent=True, connect_timeout_s=120.0)
    many = partial(replace, TWENTY)
    fan_out = BenchOptions(qos=0, subscribers=FAN_OUT)
    return (
        Case("QoS 1 publish, 1 in flight", "pub", ONE, 1.4),
        Case("QoS 1 publish, 20 in flight", "pub", TWENTY, 4),
        Case("QoS 1 publish, 2,000/s of 500", "pub", SEDATE, has_ruler=False),
        Case("QoS 1 publish, 1,000 topic names", "pub", many(names=1_000), has_ruler=False),
        Case("QoS 1 publish, 1,000,000 topic names", "pub", many(names=1_000_000), has_ruler=False),
        Case("QoS 1 publish, 1 in flight, fsync before PUBACK", "pub", ONE, 0.6, "sync"),
        Case("QoS 1 publish, 20 in flight, fsync before PUBACK", "pub", TWENTY, 3, "sync"),
        Case("QoS 0 publish", "pub", BenchOptions(qos=0, window=20), 1.5),
        Case("QoS 2 publish, 20 in flight", "pub", BenchOptions(qos=2, window=20), 1.5),
        Case("1:1 pipe, QoS 0", "pipe", BenchOptions(qos=0, window=20), 1.5),
        Case("1:1 pipe, QoS 1", "pipe", TWENTY, 1.5),
        Case("1:1 pipe, QoS 1, 2,000/s of 500", "pipe", SEDATE, has_ruler=False),
        Case(f"fan-out 1 -> {FAN_OUT:,}, QoS 0", "fanout", fan_out, 10),
        Case("fan-out 100 -> 3,000, QoS 0", "fanout", WIDE, 10),
        Case(
            f"{pairs.connections:,} pairs, QoS 1, persistent sessions",
            "pipe",
            pairs,
            1,
            has_ruler=False,
        ),
    )


@dataclass(frozen=True, slots=True)
class Server:
    """One MQTT server under test."""

    host: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one run of one case; times in microseconds."""

    rate: float
    cpu_us: float
    latency_us_p99: float
    session_bytes: int


Measure = Callable[[str, BenchOptions, Server], Figure]


_T = TypeVar("_T")

HEAD: Final = ("case", "Motelog", "mosquitto", "rate ratio", "CPU ratio", "goal")


def main() -> None:
    arguments = _arguments()
    say(f"{machine()}\n")
    measure = ruler(arguments.ruler) if arguments.ruler else own_bench
    begun_s = time.monotonic()
    rows: list[Row] = [HEAD]
    for name, make in all_rows(arguments, measure):
        if not arguments.only or any(text in name for text in arguments.only):
            say(f"[{time.monotonic() - begun_s:4.0f} s] {name}")
            try:
                rows.append(make())
            except (MotelogError, MotelogProcessError, OSError, subprocess.SubprocessError) as exc:
                rows.append((name, f"failed: {str(exc).splitlines()[0]}", *("",) * 4))
            say("    " + " | ".join(rows[-1][1:]))
    load = "an independent load generator" if arguments.ruler else "`motelog bench`'s engine"
    text = "\n".join(
        (
            "# Figures",
            "",
            "Written by `make bench`. [README.md](README.md) says what is measured and how.",
            "",
            f"{machine()}; {mosquitto_version()}.",
            "",
            f"Command: `python -m motelog.loadtest.bench.table {shlex.join(sys.argv[1:])}`.",
            "",
            f"Load: {load}; 100 connections and 64 B payloads unless the row says otherwise; "
            f"medians of {arguments.rounds} rounds of {arguments.seconds:g} s, servers in turn. "
            "Cells have messages a second, the server's CPU for each (for each delivery if there "
            "are subscribers) and the 99th percentile of the latency. Where a ratio is above 1, "
            "Motelog is ahead. Memory is of the process without pages of files.",
            "",
            *markdown(rows),
            "",
            *(store_lines(arguments.store_case) if arguments.store else ()),
        )
    )
    say("\n" + text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


def all_rows(
    arguments: argparse.Namespace, measure: Measure
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield each row's name, and the function that measures it."""
    seconds, rounds = arguments.seconds, arguments.rounds
    for case in cases():
        timed = replace(case, options=replace(case.options, duration_s=seconds))
        yield case.name, partial(compare, timed, rounds, measure if case.has_ruler else own_bench)
    yield APART, partial(apart_row, seconds, rounds)
    yield SHARE, partial(share_row, seconds, rounds)
    subscribe = partial(session_load.subscribe, before=SUBSCRIBED_BEFORE, count=SUBSCRIBED)
    yield SUBSCRIBE, partial(counted_row, SUBSCRIBE, 1, 1, subscribe)
    replay = partial(session_load.replay, count=RETAINED)
    yield REPLAY, partial(counted_row, REPLAY, 1, rounds, replay)
    yield DRAIN, partial(drain_row, rounds)
    name = f"connect and memory per idle session, {arguments.sessions:,} clean sessions"
    yield name, partial(connect_row, name, arguments.sessions, measure)
    yield RECONNECT, reconnect_row
    yield RETURN, return_row
    yield "Spark", spark_row if arguments.spark else lambda: ("Spark rows", "not run", *("",) * 4)
    yield "motelog dev ready", start_row


def compare(case: Case, rounds: int, measure: Measure) -> Row:
    """Run one case on both servers in turn and return its row."""
    ours, theirs = in_turn(rounds, partial(measure, case.kind, case.options), case.flush)
    return ratio_row(case.name, ours, theirs, case.goal, figure_text)


def in_turn(
    rounds: int, measure: Callable[[Server], _T], flush: str = "async"
) -> tuple[list[_T], list[_T]]:
    """Measure both servers in turn, each time a new process; no figures for a missing peer."""
    ours: list[_T] = []
    theirs: list[_T] = []

    def measure_ours() -> None:
        with motelog_server(flush) as server:
            ours.append(measure(server))

    def measure_theirs() -> None:
        with mosquitto_server() as peer:
            if peer is not None:
                theirs.append(measure(peer))

    for number in range(rounds):
        first, second = measure_ours, measure_theirs
        if number % 2:
            first, second = second, first
        first()
        second()
    return ours, theirs


def ratio_row(
    name: str,
    ours: Sequence[Figure],
    theirs: Sequence[Figure],
    goal: float | None,
    text: Callable[[Sequence[Figure]], str],
) -> Row:
    if not theirs:
        return name, text(ours), "not installed", "", "", ""
    if not (median(ours, "cpu_us") and median(theirs, "rate")):
        return name, text(ours), text(theirs), "", "", "nothing counted"
    rate_ratio = median(ours, "rate") / median(theirs, "rate")
    cpu_ratio = median(theirs, "cpu_us") / median(ours, "cpu_us")
    verdict = "" if goal is None else f"{goal:g} x: {'met' if cpu_ratio >= goal else 'missed'}"
    return name, text(ours), text(theirs), f"{rate_ratio:.2f}", f"{cpu_ratio:.2f}", verdict


# --- groups and sessions --------------------------------------------------------------------

APART: Final = "QoS 1 publish, 20 in flight, gateway in a process of its own (its CPU alone)"
SHARE: Final = f"100 publishers, one shared group of {session_load.MEMBERS}, QoS 1, CPU per publish"
SUBSCRIBE: Final = f"SUBSCRIBE with {SUBSCRIBED_BEFORE:,} filters"
REPLAY: Final = f"{RETAINED:,} retained messages to a new subscription, QoS 1"
DRAIN: Final = f"a session comes back to {DRAINED:,} messages, QoS 1"
RECONNECT: Final = f"{RECONNECTED:,} persistent sessions with one subscription"
RETURN: Final = "20,000 sessions come back, 16 of 1,000,000 messages for each, no sockets"


def share_row(seconds: float, rounds: int) -> Row:
    """Return publishes, and how many of them the members received in the same time."""
    options = replace(TWENTY, duration_s=seconds)
    ours, theirs = in_turn(rounds, partial(pinned, session_load.share, options))

    def text(runs: Sequence[tuple[session_load.Counted, float]]) -> str:
        taken = statistics.median(share for _, share in runs)
        return f"{plain_text([figure_of(run) for run, _ in runs])}, {taken:.2f} of it consumed"

    taken = statistics.median(share for _, share in ours)
    if not theirs:
        return SHARE, text(ours), "not installed", "", "", ""
    figures = [[figure_of(one) for one, _ in runs] for runs in (ours, theirs)]
    row = ratio_row(SHARE, figures[0], figures[1], None, plain_text)
    verdict = f"0.8 x consumed: {'met' if taken >= 0.8 else 'missed'}"
    return SHARE, text(ours), text(theirs), row[3], row[4], verdict


def counted_row(
    name: str,
    goal: float,
    rounds: int,
    load: Callable[[BenchOptions], session_load.Counted],
) -> Row:
    options = replace(TWENTY, connect_timeout_s=120.0)
    ours, theirs = in_turn(rounds, partial(pinned, load, options))
    figures = [[figure_of(one) for one in runs] for runs in (ours, theirs)]
    return ratio_row(name, figures[0], figures[1], goal, plain_text)


def drain_row(rounds: int) -> Row:
    row = counted_row(DRAIN, 1, rounds, partial(session_load.drain, count=DRAINED))
    rate = float(row[1].partition("/s")[0].replace(",", ""))
    return (*row[:5], f"200,000/s: {'met' if rate >= 200_000 else 'missed'}")


def connect_row(name: str, count: int, measure: Measure) -> Row:
    """Return the cost of opening a clean session, and the memory of an idle one."""
    options = BenchOptions(connections=count, duration_s=2.0, connect_timeout_s=120.0)
    ours, theirs = in_turn(1, partial(measure, "connect", options))

    def text(figures: Sequence[Figure]) -> str:
        size = median(figures, "session_bytes")
        return f"{size:,.0f} B, {median(figures, 'cpu_us'):.0f} us CPU to connect"

    row = ratio_row(name, ours, theirs, None, text)
    is_small = median(ours, "session_bytes") <= 600
    is_quick = bool(theirs) and median(ours, "cpu_us") <= median(theirs, "cpu_us")
    verdict = f"600 B: {_met(is_small)}; CPU at most mosquitto's: {_met(is_quick)}"
    return (*row[:3], "", row[4], verdict)


def reconnect_row() -> Row:
    """Return persistent sessions: opened, idle, away, and all back."""
    run_id = time.monotonic_ns() % (1 << 31)
    options = BenchOptions(
        connections=RECONNECTED, duration_s=2.0, connect_timeout_s=120.0, run_id=run_id
    )
    measure = partial(pinned, session_load.reconnect, options)
    with tempfile.TemporaryDirectory(prefix="motelog-bench-") as folder:
        with MotelogProcess(data=folder) as motelog:
            ours = measure(Server(*motelog.mqtt, motelog.pid))
        # A process while all are away: its memory after they left is the most that it once needed.
        with MotelogProcess(data=folder) as motelog:
            with_all_bytes = anonymous_bytes(motelog.pid) or 0
            pinned(session_load.end_sessions, options, Server(*motelog.mqtt, motelog.pid))
        # And one without sessions: a start keeps some memory that it needs to walk over the log.
        with MotelogProcess(data=folder) as motelog:
            with_none_bytes = anonymous_bytes(motelog.pid) or 0
    away_bytes = (with_all_bytes - with_none_bytes) / RECONNECTED
    with mosquitto_server() as peer:
        theirs = None if peer is None else measure(peer)

    def text(run: session_load.Reconnected) -> str:
        return (
            f"new {run.new.cpu_us:.0f} us CPU each; present {run.present_bytes:,.0f} B; "
            f"all back in {run.back.seconds:.1f} s, {run.back.cpu_us:.0f} us CPU each"
        )

    verdict = (
        f"back in 10 s: {_met(ours.back.seconds <= 10)}; present 900 B: "
        f"{_met(ours.present_bytes <= 900)}; away 300 B: {_met(away_bytes <= 300)}"
    )
    ratio = f"{theirs.back.cpu_us / ours.back.cpu_us:.2f}" if theirs is not None else ""
    away = f"{text(ours)}; away {away_bytes:,.0f} B"
    return RECONNECT, away, text(theirs) if theirs else "not installed", "", ratio, verdict


def return_row() -> Row:
    """Return the cost of sessions that come back to a busy topic, clients in memory."""
    report = run_json("bench_return", "--json")
    return (
        RETURN,
        f"{report['us_each']:.0f} us each, CONNECT included ({report['connect_us']:.0f} us); a "
        f"new one {report['new_us']:.0f} us",
        "", "", "",
        f"300 us (100,000 in 30 s): {_met(report['us_each'] <= 300)}",
    )  # fmt: skip


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def pinned(load: Callable[[BenchOptions], _T], options: BenchOptions, server: Server) -> _T:
    """Run a load in this process, server and load each on a processor of its own."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) > 1:
        os.sched_setaffinity(server.pid, {processors[0]})
        os.sched_setaffinity(0, {processors[1]})
    try:
        target = replace(options, host=server.host, port=server.port, server_pid=server.pid)
        return load(target)
    finally:
        os.sched_setaffinity(0, processors)


def figure_of(counted: session_load.Counted) -> Figure:
    return Figure(counted.rate, counted.cpu_us, 0.0, 0)


def plain_text(figures: Sequence[Figure]) -> str:
    return f"{median(figures, 'rate'):,.0f}/s, {median(figures, 'cpu_us'):.2f} us"


def apart_row(seconds: float, rounds: int) -> Row:
    """Return the figures of a gateway in a process of its own, beside one in its broker's."""
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
        APART,
        figure_text(apart),
        f"(in the broker's: {figure_text(beside)})",
        f"{ratio:.2f}",
        "",
        "",
    )


def store_lines(cases: Sequence[str]) -> Iterator[str]:
    """Yield the store's figures beside their floors, as Markdown."""
    arguments = [argument for case in cases for argument in ("--case", case)]
    report = run_json("store", "--json", "--rounds=2", *arguments)
    yield from ("## Store", "", report["explanation"], "", *report["table"], "")


def spark_row() -> Row:
    """Return rows a second through the source, and its CPU beside an idle source."""
    name = "Spark rows, beside an idle source"
    if not has_pyspark() or find_java() is None:
        return name, "no Java or pyspark", "", "", "", ""
    column = run_json("bench_spark", "--rows=1000000", "--rounds=3")["columns"]["telemetry"]
    ours, idle = column["motelog"]["rows_per_s"], column["idle"]["rows_per_s"]
    return (
        name,
        f"{ours:,.0f} rows/s, CPU {column['cpu_ratio']:.2f} x idle",
        f"(idle: {idle:,.0f} rows/s)",
        "",
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
    return "`motelog dev` ready", f"{ready_s:.2f} s, {rss_kb / 1000:.0f} MB", "", "", "", ""


def own_bench(kind: str, options: BenchOptions, server: Server) -> Figure:
    """Measure with ``motelog bench``'s engine, in this process."""
    report = pinned(partial(run, kind), options, server)
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
            publishers = options.publishers if kind == "fanout" else options.connections
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
        motelog.stop(STOPPED_WITHIN_S)


def mosquitto_program() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


def mosquitto_version() -> str:
    program = mosquitto_program()
    if program is None:
        return "mosquitto is not installed"
    done = subprocess.run([program, "-h"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


@contextmanager
def mosquitto_server() -> Iterator[Server | None]:
    """Run a mosquitto without persistence; yields None if it is not installed."""
    program = mosquitto_program()
    if program is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="motelog-bench-") as directory:
        settings = Path(directory, "mosquitto.conf")
        # With a limit on queued messages it would drop messages for which the bench then waits.
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
            try:
                process.wait(SERVER_WITHIN_S)
            except subprocess.TimeoutExpired:  # it first sends all queued output
                process.kill()
                process.wait()


def median(figures: Sequence[Figure], name: str) -> float:
    values: list[float] = [getattr(figure, name) for figure in figures]
    return statistics.median(values)


def figure_text(figures: Sequence[Figure]) -> str:
    return (
        f"{median(figures, 'rate'):,.0f}/s, {median(figures, 'cpu_us'):.2f} us, "
        f"{median(figures, 'latency_us_p99') / 1000:.2f} ms"
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
    parser.add_argument("--seconds", type=float, default=3.0, help="measured per run (default 3)")
    parser.add_argument("--rounds", type=int, default=2, help="runs per server and case")
    parser.add_argument("--sessions", type=int, default=15_000, help="idle sessions to hold")
    parser.add_argument("--only", action="append", default=[], help="rows whose name has this text")
    parser.add_argument("--no-spark", dest="spark", action="store_false")
    parser.add_argument("--no-store", dest="store", action="store_false")
    parser.add_argument("--store-case", action="append", default=[], help="only these of the store")
    parser.add_argument("--ruler", type=Path, help="an independent load generator to use")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
