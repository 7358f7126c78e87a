"""What do keys cost an append, and how long does a query by key take?

Usage: python tests/bench/bench_index.py [KEYS]. Prints one JSON line. KEYS (default 1,000,000)
messages with a unique key are appended to a new store in batches of 100, beside as many without a
key and, for the share that the kernel removes, a sample put by the reference. Then random keys are
queried, each a record read and compared, and a key that 64 of the newest records have.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from core.clock import SystemClock  # needs the path
from core.store import _index_py, index
from core.store.config import StoreConfig
from core.store.index import COMPILED
from core.store.message_store import MessageStore

BATCH = 100
QUERIES = 2_000
SAMPLE = 20_000
HOST = bytes([127, 0, 0, 1, 0, 0, 7, 91])
MQTT = b"mqttRealTopic\x01telemetry/dev42/temp\x02TAGS\x01dev42\x02qosLevel\x011\x02"
FOREVER = (1 << 63) - 1


def key_of(number: int) -> str:
    return f"7F000001ABCD18B4AAC2{number:012X}"


def opened(folder: str) -> MessageStore:
    config = StoreConfig(directory=folder, disk_used_percent_max=100, disk_free_bytes_min=0)
    store = MessageStore(config, store_host=HOST, clock=SystemClock())
    store.open()
    return store


def append(store: MessageStore, count: int, *, with_keys: bool) -> float:
    """Return CPU seconds of this thread per message, of the appends alone."""
    tail = store.queue_tail("telemetry", 0)
    spent = 0.0
    for begin in range(0, count, BATCH):
        batch: list[Any] = []
        for number in range(begin, begin + BATCH):
            text = MQTT + f"UNIQ_KEY\x01{key_of(number)}\x02".encode() if with_keys else MQTT
            batch.append((tail, b"body", text, 0, 1, HOST, 0, 0, 0, 0))
        start = time.thread_time()
        store.append(batch)
        spent += time.thread_time() - start
    start = time.thread_time()
    store.index.dispatch()
    return (spent + time.thread_time() - start) / count


def query(store: MessageStore, keys: list[str]) -> dict[str, float]:
    taken = []
    for key in keys:
        start = time.perf_counter()
        records = store.query("telemetry", key, begin_ms=0, end_ms=FOREVER).records
        taken.append(time.perf_counter() - start)
        assert len(records) == 1, key
    taken.sort()
    return {
        "p50_us": round(taken[len(taken) // 2] * 1e6, 1),
        "p99_us": round(taken[len(taken) * 99 // 100] * 1e6, 1),
        "max_us": round(taken[-1] * 1e6, 1),
    }


def put_ns(kernel: Any) -> dict[str, float]:
    """Return what keys cost one message, in ns: looking for them, and putting one."""
    shape = (5_000, 4 * SAMPLE)
    view = bytearray(40 + 4 * shape[0] + 20 * shape[1])
    view[39] = 1
    items = [
        (i, 1, b"telemetry", MQTT + f"UNIQ_KEY\x01{key_of(i)}\x02".encode()) for i in range(SAMPLE)
    ]
    batch = [(None, b"", MQTT, 0, 1, HOST, 0, 0, 0, 0)] * SAMPLE
    start = time.thread_time()
    kernel.keyed(batch)
    middle = time.thread_time()
    kernel.put(view, *shape, items, 0, 0)
    end = time.thread_time()
    return {
        "look_ns": round((middle - start) / SAMPLE * 1e9, 1),
        "put_ns": round((end - middle) / SAMPLE * 1e9, 1),
    }


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    chance = random.Random(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        store = opened(folder)
        without_s = append(store, count // 4, with_keys=False)
        with_s = append(store, count, with_keys=True)
        one = query(store, [key_of(chance.randrange(count)) for _ in range(QUERIES)])
        store.close()
        used = sum(path.stat().st_blocks * 512 for path in (Path(folder) / "index").iterdir())
        start = time.perf_counter()
        store = opened(folder)
        clean_s = time.perf_counter() - start
        store.close()
        for path in (Path(folder) / "index").iterdir():
            path.unlink()
        start = time.perf_counter()
        store = opened(folder)
        rebuilt_s = time.perf_counter() - start
        store.close()
    result = {
        "bench": "index",
        "keys": count,
        "compiled": COMPILED,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "commit": commit(),
        "append_ns_without_keys": round(without_s * 1e9),
        "append_ns_with_one_key": round(with_s * 1e9),
        "kernel": put_ns(index),
        "reference": put_ns(_index_py),
        "query": one,
        "index_bytes_on_disk": used,
        "clean_start_s": round(clean_s, 3),
        "start_without_index_s": round(rebuilt_s, 3),
    }
    print(json.dumps(result))  # noqa: T201  # its output


if __name__ == "__main__":
    main()
