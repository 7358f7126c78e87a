"""How many messages a second does the broker take and deliver over the remoting protocol?

One broker in a process of its own, one client process on the reactor with many requests in flight.
Sends are code 310 with 128 byte bodies, with JSON headers as Java clients write them and with
binary ones; batches are code 320 with 32 messages; pulls take 32 messages each. Prints machine,
Python, commit and kernels, then per case the messages per second and the broker's CPU time per
message.

``--crowd N`` measures sends once more beside N topics, N groups and 1,000 held pulls, and what
these cost an idle broker in memory and processor time.

With ``--apache`` every case runs against Apache RocketMQ's broker (a JVM with a name server in it)
as well, right after ours and with the same load; both are warmed up first. ``--json`` prints one
object with all numbers and the ratios.

    python -m motelog.loadtest.bench.bench_native [--seconds 3] [--connections 4] [--window 64]
        [--flush async] [--apache 5.3.3] [--warm-up 5] [--crowd 10000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.net.reactor import Framing, Reactor, Turn
from motelog.core.remoting.frames import (
    RemotingCommand,
    Serialize,
    encode,
    encode_batch_items,
)
from motelog.core.store.config import StoreConfig
from motelog.loadtest.bench.report import ROOT
from motelog.loadtest.bench_process import anonymous_bytes
from tests.support.java import VERSION_5, ApacheServer

BENCH = "motelog.loadtest.bench.bench_native"
BODY = b"x" * 128
BATCH_COUNT = 32
HELD = 1000
IDLE_S = 5.0
QUEUES = 4
PULLED_PER_QUEUE = 800
# The options of RocketMQ's own start script, except the size of the heap.
JVM = ("-Xms1g", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch")
COMMITLOG_FILE_BYTES = 1 << 30
DISPATCHED_WITHIN_S = 1.0
OURS = "motelog"


def main() -> None:
    options = parse_options()
    if options.serve:
        trio.run(serve, options.serve, options.flush)
        return
    if not options.json:
        print(describe())  # noqa: T201  # the result
    servers = [OURS, f"apache {options.apache}"] if options.apache else [OURS]
    results = []
    for case in cases():
        for server in servers:
            results.append(measure(options, server, *case))
            if not options.json:
                print(results[-1].line(), flush=True)  # noqa: T201
    crowds = [measure_crowd(options, server) for server in servers] if options.crowd else []
    if options.json:
        both = report(results) | {"crowds": [asdict(crowd) for crowd in crowds]}
        print(json.dumps(both, indent=2))  # noqa: T201
        return
    for crowd in crowds:
        print(crowd.line())  # noqa: T201


@dataclass(frozen=True, slots=True)
class Result:
    """One case against one server; ``refused`` counts answers with another code than SUCCESS."""

    case: str
    server: str
    messages_per_s: float
    cpu_us_per_message: float
    refused: int

    def line(self) -> str:
        text = f"{self.case:26} {self.server:14} {self.messages_per_s:12,.0f} messages/s"
        text += f"   {self.cpu_us_per_message:6.2f} us of broker CPU per message"
        return text + (f"   {self.refused} requests refused" if self.refused else "")


def report(results: list[Result]) -> dict[str, object]:
    """Return everything measured; ratios are ours by Apache's."""
    ratios = {
        ours.case: {
            "rate": round(ours.messages_per_s / other.messages_per_s, 2),
            "cpu": round(ours.cpu_us_per_message / other.cpu_us_per_message, 2),
        }
        for ours in results
        for other in results
        if ours.server == OURS != other.server and ours.case == other.case
    }
    return {"machine": describe(), "results": [asdict(r) for r in results], "ratios": ratios}


