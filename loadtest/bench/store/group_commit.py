"""What does a synchronous append cost when 1, 10 or 100 publishers wait for the disk?

Each publisher appends one message of 100 bytes and waits until it is durable, over and over. The
floor is a C loop that writes the bytes of as many messages at once and calls fdatasync, into a file
with its blocks, in the same folder; store and floor take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trio

from motelog.core.store.disk.files import OsStorage, Region
from motelog.core.store.message_store import MessageStore
from motelog.loadtest.bench.store.figures import (
    TOPIC,
    Figure,
    Options,
    log_file_bytes,
    message,
    open_store,
    percentile,
    store_folder,
)

WAITING = (1, 10, 100)
BODY = bytes(range(100))
RECORD_BYTES = 91 + len(BODY) + len(TOPIC)


class CountedRegion:
    """A region that counts how often it was synced."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.view = region.view
        self.reserve = region.reserve
        self.data_ranges = region.data_ranges
        self.prepare = region.prepare
        self.close = region.close
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        self._region.sync()


class CountingStorage(OsStorage):
    """The real file system, and how often a mapped file was synced."""

    def __init__(self) -> None:
        self.regions: list[CountedRegion] = []

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        region = CountedRegion(super().map_file(path, size, is_read_only=is_read_only))
        self.regions.append(region)
        return region

    @property
    def syncs(self) -> int:
        return sum(region.syncs for region in self.regions)


@dataclass(frozen=True, slots=True)
class Round:
    """The work of so many publishers in one round."""

    messages: int
    seconds: float
    cpu_s: float
    syncs: int
    waits_us: list[float]


def run(options: Options) -> list[Figure]:
    return [_figure(waiting, options) for waiting in WAITING]


def _figure(waiting: int, options: Options) -> Figure:
    seconds = 0.05 if options.quick else 2.0
    ours: list[Round] = []
    floors: list[dict[str, float]] = []
    with store_folder(options) as folder:
        for _ in range(options.rounds):
            file_bytes = log_file_bytes(options)
            ours.append(trio.run(_publish, f"{folder}/store", waiting, seconds, file_bytes))
            floors += _floor(f"{folder}/floor", waiting, ours[-1], options)
    waits = sorted(wait for one in ours for wait in one.waits_us)
    messages = sum(one.messages for one in ours)
    details = {
        "p50_us": percentile(waits, 50),
        "p99_us": percentile(waits, 99),
        "cpu_us_per_message": sum(one.cpu_s for one in ours) / messages * 1e6,
        "messages_per_sync": messages / sum(one.syncs for one in ours),
    }
    if floors:
        details |= {
            "floor_p50_us": statistics.median(one["p50_us"] for one in floors),
            "floor_p99_us": statistics.median(one["p99_us"] for one in floors),
            "floor_cpu_us_per_message": statistics.median(
                one["cpu_s"] / one["count"] / waiting * 1e6 for one in floors
            ),
        }
    return Figure(
        f"group commit, {waiting} waiting",
        statistics.median(one.messages / one.seconds for one in ours),
        "messages/s",
        floor=statistics.median(waiting * one["count"] / one["wall_s"] for one in floors)
        if floors
        else None,
        floor_name="pwrite of as many and fdatasync",
        details=details,
    )


async def _publish(folder: str, waiting: int, seconds: float, file_bytes: int) -> Round:
    storage = CountingStorage()
    store = open_store(folder, storage=storage, commitlog_file_bytes=file_bytes)
    waits_us: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.wait_durable(store.append([message(store.queue_tail(TOPIC, 0), BODY)]))
        syncs, cpu, begin = storage.syncs, time.process_time(), time.perf_counter()
        async with trio.open_nursery() as publishers:
            for queue_id in range(waiting):
                publishers.start_soon(_publisher, store, queue_id, begin + seconds, waits_us)
        took, spent = time.perf_counter() - begin, time.process_time() - cpu
        syncs = storage.syncs - syncs
        nursery.cancel_scope.cancel()
    return Round(len(waits_us), took, spent, syncs, waits_us)


async def _publisher(
    store: MessageStore, queue_id: int, until: float, waits_us: list[float]
) -> None:
    batch = [message(store.queue_tail(TOPIC, queue_id % 8), BODY)]
    while (begin := time.perf_counter()) < until:
        await store.wait_durable(store.append(batch))
        waits_us.append((time.perf_counter() - begin) * 1e6)


def _floor(path: str, waiting: int, ours: Round, options: Options) -> Iterator[dict[str, float]]:
    """Yield the time of the floor for about as many messages as the store has just appended."""
    if options.floor is None:
        return
    count = max(ours.messages // waiting, 10)
    if not Path(path).exists():
        OsStorage().create_file(path, log_file_bytes(options), sparse=False)
    count = min(count, log_file_bytes(options) // (waiting * RECORD_BYTES))
    yield options.floor("fdatasync", path, waiting * RECORD_BYTES, count)
