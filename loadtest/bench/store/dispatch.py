"""How fast do records get from the log to ConsumeQueues, index and waiting readers?

Dispatch happens inside the append, so its time is that of an append less that of writing the same
batches to a log alone, the floor. It is as fast as appending while the whole is at least half as
fast as the floor. Beside it: how far a reader that is woken by appends is behind them. The best
round counts here too: on a shared machine one round alone may take half as long again as another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle, islice

import trio

from motelog.core.clock import SystemClock
from motelog.core.records.append import QueueTail, measure
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.message_store import MessageStore
from motelog.loadtest.bench.store.figures import (
    BATCH,
    HOST,
    TOPIC,
    Figure,
    Message,
    Options,
    log_file_bytes,
    message,
    one_processor,
    open_store,
    percentile,
    store_folder,
)

BODY = b"x" * 9
RECORDS = 1_000_000
QUEUES = (1, 8, 10_000)
MESSAGE_BYTES_MAX = 4_194_304


def run(options: Options) -> list[Figure]:
    queues = (1, 8, 100) if options.quick else QUEUES
    figures = [_figure(count, options) for count in queues]
    figures.append(_figure(8, options, with_keys=True))
    figures.append(_figure(8, options, with_reader=True))
    figures.append(_lag(options))
    return figures


def _figure(
    queues: int, options: Options, *, with_keys: bool = False, with_reader: bool = False
) -> Figure:
    records = 2_000 if options.quick else RECORDS
    alone: list[float] = []
    whole: list[float] = []
    behind = 0
    for _ in range(options.rounds):
        with one_processor(), store_folder(options) as folder:
            alone.append(_log_alone(folder, queues, records, with_keys, log_file_bytes(options)))
        with one_processor(), store_folder(options) as folder:
            store = open_store(folder, commitlog_file_bytes=log_file_bytes(options))
            cpu_s, behind = _append(store, queues, records, with_keys, with_reader)
            store.close()
            whole.append(cpu_s)
    append_s, whole_s = min(alone) / records, min(whole) / records
    with_what = (", one key each" if with_keys else "") + (", all read" if with_reader else "")
    return Figure(
        f"append and dispatch, {queues:,} queue{'s' * (queues > 1)}{with_what}",
        1 / whole_s,
        "records per CPU second",
        floor=1 / append_s,
        floor_name="the log alone",
        # A reader's work with the records is not dispatch.
        goal=None if with_reader else 0.5 / append_s,
        details={
            "dispatch_ns_per_record": (whole_s - append_s) * 1e9,
            "index_behind_bytes": behind,
        },
    )


def _batches(tails: list[QueueTail], records: int, with_keys: bool) -> Iterator[list[Message]]:
    """Yield batches over all queues in turn; built before their time is taken."""
    count = max(len(tails), BATCH)
    if not with_keys:
        ring = list(islice(cycle(tails), count + BATCH))
        made = [
            [message(tail, BODY) for tail in ring[at : at + BATCH]] for at in range(0, count, BATCH)
        ]
        yield from islice(cycle(made), records // BATCH)
        return
    for begin in range(0, records, BATCH):
        yield [
            message(tails[i % len(tails)], BODY, b"UNIQ_KEY\x01%032X\x02" % i)
            for i in range(begin, begin + BATCH)
        ]


def _log_alone(folder: str, queues: int, records: int, with_keys: bool, file_bytes: int) -> float:
    """Return the CPU seconds of encoding the records into a log alone."""
    log = CommitLog(
        OsStorage(), folder, file_bytes, store_host=HOST, clock=SystemClock(), mapped_max=256
    )
    log.queue.load()
    log.start_at(0, 0)
    tails = [QueueTail(TOPIC.encode(), i, 0) for i in range(queues)]

    def append(batch: list[Message]) -> None:
        log.make_room(*measure(batch, 0, MESSAGE_BYTES_MAX)[:2])
        dirty: list[QueueTail] = []
        log.end_offset = log.write(batch, dirty, None)
        for tail in dirty:
            tail.drop(tail.next_offset)

    spent = 0.0
    for batch in _batches(tails, max(queues, BATCH), with_keys=False):
        append(batch)  # so that first calls are not measured
    for batch in _batches(tails, records, with_keys):
        begin = time.thread_time()
        append(batch)
        spent += time.thread_time() - begin
    log.close()
    return spent


def _append(
    store: MessageStore, queues: int, records: int, with_keys: bool, with_reader: bool
) -> tuple[float, int]:
    """Return the CPU seconds of appending the records, and how far the index was behind."""
    tails = [store.queue_tail(TOPIC, i) for i in range(queues)]
    for batch in _batches(tails, max(queues, BATCH), with_keys=False):
        store.append(batch)  # so that files exist before the time is taken
    reader = Reader(store)
    if with_reader:
        reader.read_new(tails)
        growth = store.readable.follow(wake=lambda: reader.read_new(growth.take()))
    spent = 0.0
    for batch in _batches(tails, records, with_keys):
        begin = time.thread_time()
        store.append(batch)
        spent += time.thread_time() - begin
    behind = store.end_offset - store.index.indexed_offset if with_keys else 0
    if with_keys:
        begin = time.thread_time()
        store.index.dispatch()
        spent += time.thread_time() - begin
    assert not with_reader or reader.count == records + max(queues, BATCH)
    return spent, behind


class Reader:
    """Reads the new records of the queues that grew."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._next: dict[QueueTail, int] = {}
        self.count = 0

    def read_new(self, grown: list[QueueTail]) -> None:
        for tail in grown:
            at = self._next.get(tail, 0)
            while at < tail.next_offset:
                result = self._store.reader.read(TOPIC, tail.queue_id, at, count_max=1_000)
                self.count += result.count
                at = result.next_offset
            self._next[tail] = at


def _lag(options: Options) -> Figure:
    """Return how long a task that appends have woken takes to read the new records."""
    records = 2_000 if options.quick else RECORDS // 4
    rounds: list[list[float]] = []
    for _ in range(options.rounds):
        with one_processor(), store_folder(options) as folder:
            store = open_store(folder, commitlog_file_bytes=log_file_bytes(options))
            rounds.append(sorted(trio.run(_follow, store, records)))
    lags_us = min(rounds, key=lambda lags_us: percentile(lags_us, 99))
    return Figure(
        "dispatch, woken reader behind the append, p99",
        percentile(lags_us, 99),
        "us",
        less_is_better=True,
        details={"p50_us": percentile(lags_us, 50)},
    )


async def _follow(store: MessageStore, records: int) -> list[float]:
    tails = [store.queue_tail(TOPIC, i) for i in range(8)]
    reader = Reader(store)
    lags_us: list[float] = []
    grew = trio.Event()
    appended_at = 0.0
    growth = store.readable.follow(wake=lambda: grew.set())

    async def follow() -> None:
        nonlocal grew
        while reader.count < records:
            await grew.wait()
            grew = trio.Event()
            reader.read_new(growth.take())
            lags_us.append((time.perf_counter() - appended_at) * 1e6)

    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        async with trio.open_nursery() as both:
            both.start_soon(follow)
            for batch in _batches(tails, records, with_keys=False):
                appended_at = time.perf_counter()
                store.append(batch)
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return lags_us