def measure(
    options: argparse.Namespace,
    server: str,
    name: str,
    payload: Callable[[int], bytes],
    per_request: int,
) -> Result:
    """Run one case against a fresh broker."""
    start = our_broker if server == OURS else apache_broker
    with (
        tempfile.TemporaryDirectory() as directory,
        start(options, Path(directory) / "store") as (address, pid),
    ):
        load = Load(address, options.connections, options.window)
        if name.startswith("pull"):
            # More than are pulled: a broker that has just started may refuse some.
            load.run(batch_send, lambda: load.accepted >= QUEUES * PULLED_PER_QUEUE * 5 // 4)
            time.sleep(DISPATCHED_WITHIN_S)
        if options.warm_up:
            warm = time.perf_counter() + options.warm_up
            load.run(payload, lambda: time.perf_counter() >= warm)
        used = cpu_s(pid)
        begin = time.perf_counter()
        load.run(payload, lambda: time.perf_counter() >= begin + options.seconds)
        took = time.perf_counter() - begin
        used = cpu_s(pid) - used
        count = max(1, load.accepted * per_request)
        load.close()
    return Result(
        case=name,
        server=server,
        messages_per_s=round(count / took, 1),
        cpu_us_per_message=round(used / count * 1e6, 3),
        refused=load.answers - load.accepted,
    )


@dataclass(frozen=True, slots=True)
class Crowd:
    """The cost of topics, groups and held pulls to an idle broker, and to sends."""

    server: str
    count: int
    anonymous_bytes: int
    idle_cpu_share: float
    idle_cpu_share_before: float
    send_cpu_us: float
    send_cpu_us_before: float

    def line(self) -> str:
        return (
            f"{self.server}: {self.count:,} topics, {self.count:,} groups, {HELD:,} held pulls take"
            f" {self.anonymous_bytes / 1e6:.0f} MB; idle {self.idle_cpu_share:.1%} of a core"
            f" ({self.idle_cpu_share_before:.1%} before); a send {self.send_cpu_us:.2f} us"
            f" ({self.send_cpu_us_before:.2f} before)"
        )


def measure_crowd(options: argparse.Namespace, server: str) -> Crowd:
    """Measure a broker before and after topics, groups and held pulls exist."""
    start = our_broker if server == OURS else apache_broker
    with (
        tempfile.TemporaryDirectory() as directory,
        start(options, Path(directory) / "store") as (address, pid),
    ):
        load = Load(address, options.connections, options.window)
        crowd = Load(address, 1, 64)
        if options.warm_up:
            send_for(load, pid, options.warm_up)
        send_before, idle_before = send_for(load, pid, options.seconds), idle_share(pid)
        memory = anonymous_bytes(pid) or 0
        crowd.each([new_topic(n) for n in range(options.crowd)])
        crowd.each([new_group(n) for n in range(options.crowd)])
        crowd.start([held_pull(n) for n in range(HELD)])
        # Pulls are held one after the other, and the tables are written.
        time.sleep(5 * DISPATCHED_WITHIN_S)
        idle = idle_share(pid)
        send = send_for(load, pid, options.seconds)
        grown = (anonymous_bytes(pid) or 0) - memory
        crowd.close()
        load.close()
    return Crowd(server, options.crowd, grown, idle, idle_before, send, send_before)


def send_for(load: Load, pid: int, seconds: float) -> float:
    """Send for a while; return the broker's processor time by send in us."""
    used, begin = cpu_s(pid), time.perf_counter()
    load.run(single_send, lambda: time.perf_counter() >= begin + seconds)
    return (cpu_s(pid) - used) / max(1, load.accepted) * 1e6


def idle_share(pid: int) -> float:
    """Return the share of a core that a broker without requests uses."""
    used = cpu_s(pid)
    time.sleep(IDLE_S)
    return (cpu_s(pid) - used) / IDLE_S


@contextmanager
def our_broker(
    options: argparse.Namespace, directory: Path
) -> Iterator[tuple[tuple[str, int], int]]:
    """Run our broker in a process of its own; yields its address and process id."""
    command = [sys.executable, "-m", BENCH, "--serve", str(directory), "--flush", options.flush]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        host, _, port = broker.stdout.readline().strip().rpartition(":")
        try:
            yield (host, int(port)), broker.pid
        finally:
            broker.terminate()


@contextmanager
def apache_broker(
    options: argparse.Namespace, directory: Path
) -> Iterator[tuple[tuple[str, int], int]]:
    """Run Apache's broker, with all of the JVM's compilers; yields its address and process id."""
    server = ApacheServer(
        options.apache,
        directory,
        commitlog_file_bytes=COMMITLOG_FILE_BYTES,
        heap="1g",
        options=JVM,
        flush=options.flush,
    )
    trio.run(server.start)
    try:
        host, _, port = server.broker_address.rpartition(":")
        yield (host, int(port)), server.pid
    finally:
        server.kill()


def cases() -> list[tuple[str, Callable[[int], bytes], int]]:
    """Return name, request by number, and messages per request of each case."""
    return [
        ("send (310)", single_send, 1),
        ("send (310), binary header", binary_send, 1),
        (f"batch send (320) of {BATCH_COUNT}", batch_send, BATCH_COUNT),
        (f"pull (11) of {BATCH_COUNT}", pull, BATCH_COUNT),
    ]


def single_send(number: int) -> bytes:
    return request(310, number, send_ext(number), BODY)


def binary_send(number: int) -> bytes:
    return request(310, number, send_ext(number), BODY, Serialize.ROCKETMQ)


def batch_send(number: int) -> bytes:
    first = number * BATCH_COUNT
    items = [(0, BODY, properties(first + i).encode()) for i in range(BATCH_COUNT)]
    return request(320, number, send_ext(number) | {"m": "true"}, encode_batch_items(items))


def pull(number: int) -> bytes:
    offset = number // QUEUES % PULLED_PER_QUEUE * BATCH_COUNT
    ext = {**pull_ext(), "queueId": str(number % QUEUES), "queueOffset": str(offset)}
    return request(11, number, ext)


def properties(number: int) -> str:
    """Return the text of Java's producer; each unique key comes once."""
    return f"UNIQ_KEY\x01AC1100021A6F18B4AAC2{number:012X}\x02WAIT\x01true\x02TAGS\x01tag\x02"


def send_ext(number: int) -> dict[str, str]:
    return {
        "a": "bench_producer",
        "b": "bench",
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(number % QUEUES),
        "f": "0",
        "g": "1763700000000",
        "h": "0",
        "i": properties(number),
        "j": "0",
        "k": "false",
        "m": "false",
    }


def new_topic(number: int) -> bytes:
    ext = {
        "topic": f"crowd{number}", "defaultTopic": "TBW102", "readQueueNums": "1",
        "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
    }  # fmt: skip
    return request(17, number, ext)


def new_group(number: int) -> bytes:
    return request(200, number, {}, b'{"groupName":"crowd%d"}' % number)


def held_pull(number: int) -> bytes:
    ext = {
        **pull_ext(), "consumerGroup": f"crowd{number}", "topic": f"crowd{number}", "queueId": "0",
        "queueOffset": "0", "commitOffset": "0", "sysFlag": "6", "suspendTimeoutMillis": "60000",
    }  # fmt: skip
    return request(11, number, ext)


def pull_ext() -> dict[str, str]:
    return {
        "consumerGroup": "bench_consumer",
        "topic": "bench",
        "maxMsgNums": str(BATCH_COUNT),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "1",
        "subscription": "*",
        "expressionType": "TAG",
    }


def request(
    code: int,
    opaque: int,
    ext: dict[str, str],
    body: bytes = b"",
    serialize: Serialize = Serialize.JSON,
) -> bytes:
    return encode(RemotingCommand(code, opaque, ext=ext, body=body, serialize=serialize))


def accepted(turn: Turn) -> int:
    """Return how many of a turn's answers have the code 0, in either form of a header."""
    data, index = bytes(turn.data), turn.index
    if turn.frames and data[index[2] + 4] == Serialize.ROCKETMQ:
        return sum(
            data[index[i + 2] + 8 : index[i + 2] + 10] == b"\0\0"
            for i in range(0, 4 * turn.frames, 4)
        )
    return data.count(b'"code":0,')


class Load:
    """Connections that keep ``window`` requests each in flight."""

    def __init__(self, address: tuple[str, int], connections: int, window: int) -> None:
        self.answers = 0
        self.accepted = 0
        self._window = window
        self._number = 0
        self._reactor = Reactor(output_bytes_high=1 << 24, output_bytes_max=1 << 26)
        self._readable = select.poll()
        self._readable.register(self._reactor.fileno(), select.POLLIN)
        self._connections: list[int] = []
        for _ in range(connections):
            self._reactor.connect(address, Framing.REMOTING, frame_bytes_max=1 << 24)
        while len(self._connections) < connections:
            self._connections += [opened[0] for opened in self._reactor.poll(0).opened]

    def run(self, payload: Callable[[int], bytes], is_over: Callable[[], bool]) -> None:
        """Send until ``is_over``; return when everything is answered."""
        # Encoding is not measured: requests are made beforehand and reused.
        made = [payload(i) for i in range(QUEUES * PULLED_PER_QUEUE)]
        self.answers = self.accepted = 0
        pending = 0
        for connection in self._connections:
            for _ in range(self._window):
                self._send(connection, made)
                pending += 1
        while pending:
            turn = self._poll()
            index = turn.index
            self.accepted += accepted(turn)
            is_sending = not is_over()
            for i in range(0, 4 * turn.frames, 4):
                self.answers += 1
                pending -= 1
                if is_sending:
                    self._send(index[i], made)
                    pending += 1

    def each(self, requests: list[bytes]) -> None:
        """Send each request once; all answers must be a success."""
        self.answers = self.accepted = 0
        (connection,) = self._connections
        for sent, one in enumerate(requests):
            self._reactor.send(connection, one)
            while sent + 1 - self.answers >= self._window:
                self._receive()
        while self.answers < len(requests):
            self._receive()
        assert self.accepted == len(requests), "a request was refused"

    def _receive(self) -> None:
        turn = self._poll()
        self.accepted += accepted(turn)
        self.answers += turn.frames

    def _poll(self) -> Turn:
        """Return the next turn; wait if nothing came at once.

        Polling on would take CPU time from the broker: they share the processors.
        """
        turn = self._reactor.poll(int(time.monotonic()))
        if not turn and not turn.more:
            self._readable.poll()
            turn = self._reactor.poll(int(time.monotonic()))
        assert not turn.closed
        return turn

    def start(self, requests: list[bytes]) -> None:
        """Send requests that are answered much later."""
        (connection,) = self._connections
        for one in requests:
            self._reactor.send(connection, one)
        self._reactor.flush()

    def _send(self, connection: int, made: list[bytes]) -> None:
        self._reactor.send(connection, made[self._number % len(made)])
        self._number += 1

    def close(self) -> None:
        self._reactor.shut_down()


async def serve(directory: str, flush: str) -> None:
    """Run a broker and print its address."""
    store = StoreConfig(directory=directory, flush="sync" if flush == "sync" else "async")
    async with trio.open_nursery() as nursery:
        broker = Broker(
            BrokerConfig(listen="127.0.0.1:0", store=store, topics_max=30_000, groups_max=30_000)
        )
        await nursery.start(broker.run)
        print(f"{broker.address[0]}:{broker.address[1]}", flush=True)  # noqa: T201  # for the parent


def cpu_s(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def describe() -> str:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    return (
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"commit {commit}"
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--flush", choices=["async", "sync"], default="async")
    parser.add_argument("--apache", metavar="VERSION", nargs="?", const=VERSION_5)
    parser.add_argument("--warm-up", type=float, metavar="SECONDS")
    parser.add_argument("--crowd", type=int, metavar="N", help="topics and groups to create")
    parser.add_argument("--json", action="store_true", help="one object with all numbers")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.warm_up is None:
        options.warm_up = 5.0 if options.apache else 0.0
    return options


if __name__ == "__main__":
    main()
