"""What do keys cost an append, how long does a query by key take, and a rebuild of the index?

Ten million messages with a unique key are appended in batches of 100, beside some without a key.
Then random keys are queried, each record read and compared; then the store is opened without its
index. The floors: reading the three places of a query with pread; putting as many entries into
chains in memory, in C; reading the log once.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from motelog.core.store.message_store import MessageStore
from motelog.loadtest.bench.store.figures import (
    BATCH,
    MQTT,
    TOPIC,
    Figure,
    Message,
    Options,
    log_file_bytes,
    log_files,
    message,
    one_processor,
    open_store,
    percentile,
    store_folder,
)

KEYS = 10_000_000
QUERIES = 5_000
QUERY_GOAL_US = 1_000
FOREVER = (1 << 63) - 1
CHUNK_BYTES = 1 << 20


def run(options: Options) -> list[Figure]:
    count = 5_000 if options.quick else KEYS
    chance = random.Random(1)
    with one_processor(), store_folder(options) as folder:
        file_bytes = log_file_bytes(options)
        store = open_store(folder, commitlog_file_bytes=file_bytes)
        without_s = _append(store, count // 4, with_keys=False)
        with_s = _append(store, count, with_keys=True)
        queries = _query(store, [_key(chance.randrange(count)) for _ in range(QUERIES)])
        reads = _three_reads(folder, store.end_offset, chance)
        log_bytes = store.end_offset
        store.close()
        index_bytes = sum(p.stat().st_blocks * 512 for p in Path(folder, "index").iterdir())
        clean_s = _start(folder, file_bytes)
        for path in Path(folder, "index").iterdir():
            path.unlink()
        rebuild_s = _start(folder, file_bytes) - clean_s
        floor_read_s = floor_put_s = None
        if options.floor is not None:
            floor_read_s = sum(
                options.floor("read", path, CHUNK_BYTES)["wall_s"] for path in log_files(folder)
            )
            floor_put_s = options.floor("keys", count, 5_000_000)["cpu_s"] / count
    return [
        Figure(
            f"query by key, {count:,} keys, p99",
            percentile(queries, 99),
            "us",
            floor=percentile(reads, 99),
            floor_name="three preads",
            goal=QUERY_GOAL_US,
            less_is_better=True,
            details={"p50_us": percentile(queries, 50), "floor_p50_us": percentile(reads, 50)},
        ),
        Figure(
            "a key's share of an append",
            max(with_s - without_s, 0.0) * 1e9,
            "ns",
            floor=floor_put_s * 1e9 if floor_put_s is not None else None,
            floor_name="a chain in memory",
            less_is_better=True,
            details={
                "append_ns_without_key": without_s * 1e9,
                "append_ns_with_key": with_s * 1e9,
                "index_bytes_per_key": index_bytes / count,
            },
        ),
        Figure(
            f"index rebuilt, {count:,} keys",
            max(rebuild_s, 0.0),
            "s",
            floor=floor_read_s,
            floor_name="read() of the log",
            less_is_better=True,
            details={"log_bytes": log_bytes, "start_with_index_s": clean_s},
        ),
    ]


def _key(number: int) -> str:
    return f"7F000001ABCD18B4AAC2{number:012X}"


def _append(store: MessageStore, count: int, *, with_keys: bool) -> float:
    """Return CPU seconds of this thread per message, of the appends alone."""
    tail = store.queue_tail(TOPIC, 0)
    spent = 0.0
    for begin in range(0, count, BATCH):
        batch: list[Message] = []
        for number in range(begin, begin + BATCH):
            key = b"UNIQ_KEY\x01%b\x02" % _key(number).encode() if with_keys else b""
            batch.append(message(tail, b"body", MQTT + key))
        start = time.thread_time()
        store.append(batch)
        spent += time.thread_time() - start
    start = time.thread_time()
    store.index.dispatch()
    return (spent + time.thread_time() - start) / count


def _query(store: MessageStore, keys: list[str]) -> list[float]:
    taken_us = []
    for key in keys:
        start = time.perf_counter()
        records = store.reader.query(TOPIC, key, begin_ms=0, end_ms=FOREVER).records
        taken_us.append((time.perf_counter() - start) * 1e6)
        assert len(records) == 1, key
    return sorted(taken_us)


def _three_reads(folder: str, log_bytes: int, chance: random.Random) -> list[float]:
    """Return the sorted times of reading a slot, an entry and a record, each at a random place."""
    paths = [*sorted(str(path) for path in Path(folder, "index").iterdir()), log_files(folder)[0]]
    index, log = os.open(paths[0], os.O_RDONLY), os.open(paths[-1], os.O_RDONLY)
    index_bytes, log_bytes = os.fstat(index).st_size, min(log_bytes, os.fstat(log).st_size)
    taken_us = []
    for _ in range(QUERIES):
        slot, entry = chance.randrange(index_bytes - 4), chance.randrange(index_bytes - 20)
        record = chance.randrange(log_bytes - 200)
        start = time.perf_counter()
        os.pread(index, 4, slot)
        os.pread(index, 20, entry)
        os.pread(log, 200, record)
        taken_us.append((time.perf_counter() - start) * 1e6)
    os.close(index)
    os.close(log)
    return sorted(taken_us)


def _start(folder: str, file_bytes: int) -> float:
    start = time.perf_counter()
    store = open_store(folder, commitlog_file_bytes=file_bytes)
    took = time.perf_counter() - start
    store.close()
    return took
