"""How much slower is the push consumer than the pull consumer?

One broker in a process of its own with messages of 100 bytes, and one client process that reads
them all: by ``poll``, also with an async function that is called for each message, by push with
such a function for lists of messages and for single ones, and with a plain function in threads, as
many as there are by default and one. Each is run several times in turn. Prints machine, Python and
commit, then per case the client's processor time for each message and messages per second, the best
of the rounds, and the median of the rounds' own ratios to the processor time of the pull that does
as much: a function for each message is compared with one for each message.

    python tests/bench/bench_push.py [--messages 100000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import trio  # noqa: E402  # needs the path

from motelog.bridge.producer import Producer  # noqa: E402
from motelog.bridge.pull import PullConsumer  # noqa: E402
from motelog.bridge.push.consumer import PushConsumer  # noqa: E402
from motelog.bridge.push.workers import WORKERS  # noqa: E402
from motelog.core.message import Message  # noqa: E402
from motelog.core.namesrv.config import NamesrvConfig  # noqa: E402
from motelog.core.namesrv.server import NameServer  # noqa: E402
from motelog.core.records.decode import StoredMessage  # noqa: E402
from tests.bench.bench_native import describe  # noqa: E402
from tests.support.broker_process import BrokerProcess  # noqa: E402

BATCH = 500
# What a consumer needs to find its queues is not what is measured.
WARM_UP = 2000

# Reads ``count`` messages as a new group; returns messages per second and microseconds of each.
Figures = tuple[float, float]
Case = Callable[[str, str, int], Awaitable[Figures]]


class Meter:
    """Counts messages, and measures from the WARM_UP-th to the last."""

    def __init__(self, count: int) -> None:
        self._wanted = count
        self._count = 0
        self._begin = self._begin_cpu = 0.0
        self.figures: Figures | None = None

    def add(self, count: int) -> bool:
        """Return whether these were the last."""
        before = self._count
        self._count += count
        if before < WARM_UP <= self._count:
            self._begin, self._begin_cpu = time.perf_counter(), time.process_time()
            self._first = self._count
        if self._count >= self._wanted and self.figures is None:
            count, cpu_s = self._count - self._first, time.process_time() - self._begin_cpu
            self.figures = count / (time.perf_counter() - self._begin), cpu_s / count * 1e6
        return self.figures is not None

    def result(self) -> Figures:
        assert self.figures is not None
        return self.figures


async def pull(namesrv: str, group: str, count: int) -> Figures:
    meter = Meter(count)
    async with PullConsumer(namesrv=namesrv, group=group) as consumer:
        consumer.subscribe("bench")
        while not meter.add(len(await consumer.poll())):
            pass
    return meter.result()


async def pull_each(namesrv: str, group: str, count: int) -> Figures:
    meter = Meter(count)
    is_over = False

    async def handle(message: StoredMessage) -> None:
        nonlocal is_over
        is_over = meter.add(1)

    async with PullConsumer(namesrv=namesrv, group=group) as consumer:
        consumer.subscribe("bench")
        while not is_over:
            for message in await consumer.poll():
                await handle(message)
    return meter.result()


async def push_batches(namesrv: str, group: str, count: int) -> Figures:
    meter = Meter(count)
    async with PushConsumer(namesrv=namesrv, group=group, batch_max=512) as consumer:
        consumer.subscribe("bench")

        async def handle(messages: list[StoredMessage]) -> None:
            if meter.add(len(messages)):
                consumer.stop()

        await consumer.run_batches(handle)
    return meter.result()


async def push(namesrv: str, group: str, count: int) -> Figures:
    meter = Meter(count)
    async with PushConsumer(namesrv=namesrv, group=group) as consumer:
        consumer.subscribe("bench")

        async def handle(message: StoredMessage) -> None:
            if meter.add(1):
                consumer.stop()

        await consumer.run(handle)
    return meter.result()


async def push_threads(namesrv: str, group: str, count: int, workers: int = WORKERS) -> Figures:
    meter = Meter(count)
    async with PushConsumer(namesrv=namesrv, group=group, workers=workers) as consumer:
        consumer.subscribe("bench")

        def handle(message: StoredMessage) -> None:
            if meter.add(1):
                trio.from_thread.run_sync(consumer.stop)

        await consumer.run(handle)
    return meter.result()


PULL: Final = "pull, poll()"
PULL_EACH: Final = "pull, poll(), each"

# A case, and the one that it is compared with.
CASES: Final[dict[str, tuple[Case, str]]] = {
    PULL: (pull, PULL),
    "push, async, lists": (push_batches, PULL),
    PULL_EACH: (pull_each, PULL_EACH),
    "push, async, single": (push, PULL_EACH),
    "push, threads, single": (push_threads, PULL_EACH),
    "push, one thread, single": (partial(push_threads, workers=1), PULL_EACH),
}


async def main(count: int, rounds: int) -> None:
    print(describe())  # noqa: T201  # the result
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        address = f"{namesrv.address[0]}:{namesrv.address[1]}"
        with tempfile.TemporaryDirectory() as folder:
            broker = BrokerProcess(Path(folder), namesrv=address)
            await trio.to_thread.run_sync(broker.start)
            try:
                async with Producer(namesrv=address) as producer:
                    for _ in range(0, count, BATCH):
                        messages = [Message("bench", b"x" * 100, tags="tag")] * BATCH
                        await producer.send_batch(messages)
                found: dict[str, list[Figures]] = {name: [] for name in CASES}
                for number in range(rounds):
                    for name, (case, _) in CASES.items():
                        group = f"bench-{number}-{list(CASES).index(name)}"
                        found[name].append(await case(address, group, count))
            finally:
                await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
    for name, (_, other) in CASES.items():
        rate, us = max(rate for rate, _ in found[name]), min(us for _, us in found[name])
        pairs = zip(found[name], found[other], strict=True)
        ratio = statistics.median(us / beside for (_, us), (_, beside) in pairs)
        print(f"{name:26} {us:6.2f} us {rate:10,.0f}/s {ratio:6.2f} x {other}")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    trio.run(main, options.messages, options.rounds)
