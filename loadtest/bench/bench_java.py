"""What do sends and reads of RocketMQ's Java client cost our broker, and Apache's?

Each case runs against a fresh broker, ours and Apache's in turn, with a name server: single sends
of 64 threads, 512 asynchronous ones in flight, batches of 32, a push consumer that reads existing
messages. The load is Bench of tests/integration/java, a JVM of its own. Prints machine and commit,
then per case and server the messages per second, the broker's CPU time per message, the time of a
send and the broker's anonymous memory.

The load shares the machine's processors with the broker: CPU per message counts. A JVM compiles its
code for many seconds, hence the warm-up.

    .ci/own-network .venv/bin/python .venv/bin/python -m motelog.loadtest.bench.bench_java
        [--seconds 3] [--warm-up 15] [--rounds 1] [--only TEXT] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from motelog.loadtest.bench.bench_native import COMMITLOG_FILE_BYTES, JVM, OURS, cpu_s
from motelog.loadtest.bench.report import machine, markdown
from motelog.loadtest.bench_process import anonymous_bytes
from tests.support.broker_process import BrokerProcess
from tests.support.java import VERSION_5, ApacheServer, java_command
from tests.support.namesrv_process import NamesrvProcess

TOPIC = "Bench"
LOAD_JVM = ("-Xms512m", "-XX:+UseG1GC")
#: Written before a drain, in batches; more than can be read in the time.
FILL_S = 15.0
DRAIN_WARM_S = 2.0


class Case(NamedTuple):
    name: str
    how: str
    threads: int
    bytes: int


CASES = (
    Case("64 threads, 128 B", "sync", 64, 128),
    Case("64 threads, 1 KB", "sync", 64, 1024),
    Case("512 asynchronous, 128 B", "async", 1, 128),
    Case("512 asynchronous, 1 KB", "async", 1, 1024),
    Case("batches of 32, 128 B", "batch", 64, 128),
    Case("batches of 32, 1 KB", "batch", 64, 1024),
    Case("push consumer, 128 B", "drain", 1, 128),
)


class Server(NamedTuple):
    """A running broker."""

    namesrv: str
    pid: int


@dataclass(frozen=True, slots=True)
class Result:
    """One case against one server."""

    case: str
    server: str
    messages_per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    failed: int
    memory_mb: float

    def row(self) -> tuple[str, ...]:
        return (
            self.case,
            self.server,
            f"{self.messages_per_s:,.0f}",
            f"{self.cpu_us:.2f}",
            f"{self.p50_ms:.1f} / {self.p99_ms:.1f}",
            f"{self.memory_mb:.0f}" + (f" ({self.failed} failed)" if self.failed else ""),
        )


@contextmanager
def our_server(folder: Path) -> Iterator[Server]:
    with NamesrvProcess("127.0.0.1:0") as namesrv:
        store = {"commitlog_file_bytes": COMMITLOG_FILE_BYTES}
        with BrokerProcess(folder, namesrv=namesrv.address, store=store) as broker:
            yield Server(namesrv.address, broker.pid)


@contextmanager
def apache_server(folder: Path) -> Iterator[Server]:
    """Run Apache's broker with all of the JVM's compilers, and a name server in its process."""
    server = ApacheServer(
        VERSION_5,
        folder,
        commitlog_file_bytes=COMMITLOG_FILE_BYTES,
        heap="1g",
        options=JVM,
        has_timer=True,
    )
    trio.run(server.start)
    try:
        yield Server(server.namesrv_address, server.pid)
    finally:
        server.kill()


def load(server: Server, case: Case, warm_s: float, seconds: float) -> Result:
    amounts = map(str, (case.threads, case.bytes, warm_s, seconds))
    arguments = (server.namesrv, TOPIC, case.how, *amounts)
    command = java_command(VERSION_5, "Bench", *arguments, heap="512m", options=LOAD_JVM)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        used = 0.0
        for line in process.stdout:
            what, *words = line.split()
            if what == "begin":
                used = cpu_s(server.pid)
            elif what == "end":
                used = cpu_s(server.pid) - used
                count, p50_us, p99_us, failed = map(int, words)
                break
        else:
            raise SystemExit(f"the load has failed: {' '.join(command)}")
    memory = (anonymous_bytes(server.pid) or 0) / 1e6
    return Result(
        case.name,
        "",
        count / seconds,
        used / max(1, count) * 1e6,
        p50_us / 1000,
        p99_us / 1000,
        failed,
        memory,
    )


def measure(options: argparse.Namespace, name: str, case: Case) -> Result:
    start = our_server if name == OURS else apache_server
    with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "store") as server:
        if case.how == "drain":
            load(server, Case("", "batch", 16, case.bytes), 0, FILL_S)
            result = load(server, case, DRAIN_WARM_S, options.seconds)
        else:
            result = load(server, case, options.warm_up, options.seconds)
    return Result(**asdict(result) | {"server": name})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    begun = machine()
    results = []
    for case in CASES:
        for _ in range(options.rounds if options.only in case.name else 0):
            for name in (OURS, f"apache {VERSION_5}"):
                results.append(measure(options, name, case))
                sys.stderr.write(" ".join(results[-1].row()) + "\n")
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))  # noqa: T201
        return
    print(begun)  # noqa: T201  # the result
    head = ("case", "broker", "messages/s", "broker CPU us", "p50 / p99 ms", "MB")
    for line in markdown([head, *(result.row() for result in results)]):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
