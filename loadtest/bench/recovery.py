"""How long does a start take after a kill, for each GB of log since the checkpoint?

Usage: python -m motelog.loadtest.bench.recovery [--gb N] [--queues Q] [--keyed PERCENT]
[--folder DIR]

A process fills a new store (100 B bodies, PERCENT of the messages with a key) without any
checkpoint after its first and kills itself. Then the folder is opened twice: with the log in the
page cache, as after a kill, and without it there, as after a power cut (the index and queues
of the first start are removed, and its checkpoint put back). Beside each, in the same state of the
cache, the floor: the same CommitLog files read in blocks of 1 MiB, as `cat` does. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from motelog.core.clock import SystemClock
from motelog.core.store.config import StoreConfig
from motelog.core.store.message_store import MessageStore

BATCH = 1000
HOST = bytes([127, 0, 0, 1, 0, 0, 7, 91])
BODY = bytes(range(100))
GB = 1_000_000_000
BLOCK_BYTES = 1 << 20
FLUSH_BYTES = 100_000_000
SMALL_FILES = ("abort", "checkpoint", "queues.json", "index.json", "clock.json", "durable")


def make_store(folder: str) -> MessageStore:
    config = StoreConfig(directory=folder, disk_used_percent_max=100, disk_free_bytes_min=0)
    return MessageStore(config, store_host=HOST, clock=SystemClock())


def fill(folder: str, log_bytes: int, queues: int, keyed_percent: int) -> None:
    """Append and kill this process; its writes are in the page cache."""
    store = make_store(folder)
    store.open()
    tails = [store.queue_tail("telemetry", queue_id) for queue_id in range(queues)]
    number = flushed = 0
    while store.end_offset < log_bytes:
        batch: list[Any] = []
        for number in range(number, number + BATCH):  # noqa: B020  # continues where it was
            keys = b"KEYS\x01%012d\x02" % number if number % 100 < keyed_percent else b""
            batch.append((tails[number % queues], BODY, keys, 0, 1, HOST, 0, 0, 0, 0))
        number += 1
        store.append(batch)
        if store.end_offset - flushed > FLUSH_BYTES:
            # A running store does this each 500 ms; the start must not pay for it.
            trio.run(store._flusher.flush)
            flushed = store.end_offset
    os.kill(os.getpid(), signal.SIGKILL)


def log_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder, "commitlog").iterdir())


def drop_from_cache(folder: str) -> None:
    for path in Path(folder).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDWR)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def read_seconds(folder: str, end: int) -> float:
    """Return how long reading the log's bytes takes."""
    begun = time.perf_counter()
    block = bytearray(BLOCK_BYTES)
    for path in log_files(folder):
        left = end - int(os.path.basename(path))
        with open(path, "rb", buffering=0) as file:
            while left > 0 and (count := file.readinto(block)):
                left -= count
    return time.perf_counter() - begun


def start(folder: str) -> dict[str, Any]:
    """Open the store in this process and return how long that took."""
    store = make_store(folder)
    wall, cpu = time.perf_counter(), time.process_time()
    report = store.open()
    result = {
        "start_s": round(time.perf_counter() - wall, 2),
        "start_cpu_s": round(time.process_time() - cpu, 2),
        "records": report.records,
        "bytes": report.end_offset - report.scanned_from,
    }
    store._is_open = False
    store._release()
    return result


def in_child(*arguments: str) -> bytes:
    command = [sys.executable, "-m", "motelog.loadtest.bench.recovery", *arguments]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=False).stdout


def measure(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    store = f"{folder}/store"
    in_child("--fill", store, *(f"--{n}={getattr(args, n)}" for n in ("gb", "queues", "keyed")))
    first = [Path(store, name) for name in SMALL_FILES if Path(store, name).exists()]
    for path in first:
        shutil.copy(path, folder)
    results = {}
    for state in ("cached", "cold"):
        if state == "cold":
            shutil.rmtree(f"{store}/consumequeue")
            shutil.rmtree(f"{store}/index")
            for name in SMALL_FILES:
                Path(store, name).unlink(missing_ok=True)
                Path(store, f"{name}.bak").unlink(missing_ok=True)
            for path in first:
                shutil.copy(f"{folder}/{path.name}", path)
            drop_from_cache(store)
        # Read the log again: a small machine's cache does not have all of the last writes.
        end = int(args.gb * GB)
        read_s = read_seconds(store, end)
        if state == "cold":
            drop_from_cache(store)
        found = json.loads(in_child("--start", store))
        gigabytes = found["bytes"] / GB
        results[state] = {
            **found,
            "read_s": round(read_s, 2),
            "start_s_per_gb": round(found["start_s"] / gigabytes, 3),
            "start_to_read": round(found["start_s"] / read_s, 2),
            "limit_s": round(2 + gigabytes, 1),
        }
    return results


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m motelog.loadtest.bench.recovery")
    parser.add_argument("--gb", type=float, default=2.0, help="bytes of log, in 10^9")
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--keyed", type=int, default=10, help="percent of messages with a key")
    parser.add_argument("--folder", help="folder in which the store is created for the run")
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fill:
        fill(args.fill, int(args.gb * GB), args.queues, args.keyed)
    elif args.start:
        print(json.dumps(start(args.start)))  # noqa: T201  # read by the process above
    else:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            results = measure(folder, args)
        result = {
            "bench": "recovery",
            "gb": args.gb,
            "queues": args.queues,
            "keyed_percent": args.keyed,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "commit": commit(),
            **results,
        }
        print(json.dumps(result))  # noqa: T201  # its output


if __name__ == "__main__":
    main()
