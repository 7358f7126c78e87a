"""``motelog bench``: throughput and latency of an MQTT server, measured with our own reactor.

Owns: its options, the progress line, the report as text. Must not touch: the measuring
(loadtest.bench_run).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from motelog.cli import contexts
from motelog.cli.options import takes_options
from motelog.cli.output import CliError, stop, table, write, write_json
from motelog.cli.status import IS_IT_RUNNING, Status
from motelog.core.addresses import format_address

if TYPE_CHECKING:
    from motelog.loadtest.bench_fleet import FleetReport
    from motelog.loadtest.bench_run import BenchOptions, BenchReport
    from motelog.testing import MotelogProcess

MQTT_PORT = 1883
PROGRESS_EVERY_S = 9.5  # off a terminal: every tenth of the lines that come each second
SERVER_LINES = 20  # of the server that we started, shown if the bench fails
START_S = 3.0  # for each worker of our own stack: they start together on few cores


class Kind(StrEnum):
    PUB = "pub"
    PIPE = "pipe"
    FANOUT = "fanout"
    CONNECT = "connect"


@dataclass(frozen=True, slots=True)
class Load:
    """How many clients there are, what they do, and for how long."""

    connections: Annotated[int, typer.Option(min=1, help="Publishers, or sessions.")] = 100
    sessions: Annotated[
        int | None,
        typer.Option(
            min=1, help="connect: sessions, opened by as many processes as needed, beside a canary."
        ),
    ] = None
    subscribers: Annotated[int, typer.Option(min=1, help="Subscribers of fanout.")] = 100
    window: Annotated[int, typer.Option(min=1, help="Messages in flight per publisher.")] = 20
    rate: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="Messages a second of all publishers together, evenly spaced."
            " [default: as many as the windows allow]",
        ),
    ] = 0
    names: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="pub: number of topic names. [default: one per publisher]",
        ),
    ] = 0
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="0, 1 or 2.")] = 1
    payload_bytes: Annotated[int, typer.Option("--bytes", min=16, help="Payload bytes.")] = 64
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 5.0
    keep_alive: Annotated[
        int, typer.Option(min=1, max=65_535, help="Keep alive of all clients, in seconds.")
    ] = 60
    protocol: Annotated[int, typer.Option(min=4, max=5, help="4 is MQTT 3.1.1.")] = 4

    def options(self, kind: Kind) -> BenchOptions:
        """Return the options of the measurement; CliError if one does not fit ``kind``."""
        from motelog.loadtest.bench_run import BenchOptions, keeps_rate

        if self.sessions is not None and kind is not Kind.CONNECT:
            raise CliError("--sessions is an option of connect", status=Status.USAGE)
        if self.rate and not keeps_rate(kind, self.qos):
            raise CliError(
                "--rate is an option of pub at QoS 1 or 2, pipe and fanout", status=Status.USAGE
            )
        return BenchOptions(
            connections=self.connections if self.sessions is None else self.sessions,
            subscribers=self.subscribers,
            window=self.window,
            rate=self.rate,
            names=self.names,
            qos=self.qos,
            payload_bytes=self.payload_bytes,
            duration_s=self.seconds,
            version=self.protocol,
            keep_alive_s=self.keep_alive,
        )


@takes_options
def bench(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="pub: only publish; pipe: one subscriber for each publisher; fanout: many "
            "subscribers; connect: only sessions."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="MQTT server. [default: that of --context or MOTELOG_CONTEXT, else a stack that"
            " it starts itself]",
        ),
    ] = None,
    *,
    load: Load,
    pid: Annotated[
        int | None, typer.Option(help="Process id of the server, to show its CPU and memory.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
) -> None:
    """Measure an MQTT server. The exit status is 1 if messages were lost or connections failed.

    Standard error shows the progress: every second on a terminal, else every ten seconds.
    """
    from motelog.cli.addresses import address
    from motelog.loadtest.bench_run import BenchReport

    options = load.options(kind)
    to = to or _of_context()
    with ExitStack() as stack:
        progress = stack.enter_context(_progress())
        if to is None:
            own = _started(stack, load)
            (host, port), pid = own.mqtt, own.pid
        else:
            host, port = address("--to", to)
        options = replace(options, host=host, port=port, server_pid=pid, progress=progress)
        report = _measured(kind, load, options)
    if json:
        write_json(asdict(report))
    else:
        write(_text(report) if isinstance(report, BenchReport) else _text_of_fleet(report))
    lost = report.lost if isinstance(report, BenchReport) else report.canary_lost
    stop(Status.FAILED if lost or report.errors else Status.DONE)


def _started(stack: ExitStack, load: Load) -> MotelogProcess:
    """Start a server, which ``stack`` stops."""
    from motelog.loadtest.bench_fleet import processes_for
    from motelog.testing import MotelogProcess

    workers = 1 if load.sessions is None else processes_for(load.sessions)
    own = MotelogProcess(options=[f"--workers={workers}"], ready_within_s=30 + START_S * workers)
    stack.callback(own.stop, 15 + START_S * workers)
    own.start()
    stack.push(partial(_say_what_it_said, own))
    return own


def _measured(kind: Kind, load: Load, options: BenchOptions) -> BenchReport | FleetReport:
    from motelog.loadtest.bench_fleet import run_fleet
    from motelog.loadtest.bench_run import BenchRefusedError, BenchUnreachableError, run

    try:
        return run(kind.value, options) if load.sessions is None else run_fleet(options)
    except BenchUnreachableError as exc:
        raise CliError(str(exc), remedy=IS_IT_RUNNING, status=Status.UNREACHABLE) from exc
    except BenchRefusedError as exc:
        raise CliError(str(exc), status=Status.REFUSED) from exc


def _say_what_it_said(own: MotelogProcess, kind: object, error: object, trace: object) -> None:
    """Show the last lines of the server that we started if the bench has failed."""
    del kind, trace
    if isinstance(error, CliError):
        lines = own.output().splitlines(keepends=True)[-SERVER_LINES:]
        sys.stderr.write("".join(["\nThe server's last lines:\n", *lines]))


def _of_context() -> str | None:
    """Return the MQTT server of the context that this command names, None if it names none.

    The current context (`motelog context use`) does not count: load must be aimed explicitly.
    """
    context = contexts.chosen() if os.environ.get(contexts.VARIABLE) else None
    if context is None or not context.mqtt:
        return None
    url = urlsplit(context.mqtt)
    if url.scheme != "mqtt" or context.user_name:
        raise CliError(
            "the context has TLS or a login, and bench supports neither",
            remedy="name a listener without them: --to HOST:PORT",
            status=Status.USAGE,
        )
    return format_address(url.hostname or "", url.port or MQTT_PORT)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that takes a line each second; on a terminal it replaces the last one."""
    if not sys.stderr.isatty():
        said_s = time.monotonic()

        def say(line: str) -> None:
            nonlocal said_s
            if time.monotonic() - said_s >= PROGRESS_EVERY_S:
                said_s = time.monotonic()
                sys.stderr.write(line + "\n")
                sys.stderr.flush()

        yield say
        return

    def show(line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


def _text(report: BenchReport) -> str:
    unit = "sessions" if report.kind == "connect" else "messages"
    asked = f" of {report.rate_asked:,} /s" if report.rate_asked else ""
    rows = [
        (unit, f"{report.messages:,} in {report.seconds:.2f} s"),
        ("rate", f"{report.rate:,.0f} /s" + asked),
        ("latency p50", f"{report.latency_us_p50:,.0f} us"),
        ("latency p90", f"{report.latency_us_p90:,.0f} us"),
        ("latency p99", f"{report.latency_us_p99:,.0f} us"),
        ("latency p99.9", f"{report.latency_us_p99_9:,.0f} us"),
        ("lost, duplicate", f"{report.lost:,}, {report.duplicates:,}"),
        ("errors", f"{report.errors:,}"),
        ("client CPU", f"{report.client_cpu_us:.2f} us each"),
    ]
    if report.server_cpu_us is not None:
        rows.append(("server CPU", f"{report.server_cpu_us:.2f} us each"))
    if report.server_rss_bytes is not None:
        rows.append(("server memory", f"{report.server_rss_bytes / 1e6:.1f} MB"))
    if report.server_session_bytes is not None:
        rows.append(("per session", f"{report.server_session_bytes:,} bytes"))
    rows.extend(("example", text) for text in report.error_examples)
    return table(rows)


def _text_of_fleet(report: FleetReport) -> str:
    percentiles = "p50 {:,.0f}, p99 {:,.0f}, max {:,.0f} us"
    meanwhile_us = report.canary_us_p50, report.canary_us_p99, report.canary_us_max
    held_us = report.canary_held_us_p50, report.canary_held_us_p99, report.canary_held_us_max
    rows = [
        ("sessions", f"{report.sessions:,} from {report.processes} processes"),
        ("connected", f"in {report.seconds:.1f} s, {report.rate:,.0f} /s"),
        ("a CONNECT", f"p50 {report.connect_us_p50:,.0f}, p99 {report.connect_us_p99:,.0f} us"),
        ("tried again", f"{report.tried_again:,}, because the server was busy"),
        ("held", f"{report.held_s:g} s"),
        ("keep alives", f"{report.pings:,}, {report.pings_missing:,} unanswered"),
        ("canary", f"{report.canary_messages:,} messages, {report.canary_lost:,} lost"),
        ("  meanwhile", percentiles.format(*meanwhile_us)),
        ("  held", percentiles.format(*held_us)),
        (
            "client CPU",
            f"{report.client_cpu_us:,.0f} us each, held {report.client_held_cores:.2f} cores",
        ),
        ("client memory", f"{report.client_bytes / 1e6:,.0f} MB"),
    ]
    if report.server_cpu_us is not None and report.server_held_cores is not None:
        rows.append(
            (
                "server CPU",
                f"{report.server_cpu_us:,.0f} us each, held {report.server_held_cores:.2f} cores",
            )
        )
    if report.server_bytes is not None and report.server_base_bytes is not None:
        rows += [
            (
                "server memory",
                f"{report.server_bytes / 1e6:,.0f} MB in {report.server_processes} processes, "
                f"{report.server_base_bytes / 1e6:,.0f} MB before",
            ),
            (
                "together",
                f"{(report.server_bytes + report.client_bytes) / 1e9:.2f} GB; the goal is "
                f"{report.goal_bytes / 1e9:.0f} GB at 1,000,000 sessions",
            ),
        ]
    rows.append(("errors", f"{report.errors:,}"))
    rows.extend(("example", text) for text in report.error_examples)
    return table(rows)
