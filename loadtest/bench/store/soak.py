"""Does the store stay as fast as it was while 100 million messages go over 10,000 queues?

    python -m motelog.loadtest.bench.store.soak [--messages 100000000] [--warm-up 25000000]
        [--queues 10000] [--disk-gb 6] [--folder DIRECTORY] [--json]

Batches of 100 messages of 100 bytes, each for another queue, while the store flushes, writes
checkpoints and removes old files. To the store the disk seems to have ``--disk-gb`` and only
the log. Appends that are refused until cleaning has made room wait. For each twentieth of the
messages a line shows its time, memory, descriptors and how far flush, checkpoint and index are
behind. The verdict compares the last tenth with the first. Exit status 1 if the last takes over
10 % more CPU time of the appending thread per message.

The warm-up comes before these and has a line of its own. A new store is faster, because it does not
yet do its periodic work: the first 1.6 million messages write no unit, the next ones make the
queues' files, the first checkpoint comes after 10 s, and files are removed once the log has its
size, after 23 million.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import trio

from motelog.core.errors import StoreFullError
from motelog.core.store.disk.files import DiskUsage, OsStorage
from motelog.core.store.message_store import MessageStore
from motelog.loadtest.bench.report import environment, machine, say
from motelog.loadtest.bench.store.figures import BATCH, Message, message, open_store

BODY: Final = bytes(range(100))
QUEUES_PER_TOPIC: Final = 100
BATCHES_PER_TURN: Final = 10
PARTS: Final = 20
REFUSED_S: Final = 0.01
SLOWER_MAX: Final = 1.1


class SmallDisk(OsStorage):
    """The real file system, as full as the CommitLog would make a disk of ``size_bytes``."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def disk_usage(self, path: str) -> DiskUsage:
        used = sum(entry.size for entry in self.list_directory(f"{path}/commitlog"))
        return DiskUsage(max(self._size_bytes - used, 0), self._size_bytes)


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of one twentieth of the messages, or of the warm-up; sizes at its end.

    CPU time is that of the thread that appends, unless it says otherwise. Between appends that
    thread hands units and checkpoints to other threads.
    """

    messages: int
    records_per_s: float
    records_per_cpu_s: float
    append_ns: float
    between_appends_ns: float
    other_threads_ns: float
    rss_bytes: int
    descriptors: int
    flush_behind_bytes: int
    checkpoint_age_s: float
    index_behind_bytes: int
    log_bytes: int
    refused_s: float


def main() -> None:
    arguments = _arguments()
    if not arguments.json:
        say(machine())
    with tempfile.TemporaryDirectory(prefix="store-soak-", dir=arguments.folder) as folder:
        warm_up, parts = trio.run(soak, folder, arguments)
    verdict = judge(parts)
    if arguments.json:
        facts = {"bench": "soak", **environment(), "queues": arguments.queues}
        facts["warm_up"] = asdict(warm_up) if warm_up is not None else None
        say(json.dumps({**facts, "parts": [asdict(part) for part in parts], **verdict}))
    else:
        say(
            f"the last tenth took {verdict['cpu_ratio']:.2f} times the CPU time of the first per "
            f"message, {verdict['wall_ratio']:.2f} times the time: "
            + ("slower" if verdict["is_slower"] else "not slower")
        )
    sys.exit(1 if verdict["is_slower"] else 0)


async def soak(folder: str, arguments: argparse.Namespace) -> tuple[Part | None, list[Part]]:
    """Return the warm-up, if there is one, and the twentieths of what comes after it."""
    store = open_store(
        folder,
        storage=SmallDisk(int(arguments.disk_gb * 1e9)),
        commitlog_file_bytes=arguments.file_bytes,
        disk_check_interval_ms=100,
        cleanup_interval_ms=100,
        cleanup_files_max=100,
    )
    warm_up = None
    parts: list[Part] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        batches = cycle(list(_batches(store, arguments.queues)))
        if arguments.warm_up:
            size = arguments.warm_up
            warm_up = await _part(store, folder, batches, size, size)
            if not arguments.json:
                say("warm-up:")
                _say_part(warm_up)
                say("then:")
        size = arguments.messages // PARTS
        for number in range(PARTS):
            parts.append(await _part(store, folder, batches, size, (number + 1) * size))
            if not arguments.json:
                _say_part(parts[-1])
        nursery.cancel_scope.cancel()
    return warm_up, parts


def judge(parts: list[Part]) -> dict[str, Any]:
    """Compare the last tenth of the messages with the first tenth after the warm-up."""
    first, last = parts[: PARTS // 10], parts[-(PARTS // 10) :]

    # The times of parts of one size add up; their rates do not.
    cpu_ratio = sum(1 / part.records_per_cpu_s for part in last) / sum(
        1 / part.records_per_cpu_s for part in first
    )
    wall_ratio = sum(1 / part.records_per_s for part in last) / sum(
        1 / part.records_per_s for part in first
    )
    return {
        "cpu_ratio": cpu_ratio,
        "wall_ratio": wall_ratio,
        "is_slower": cpu_ratio > SLOWER_MAX,
    }


def _batches(store: MessageStore, queues: int) -> Iterator[list[Message]]:
    tails = [
        store.queue_tail(f"soak-{i // QUEUES_PER_TOPIC}", i % QUEUES_PER_TOPIC)
        for i in range(queues)
    ]
    tails += tails[: -len(tails) % BATCH]
    for begin in range(0, len(tails), BATCH):
        yield [message(tail, BODY) for tail in tails[begin : begin + BATCH]]


async def _part(
    store: MessageStore,
    folder: str,
    batches: Iterator[list[Message]],
    size: int,
    messages: int,
) -> Part:
    refused_s = between = 0.0
    wall, whole, cpu = time.perf_counter(), time.process_time(), time.thread_time()
    for number in range(size // BATCH):
        batch = next(batches)
        while not _append(store, batch):
            between += await _turn(REFUSED_S)
            refused_s += REFUSED_S
        if number % BATCHES_PER_TURN == 0:
            between += await _turn(0.0)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    whole = time.process_time() - whole
    return Part(
        messages=messages,
        records_per_s=size / wall,
        records_per_cpu_s=size / cpu,
        append_ns=(cpu - between) / size * 1e9,
        between_appends_ns=between / size * 1e9,
        other_threads_ns=(whole - cpu) / size * 1e9,
        rss_bytes=_own_memory_bytes(),
        descriptors=len(os.listdir("/proc/self/fd")),
        flush_behind_bytes=store.end_offset - store.durable_offset,
        checkpoint_age_s=time.time() - os.stat(f"{folder}/checkpoint").st_mtime,
        index_behind_bytes=store.end_offset - store.index.indexed_offset,
        log_bytes=store.end_offset - store.begin_offset,
        refused_s=refused_s,
    )


async def _turn(seconds: float) -> float:
    """Let the store's tasks run; return the CPU seconds of this thread that they took."""
    begin = time.thread_time()
    await trio.sleep(seconds)
    return time.thread_time() - begin


