"""How many records a second does the store append from Python, in batches, on one core?

Usage: python tests/bench/bench_append.py [ROUNDS]. Prints one JSON line. Each round appends to a
new store in a temporary folder: batches of 100 records over 8 queues, ConsumeQueue units included,
every page fresh. Beside each, in the same run, the floor: the same bytes, encoded beforehand,
copied into a mapped file of the same kind with the CRC of their bodies computed by the same kernel.
Rates are per second of this thread's CPU time and per second on the wall, each the best round.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from core.clock import SystemClock  # needs the path
from core.record import COMPILED, QueueTail, crc32_31, encode_batch
from core.store.config import StoreConfig
from core.store.files import OsStorage
from core.store.message_store import MessageStore

BATCH = 100
QUEUES = 8
LOG_BYTES = 200_000_000
HOST = bytes([127, 0, 0, 1, 0, 0, 7, 91])
PROPERTIES = b"mqttRealTopic\x01telemetry/dev42/temp\x02TAGS\x01dev42\x02qosLevel\x011\x02"
CASES = {
    "100 B records": (b"", b""),
    "100 B bodies": (bytes(range(100)), b""),
    "100 B bodies with properties": (bytes(range(100)), PROPERTIES),
    "1 KiB bodies with properties": (bytes(range(256)) * 4, PROPERTIES),
}


def batch_for(tails: list[QueueTail], body: bytes, properties: bytes) -> list[Any]:
    return [(tails[i % QUEUES], body, properties, 0, 1, HOST, 0, 0, 0, 0) for i in range(BATCH)]


def timed(work: Callable[[], None], batches: int) -> tuple[float, float]:
    """Return (CPU seconds of this thread, seconds) that so many calls take."""
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(batches):
        work()
    return time.thread_time() - cpu, time.perf_counter() - wall


def run_append(folder: str, body: bytes, properties: bytes) -> tuple[int, float, float]:
    config = StoreConfig(directory=folder, disk_used_percent_max=100, disk_free_bytes_min=0)
    store = MessageStore(config, store_host=HOST, clock=SystemClock())
    store.open()
    tails = [store.queue_tail("telemetry", i) for i in range(QUEUES)]
    batch = batch_for(tails, body, properties)
    batches = LOG_BYTES // store.append(batch)
    cpu, wall = timed(lambda: _ignore(store.append(batch)), batches)
    store.close()
    return batches * BATCH, cpu, wall


def run_floor(folder: str, body: bytes, properties: bytes) -> tuple[int, float, float]:
    tails = [QueueTail(b"telemetry", i, 0) for i in range(QUEUES)]
    target = bytearray(1 << 20)
    batch = batch_for(tails, body, properties)
    _, size = encode_batch(target, 0, len(target), 0, batch, 0, 1, HOST, [], None)
    data, bodies = bytes(target[:size]), body * BATCH
    storage = OsStorage()
    storage.create_file(f"{folder}/floor", LOG_BYTES + size, sparse=False)
    region = storage.map_file(f"{folder}/floor", LOG_BYTES + size)
    view, position = region.view, 0

    def copy() -> None:
        nonlocal position
        crc32_31(bodies)
        view[position : position + size] = data
        position += size

    batches = LOG_BYTES // size
    cpu, wall = timed(copy, batches)
    region.close()
    return batches * BATCH, cpu, wall


def _ignore(_: object) -> None:
    pass


def best(run: Callable[..., tuple[int, float, float]], rounds: int, *case: bytes) -> dict[str, int]:
    rates = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            count, cpu, wall = run(folder, *case)
            rates.append((count / cpu, count / wall))
    return {
        "records_per_cpu_s": round(max(rate for rate, _ in rates)),
        "records_per_s": round(max(rate for _, rate in rates)),
    }


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    # One core: the thread that makes files ahead shares it too.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    result = {
        "bench": "append",
        "batch": BATCH,
        "queues": QUEUES,
        "compiled": COMPILED,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "commit": commit(),
        "cases": {
            name: {
                "append": best(run_append, rounds, *case),
                "floor": best(run_floor, rounds, *case),
            }
            for name, case in CASES.items()
        },
    }
    print(json.dumps(result))  # noqa: T201  # its output


if __name__ == "__main__":
    main()
