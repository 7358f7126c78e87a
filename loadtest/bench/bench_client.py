"""How much does our client do in a second of one core, and what does it cost the broker?

Sends, pulls and pops by one process of the client against a fresh broker, ours and Apache's in
turn. Prints machine and commit, then per case and server the messages per second, and the CPU time
of client and broker per message.

    .ci/own-network .venv/bin/python -m motelog.loadtest.bench.bench_client
        [--seconds 3] [--warm-up 10] [--only TEXT]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import trio

from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.simple import SimpleConsumer
from motelog.core.message import Message
from motelog.loadtest.bench.bench_java import apache_server, our_server
from motelog.loadtest.bench.bench_native import OURS, cpu_s
from motelog.loadtest.bench.report import Row, machine, markdown
from tests.support.java import VERSION_5

TOPIC: Final = "Bench"
BODY: Final = b"x" * 128
BATCH: Final = 32
IN_FLIGHT: Final = 64
BATCHES_IN_FLIGHT: Final = 16
PULL_COUNT: Final = 1024
#: For cases that read: again from the beginning when all is read, but a pop reads it once.
FILLED: Final = 500_000

Count: TypeAlias = Callable[[int], None]


async def send(namesrv: str, count: Count) -> None:
    async with Producer(namesrv=namesrv) as producer, trio.open_nursery() as nursery:

        async def one() -> None:
            while True:
                await producer.send(Message(TOPIC, BODY))
                count(1)

        for _ in range(IN_FLIGHT):
            nursery.start_soon(one)


async def send_batches(namesrv: str, count: Count) -> None:
    async with Producer(namesrv=namesrv) as producer, trio.open_nursery() as nursery:

        async def one() -> None:
            while True:
                await producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)])
                count(BATCH)

        for _ in range(BATCHES_IN_FLIGHT):
            nursery.start_soon(one)


async def pull_records(namesrv: str, count: Count) -> None:
    """Pull records without decoding them."""
    async with PullConsumer(namesrv=namesrv, group="records") as consumer:
        queues = await consumer.queues(TOPIC)
        while True:
            for queue in queues:
                offset = 0
                while True:
                    result = await consumer.pull(queue, offset, count_max=PULL_COUNT)
                    if result.next_offset == offset:
                        break
                    count(result.next_offset - offset)
                    offset = result.next_offset


async def poll(namesrv: str, count: Count) -> None:
    """Pull messages, each as an object."""
    async with PullConsumer(namesrv=namesrv, group="poll") as consumer:
        queues = await consumer.queues(TOPIC)
        consumer.assign(queues)
        while True:
            found = await consumer.poll(timeout_s=0.2)
            count(len(found))
            if not found:
                for queue in queues:
                    consumer.seek(queue, 0)


async def pop(namesrv: str, count: Count) -> None:
    async with SimpleConsumer(namesrv=namesrv, group="pop") as consumer:
        await consumer.subscribe(TOPIC)

        async def one() -> None:
            while True:
                messages = await consumer.receive(32, wait_s=5)
                await consumer.ack_many(messages)
                count(len(messages))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)


CASES: Final[dict[str, Callable[[str, Count], Awaitable[None]]]] = {
    "single sends, 64 in flight": send,
    "sends in batches of 32": send_batches,
    "pull, records": pull_records,
    "pull, poll()": poll,
    "pop and acknowledge 32": pop,
}


async def fill(namesrv: str) -> None:
    async with Producer(namesrv=namesrv, timeout_s=30) as producer:
        for _ in range(0, FILLED, 1000):
            await producer.send_batch([Message(TOPIC, BODY)] * 1000)


async def measure(
    options: argparse.Namespace, name: str, server: str, namesrv: str, pid: int
) -> Row:
    if not name.startswith(("single", "sends")):
        await fill(namesrv)
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more

    async with trio.open_nursery() as nursery:
        nursery.start_soon(CASES[name], namesrv, count)
        warm_s = options.warm_up if server != OURS else min(1.0, options.warm_up)
        await trio.sleep(warm_s)
        done = 0
        begin, ours_s, theirs_s = time.perf_counter(), time.process_time(), cpu_s(pid)
        await trio.sleep(options.seconds)
        took = time.perf_counter() - begin
        ours_s, theirs_s = time.process_time() - ours_s, cpu_s(pid) - theirs_s
        each = 1e6 / max(1, done)
        rate = done / took
        nursery.cancel_scope.cancel()
    return name, server, f"{rate:,.0f}", f"{ours_s * each:.2f}", f"{theirs_s * each:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=10.0, help="of Apache's broker")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains it")
    options = parser.parse_args()
    begun = machine()
    rows: list[Row] = [("case", "broker", "messages/s", "client CPU us", "broker CPU us")]
    for case in CASES:
        if options.only not in case:
            continue
        for name, start in ((OURS, our_server), (f"apache {VERSION_5}", apache_server)):
            with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "store") as server:
                row = trio.run(measure, options, case, name, server.namesrv, server.pid)
            rows.append(row)
            sys.stderr.write(" ".join(row) + "\n")
    print(begun)  # noqa: T201  # the result
    for line in markdown(rows):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
