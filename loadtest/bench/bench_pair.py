"""What does a second copy cost? Double write by a pair of ours beside a pair of Apache's.

A master and a slave, each a process of its own, with a name server; the load is that of
bench_native. Prints for each case the messages a second, and the processor time of master and slave
together for a message. The first line of ours is a master alone, without slaves.

``--seed-gb`` then fills a master of ours, starts an empty slave, and prints how fast that copies,
what the copying costs the master's clients, how far the slave lags under their full load, and, when
the master is killed, the time from the decision to promote to the first acknowledged message.

    python -m motelog.loadtest.bench.bench_pair [--seconds 5] [--warm-up 3] [--connections 4]
        [--window 64] [--apache 4.9.7] [--seed-gb 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from motelog.bridge.sync import SyncAdmin, SyncProducer
from motelog.core.message import Message
from motelog.loadtest.bench.bench_native import (
    BATCH_COUNT,
    JVM,
    OURS,
    Load,
    batch_send,
    cpu_s,
    describe,
    single_send,
)
from tests.support.java import VERSION_4, ApacheServer
from tests.support.namesrv_process import NamesrvProcess
from tests.support.ports import free_port
from tests.support.role_process import RoleProcess

ALONE: Final = "motelog, no slave"
NAME: Final = "pair"
FILE_BYTES: Final = 1 << 30
COPYING_WITHIN_S: Final = 60
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Running:
    """A pair that runs: where messages are sent, its processes, the name server that knows it."""

    address: tuple[str, int]
    pids: list[int]
    namesrv: str


@dataclass(frozen=True, slots=True)
class Result:
    """One case; ``uncopied`` counts answers other than SEND_OK."""

    case: str
    server: str
    messages_per_s: float
    cpu_us_per_message: float
    uncopied: int

    def line(self) -> str:
        text = f"{self.case:22} {self.server:18} {self.messages_per_s:12,.0f} messages/s"
        text += f"   {self.cpu_us_per_message:6.2f} us of CPU per message, both brokers"
        return text + (f"   {self.uncopied} not at the slave" if self.uncopied else "")


def main() -> None:
    options = parse_options()
    print(describe())  # noqa: T201  # the result
    servers = [ALONE, OURS] + ([f"apache {options.apache}"] if options.apache else [])
    results = []
    for case in (("send (310)", single_send, 1), (f"batch of {BATCH_COUNT}", batch_send, 32)):
        for server in servers:
            results.append(measure(options, server, *case))
            print(results[-1].line(), flush=True)  # noqa: T201
    if options.json:
        print(json.dumps([asdict(result) for result in results]))  # noqa: T201
    if options.seed_gb:
        print(measure_seed(options), flush=True)  # noqa: T201


def measure(
    options: argparse.Namespace,
    server: str,
    name: str,
    payload: Callable[[int], bytes],
    per_request: int,
) -> Result:
    """Run one case against a fresh pair."""
    with tempfile.TemporaryDirectory() as folder, _start(options, server, Path(folder)) as pair:
        load = Load(pair.address, options.connections, options.window)
        warm = time.perf_counter() + options.warm_up
        load.run(payload, lambda: time.perf_counter() >= warm)
        used, begin = sum(map(cpu_s, pair.pids)), time.perf_counter()
        load.run(payload, lambda: time.perf_counter() >= begin + options.seconds)
        took, used = time.perf_counter() - begin, sum(map(cpu_s, pair.pids)) - used
        load.close()
    count = max(load.accepted * per_request, 1)
    return Result(
        name,
        server,
        round(count / took, 1),
        round(used / count * 1e6, 3),
        load.answers - load.accepted,
    )


@contextmanager
def _start(options: argparse.Namespace, server: str, folder: Path) -> Iterator[Running]:
    with NamesrvProcess() as namesrv:
        if server.startswith(OURS):
            with _ours(folder, namesrv.address, has_slave=server == OURS) as pair:
                yield pair
        else:
            with _apaches(options.apache, folder, namesrv.address) as pair:
                yield pair


def _broker(folder: Path, namesrv: str, broker_id: int, replicate: str) -> RoleProcess:
    place = folder / f"broker-{broker_id}"
    place.mkdir()
    listen = f"127.0.0.1:{free_port()}"
    return RoleProcess(
        place,
        "broker",
        f'[broker]\nname = "{NAME}"\nid = {broker_id}\nreplicate = "{replicate}"\nvip = false\n'
        f'listen = "{listen}"\nnamesrv = ["{namesrv}"]\nregister_interval_s = 1\n'
        f'[broker.store]\ndirectory = "{place}/store"\n',
    )


@contextmanager
def _ours(folder: Path, namesrv: str, *, has_slave: bool) -> Iterator[Running]:
    with _broker(folder, namesrv, 0, "sync" if has_slave else "off") as master:
        host, _, port = master.ready["broker"].rpartition(":")
        pair = Running((host, int(port)), [master.pid], namesrv)
        if not has_slave:
            yield pair
            return
        with _broker(folder, namesrv, 1, "off") as slave:
            _wait_until(lambda: _behind(namesrv) is not None)
            pair.pids.append(slave.pid)
            yield pair


@contextmanager
def _apaches(version: str, folder: Path, namesrv: str) -> Iterator[Running]:
    server = partial(
        ApacheServer,
        version,
        namesrv=namesrv,
        heap="1g",
        options=JVM,
        commitlog_file_bytes=FILE_BYTES,
    )
    role = {"brokerName": NAME, "brokerRole": "SYNC_MASTER"}
    master = server(folder / "master", settings=role)
    slave = server(folder / "slave", settings={"brokerName": NAME}, slave_of=master)
    trio.run(master.start)
    try:
        trio.run(slave.start)
        host, _, port = master.broker_address.rpartition(":")
        yield Running((host, int(port)), [master.pid, slave.pid], namesrv)
    finally:
        for one in (master, slave):
            if one.is_running:
                one.kill()


def _behind(namesrv: str) -> int | None:
    """Return how much the slave of a pair of ours lacks; None without a slave."""
    with SyncAdmin(namesrv=namesrv) as admin:
        replicas = admin.replication(NAME).replicas
    return min((one.behind_bytes for one in replicas), default=None)


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COPYING_WITHIN_S
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"the slave does not copy after {COPYING_WITHIN_S} s")
        time.sleep(POLL_S)


def measure_seed(options: argparse.Namespace) -> str:
    """Return how an empty slave of ours catches up with a full log, as a line."""
    with tempfile.TemporaryDirectory() as text, NamesrvProcess() as namesrv:
        folder = Path(text)
        with _broker(folder, namesrv.address, 0, "async") as master:
            host, _, port = master.ready["broker"].rpartition(":")
            load = Load((host, int(port)), options.connections, options.window)
            wanted = options.seed_gb * 1_000_000_000
            load.run(batch_send, lambda: _end(namesrv.address) >= wanted)
            before = _send_for(load, options.seconds)
            with _broker(folder, namesrv.address, 1, "off") as slave:
                began = time.perf_counter()
                during = _send_for(load, options.seconds)
                _wait_until_copied(namesrv.address)
                took = time.perf_counter() - began
                end, used = _end(namesrv.address), cpu_s(slave.pid)
                lags: list[int] = []
                _send_for(load, options.seconds, each=lambda: lags.append(_lag(namesrv.address)))
                _wait_until_copied(namesrv.address)
                load.close()
                master.kill()
                began = time.perf_counter()
                _promote(namesrv.address)
                promoted = time.perf_counter() - began
    return (
        f"an empty slave copies {end / 1e9:.1f} GB in {took:.0f} s: {end / took / 1e6:.0f} MB/s,"
        f" {used / end * 1e9:.2f} s of its CPU for a GB; its master's clients send {during:,.0f}"
        f" messages/s meanwhile ({before:,.0f} before). Under their full load it lags by at most"
        f" {max(lags, default=0) / 1e6:.1f} MB. Promoted, it acknowledges a message after"
        f" {promoted:.2f} s"
    )


def _send_for(load: Load, seconds: float, each: Callable[[], object] = lambda: None) -> float:
    """Send for a while, and call ``each`` ten times meanwhile; return the messages a second."""
    begin = time.perf_counter()
    calls = 0

    def is_over() -> bool:
        nonlocal calls
        passed = time.perf_counter() - begin
        if passed > calls * seconds / 10:
            calls += 1
            each()
        return passed >= seconds

    load.run(single_send, is_over)
    return load.accepted / (time.perf_counter() - begin)


def _lag(namesrv: str) -> int:
    return _behind(namesrv) or 0


def _promote(namesrv: str) -> None:
    """Promote the slave, and send until a message is acknowledged."""
    with SyncAdmin(namesrv=namesrv) as admin:
        admin.promote(NAME, 1)
    with SyncProducer(namesrv=namesrv) as producer:
        producer.send(Message("bench", b"first"))


def _end(namesrv: str) -> int:
    with SyncAdmin(namesrv=namesrv) as admin:
        return admin.replication(NAME).end_offset


def _wait_until_copied(namesrv: str) -> None:
    while _behind(namesrv) != 0:
        time.sleep(POLL_S)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--apache", default=VERSION_4, help="empty: ours alone")
    parser.add_argument("--seed-gb", type=float, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
