"""What do 50,000 queues cost: memory, descriptors, appends, a checkpoint, a start?

    python -m motelog.loadtest.bench.store.queues [--queues 50000] [--rounds 20]
        [--folder DIRECTORY] [--json]

Each round appends one message of 100 bytes to every queue, in batches of 100, while the store
flushes, writes units and checkpoints. The rate is compared with the same batches over 8 queues in
the same run. Descriptors, maps and memory are those of the process at their worst, memory without
the pages of mapped files. One start follows a clean stop, another one the end of the process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import trio

from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from motelog.loadtest.bench.report import environment, say
from motelog.loadtest.bench.store.figures import BATCH, Message, message, open_store

BODY: Final = bytes(range(100))
QUEUES_PER_TOPIC: Final = 8
FEW: Final = 8
READS: Final = 2_000


class Worst:
    """Memory, descriptors and maps of this process, at their worst so far."""

    def __init__(self) -> None:
        gc.collect()
        self.begin_bytes = _memory_bytes()
        self.memory_bytes = self.descriptors = self.maps = 0

    def look(self) -> None:
        self.memory_bytes = max(self.memory_bytes, _memory_bytes() - self.begin_bytes)
        self.descriptors = max(self.descriptors, len(os.listdir("/proc/self/fd")))
        self.maps = max(self.maps, Path("/proc/self/maps").read_bytes().count(b"\n"))


def _memory_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def _keys(count: int) -> list[tuple[str, int]]:
    return [(f"topic-{i // QUEUES_PER_TOPIC}", i % QUEUES_PER_TOPIC) for i in range(count)]


def _batches(store: MessageStore, count: int, messages: int) -> Iterator[list[Message]]:
    tails = [store.queue_tail(*key) for key in _keys(count)]
    made = [
        [message(tails[(at + i) % count], BODY) for i in range(BATCH)]
        for at in range(0, max(count, BATCH), BATCH)
    ]
    for number in range(messages // BATCH):
        yield made[number % len(made)]


async def _append(store: MessageStore, count: int, messages: int, worst: Worst) -> dict[str, float]:
    """Append to a running store; return the time of a record, and of a checkpoint at the end."""
    spent = longest = 0.0
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        began = time.perf_counter()
        for number, batch in enumerate(_batches(store, count, messages)):
            begin = time.thread_time()
            store.append(batch)
            spent += time.thread_time() - begin
            if number % 50 == 0:
                turn = time.perf_counter()
                await trio.lowlevel.checkpoint()
                longest = max(longest, time.perf_counter() - turn)
            if number % 1000 == 0:
                worst.look()
        wall = time.perf_counter() - began
        begin = time.perf_counter()
        await store.checkpoint()
        checkpoint_s = time.perf_counter() - begin
        worst.look()
        store._fence("the process is gone")  # later writes are not part of it
        nursery.cancel_scope.cancel()
    return {
        "ns_per_record": spent / messages * 1e9,
        "records_per_s": messages / wall,
        "longest_turn_ms": longest * 1000,
        "checkpoint_s": checkpoint_s,
    }


def _opened(folder: str) -> tuple[MessageStore, float]:
    begin = time.perf_counter()
    store = open_store(folder, commitlog_file_bytes=1 << 28)
    return store, time.perf_counter() - begin


def _read(store: MessageStore, count: int, expected: int) -> float:
    """Read some queues whole; return the seconds that one takes."""
    keys = random.Random(1).choices(_keys(count), k=READS)
    begin = time.perf_counter()
    for key in keys:
        result = store.reader.read(*key, 0, count_max=expected)
        assert (result.status, result.count) == (ReadStatus.FOUND, expected)
    return (time.perf_counter() - begin) / READS


def measure(folder: str, count: int, rounds: int) -> dict[str, Any]:
    store, _ = _opened(f"{folder}/few")
    few = trio.run(_append, store, FEW, count * rounds, Worst())
    shutil.rmtree(f"{folder}/few")
    worst = Worst()
    store, _ = _opened(f"{folder}/many")
    for key in _keys(count):
        store.queue_tail(*key)
    worst.look()
    idle_bytes = worst.memory_bytes / count
    result: dict[str, Any] = {"queues": count, "rounds": rounds, "idle_queue_bytes": idle_bytes}
    result["few"] = few
    result["many"] = trio.run(_append, store, count, count * rounds, worst)
    store, result["start_after_kill_s"] = _opened(f"{folder}/many")
    result["read_queue_us"] = _read(store, count, rounds) * 1e6
    worst.look()
    store.append([message(store.queue_tail(*key), BODY) for key in _keys(count)])
    begin = time.perf_counter()
    store.close()
    result["stop_s"] = time.perf_counter() - begin
    store, result["start_after_stop_s"] = _opened(f"{folder}/many")
    _read(store, count, rounds + 1)
    worst.look()
    store.close()
    result["memory_bytes"] = worst.memory_bytes
    result["descriptors"] = worst.descriptors
    result["maps"] = worst.maps
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m motelog.loadtest.bench.store.queues")
    parser.add_argument("--queues", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result = measure(folder, args.queues, args.rounds)
    if args.json:
        say(json.dumps({**environment(), **result}))
        return 0
    few, many = result["few"], result["many"]
    for line in (
        f"{args.queues:,} queues, {args.rounds} messages each",
        f"append         {many['ns_per_record']:8.0f} ns a record, over {FEW} queues "
        f"{few['ns_per_record']:.0f}",
        f"               {many['records_per_s']:8.0f} records a second, over {FEW} queues "
        f"{few['records_per_s']:.0f}",
        f"longest turn   {many['longest_turn_ms']:8.1f} ms of the event loop without append",
        f"checkpoint     {many['checkpoint_s']:8.2f} s, stop {result['stop_s']:.2f} s",
        f"start          {result['start_after_stop_s']:8.2f} s, after a kill "
        f"{result['start_after_kill_s']:.2f} s",
        f"read           {result['read_queue_us']:8.1f} us a queue",
        f"memory         {result['memory_bytes'] / 1e6:8.1f} MB, an idle queue "
        f"{result['idle_queue_bytes']:.0f} bytes",
        f"descriptors    {result['descriptors']:8d}, maps {result['maps']}",
    ):
        say(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