def _append(store: MessageStore, batch: list[Message]) -> bool:
    """Append; False if the disk is too full for now."""
    try:
        store.append(batch)
    except StoreFullError:
        return False
    return True


def _own_memory_bytes() -> int:
    """Return the resident bytes of this process that are not of a mapped file."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def _say_part(part: Part) -> None:
    say(
        f"{part.messages:>12,} messages  {part.records_per_s:>11,.0f}/s"
        f"  {part.records_per_cpu_s:>11,.0f} per CPU s"
        f"  (append {part.append_ns:,.0f}, between {part.between_appends_ns:,.0f},"
        f" other threads {part.other_threads_ns:,.0f} ns)"
        f"  RSS without files {part.rss_bytes / 1e6:,.0f} MB  {part.descriptors:,} descriptors"
        f"  behind: flush {part.flush_behind_bytes / 1e6:,.1f} MB,"
        f" checkpoint {part.checkpoint_age_s:.1f} s, index {part.index_behind_bytes:,} B"
        f"  log {part.log_bytes / 1e9:.1f} GB"
        f"  refused for {part.refused_s:.1f} s"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Many messages over many queues.")
    parser.add_argument("--messages", type=int, default=100_000_000)
    parser.add_argument("--warm-up", type=int, default=25_000_000, help="messages before these")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--disk-gb", type=float, default=6.0, help="what the log may take")
    parser.add_argument("--file-bytes", type=int, default=1 << 28, help="size of a CommitLog file")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    return parser.parse_args()


if __name__ == "__main__":
    main()
