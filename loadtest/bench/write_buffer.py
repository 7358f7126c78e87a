"""How much does a write buffer shorten the waits of the event loop for appends to a mapped file?

Usage: python -m motelog.loadtest.bench.write_buffer [--seconds 8] [--mb-per-s 5 50] [--file-mb 128]
           [--rounds 2] [--folder DIR]

A store with async flush takes a steady load: batches of 20 messages with 1 KiB bodies, each at its
time, while the flush thread syncs the appends of each 500 ms. Each ``append`` on the event
loop is timed. Rounds of both modes alternate. Beside them, in the same run, the floor: the same
batches encoded into memory. Prints JSON: latencies in microseconds, over all rounds; processor time
of the process per second of load; the longest that the loop was late for a batch.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from motelog.core.clock import SystemClock
from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.store.config import StoreConfig
from motelog.core.store.message_store import MessageStore
from motelog.loadtest.bench.report import environment, note

BATCH = 20
BODY = bytes(range(256)) * 4
HOST = bytes([127, 0, 0, 1, 0, 0, 7, 91])
RECORD_BYTES = len(BODY) + 91 + len("telemetry")
MODES: dict[str, dict[str, Any]] = {
    "mapped": {"commitlog_touch_ahead_bytes": 0},
    "touched ahead": {},
    "write buffer": {"write_buffer": True},
}
PERCENTILES = (50.0, 99.0, 99.9)


@dataclass(slots=True)
class Measured:
    append_ns: list[int] = field(default_factory=list)
    late_ns: int = 0
    processor_s: float = 0.0
    load_s: float = 0.0


def main() -> None:
    arguments = _arguments()
    loads: dict[str, Any] = {}
    for mb_per_s in arguments.mb_per_s:
        found = {name: Measured() for name in MODES}
        for round_ in range(arguments.rounds):
            for name, settings in MODES.items():
                with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                    store = _store(folder, arguments.file_mb, settings)
                    trio.run(_load, store, mb_per_s, arguments.seconds, found[name])
                note(f"{mb_per_s} MB/s, {name}, round {round_ + 1}")
        batches = len(found["mapped"].append_ns)
        loads[f"{mb_per_s} MB/s"] = {
            "batches": batches,
            **{name: _summary(measured) for name, measured in found.items()},
            "floor": _summary(_floor(min(batches, 2000))),
        }
    report = {"bench": "write_buffer", **environment(), "batch": BATCH, "loads": loads}
    sys.stdout.write(json.dumps(report) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m motelog.loadtest.bench.write_buffer")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--mb-per-s", type=float, nargs="+", default=[5.0, 50.0])
    parser.add_argument("--file-mb", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    return parser.parse_args()


def _store(folder: str, file_mb: int, settings: dict[str, Any]) -> MessageStore:
    config = StoreConfig(
        directory=folder,
        commitlog_file_bytes=file_mb << 20,
        **settings,
        disk_used_percent_max=100,
        disk_free_bytes_min=0,
    )
    return MessageStore(config, store_host=HOST, clock=SystemClock())


async def _load(store: MessageStore, mb_per_s: float, seconds: float, into: Measured) -> None:
    interval_s = BATCH * RECORD_BYTES / (mb_per_s * 1_000_000)
    await trio.to_thread.run_sync(store.open)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        batch = _batch([store.queue_tail("telemetry", queue_id) for queue_id in range(8)])
        begun, processor = time.perf_counter(), time.process_time()
        due = trio.current_time()
        for _ in range(round(seconds / interval_s)):
            due += interval_s
            await trio.sleep_until(due)
            into.late_ns = max(into.late_ns, round((trio.current_time() - due) * 1e9))
            began = time.perf_counter_ns()
            store.append(batch)
            into.append_ns.append(time.perf_counter_ns() - began)
        into.processor_s += time.process_time() - processor
        into.load_s += time.perf_counter() - begun
        nursery.cancel_scope.cancel()


def _batch(tails: list[QueueTail]) -> list[Any]:
    return [(tails[i % len(tails)], BODY, b"", 0, 1, HOST, 0, 0, 0, 0) for i in range(BATCH)]


def _floor(batches: int) -> Measured:
    """Encode the same batches into memory whose pages exist."""
    tails = [QueueTail(b"telemetry", queue_id, 0) for queue_id in range(8)]
    batch = _batch(tails)
    memory = mmap.mmap(-1, (batches + 1) * BATCH * RECORD_BYTES + os.sysconf("SC_PAGE_SIZE"))
    measured = Measured()
    begun, processor = time.perf_counter(), time.process_time()
    for warm in (True, False):
        position = 0
        measured.append_ns.clear()
        for _ in range(batches):
            began = time.perf_counter_ns()
            _, position = encode_batch(
                memory, position, len(memory), 0, batch, 0, 1, HOST, [], None
            )
            measured.append_ns.append(time.perf_counter_ns() - began)
        for tail in tails:
            tail.drop(tail.next_offset)
        if warm:
            begun, processor = time.perf_counter(), time.process_time()
    measured.processor_s = time.process_time() - processor
    measured.load_s = time.perf_counter() - begun
    return measured


def _summary(measured: Measured) -> dict[str, float]:
    ordered = sorted(measured.append_ns)
    found = {
        f"append_us_p{percent:g}": ordered[
            min(math.ceil(len(ordered) * percent / 100), len(ordered)) - 1
        ]
        / 1000
        for percent in PERCENTILES
    }
    return found | {
        "append_us_max": ordered[-1] / 1000,
        "append_ms_total": sum(ordered) / 1_000_000,
        "late_ms_max": measured.late_ns / 1_000_000,
        "processor_share": round(measured.processor_s / measured.load_s, 4),
    }


if __name__ == "__main__":
    main()
