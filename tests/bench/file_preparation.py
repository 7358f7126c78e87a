"""Which ways of preparing a CommitLog file help, and which do not?

Usage: python -m tests.bench.file_preparation [--mb 64] [--commits 300] [--rounds 2] [--folder DIR]

A file gets its blocks by fallocate; what the store may do beyond that:
- `touched`: pages faulted in for writing (MADV_POPULATE_WRITE) before the append needs them; the
  store does it in steps ahead of the append, with async flush;
- `populated`: pages faulted in for reading, what MAP_POPULATE does to a file map;
- `zeroed`: zeros written to all of it and synced, so that no sync has to convert extents;
- `touched and synced`: the same by page faults, which leave small folios in the page cache.
For each: small group commits (four 1 KiB messages, then fdatasync), then a whole file of appends of
100 B and 1 KiB bodies. And walks over a full file that is not in the page cache, by advice.
Prints JSON: microseconds per commit, processor nanoseconds per record appended, GB/s.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.records.scan import collect
from motelog.core.store.disk.files import MADV_POPULATE_WRITE, OsStorage
from tests.bench.report import environment, note

HOST = bytes([127, 0, 0, 1, 0, 0, 7, 91])
MADV_POPULATE_READ = 22
BODIES = {"100 B": bytes(100), "1 KiB": bytes(1024)}
ZEROS = bytes(1 << 20)
ADVICE = {"none": None, "sequential": mmap.MADV_SEQUENTIAL, "random": mmap.MADV_RANDOM}


class PreparedFile:
    """A new CommitLog file, mapped, after one of the preparations."""

    def __init__(self, folder: Path, size: int, prepare: Callable[[PreparedFile], None]) -> None:
        self.path = folder / "file"
        self.path.unlink(missing_ok=True)
        OsStorage().create_file(str(self.path), size, sparse=False)
        self.fd = os.open(self.path, os.O_RDWR)
        self.size = size
        self.map = mmap.mmap(self.fd, size)
        prepare(self)

    def populate(self, advice: int) -> None:
        libc = ctypes.CDLL(None)
        first = ctypes.c_char.from_buffer(self.map)
        libc.madvise(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(self.size), advice)

    def zero(self) -> None:
        for at in range(0, self.size, len(ZEROS)):
            os.pwrite(self.fd, ZEROS, at)
        os.fdatasync(self.fd)

    def touch_and_sync(self) -> None:
        self.populate(MADV_POPULATE_WRITE)
        os.fdatasync(self.fd)

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)
        self.path.unlink()


PREPARATIONS: dict[str, Callable[[PreparedFile], None]] = {
    "none": lambda file: None,
    "touched": lambda file: file.populate(MADV_POPULATE_WRITE),
    "populated": lambda file: file.populate(MADV_POPULATE_READ),
    "zeroed": PreparedFile.zero,
    "touched and synced": PreparedFile.touch_and_sync,
}


def main() -> None:
    arguments = _arguments()
    size = arguments.mb << 20
    found: dict[str, dict[str, list[float]]] = {name: {} for name in PREPARATIONS}
    walks: dict[str, list[float]] = {name: [] for name in ADVICE}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        folder = Path(made)
        for round_ in range(arguments.rounds):
            for name, prepare in PREPARATIONS.items():
                for figure, value in _measured(folder, size, prepare, arguments.commits).items():
                    found[name].setdefault(figure, []).append(value)
            for name, gb_per_s in _walks(folder, size).items():
                walks[name].append(gb_per_s)
            note(f"round {round_ + 1}")
    report = {
        "bench": "file_preparation",
        **environment(),
        "preparations": {name: _best(figures, min) for name, figures in found.items()},
        "cold walk GB/s by advice": {name: max(values) for name, values in walks.items()},
    }
    sys.stdout.write(json.dumps(report) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.file_preparation")
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    return parser.parse_args()


def _best(figures: dict[str, list[float]], choose: Callable[[list[float]], float]) -> Any:
    return {figure: round(choose(values), 1) for figure, values in figures.items()}


def _measured(
    folder: Path, size: int, prepare: Callable[[PreparedFile], None], commits: int
) -> dict[str, float]:
    figures = {}
    file = PreparedFile(folder, size, prepare)
    waits = sorted(_commit(file, commits))
    figures["commit_us_p50"] = waits[len(waits) // 2]
    figures["commit_us_p99"] = waits[len(waits) * 99 // 100]
    figures["commit_us_mean"] = sum(waits) / len(waits)
    file.close()
    for name, body in BODIES.items():
        file = PreparedFile(folder, size, prepare)
        begun = time.thread_time_ns()
        records, _ = _fill(file, body)
        figures[f"append_ns_{name}"] = (time.thread_time_ns() - begun) / records
        file.close()
    return figures


def _batch(count: int, body: bytes) -> tuple[list[QueueTail], list[Any]]:
    tails = [QueueTail(b"telemetry", queue_id, 0) for queue_id in range(8)]
    return tails, [(tails[i % 8], body, b"", 0, 1, HOST, 0, 0, 0, 0) for i in range(count)]


def _commit(file: PreparedFile, commits: int) -> list[float]:
    """Return how long each append of a few messages and its sync took, in microseconds."""
    _, batch = _batch(4, BODIES["1 KiB"])
    position = 0
    waits = []
    for _ in range(commits):
        begun = time.perf_counter_ns()
        _, position = encode_batch(file.map, position, file.size, 0, batch, 0, 1, HOST, [], None)
        os.fdatasync(file.fd)
        waits.append((time.perf_counter_ns() - begun) / 1000)
    return waits


def _fill(file: PreparedFile, body: bytes) -> tuple[int, int]:
    """Append until the file is full; return (records, where they end)."""
    tails, batch = _batch(100, body)
    position = records = 0
    while True:
        done, position = encode_batch(file.map, position, file.size, 0, batch, 0, 1, HOST, [], None)
        records += done
        for tail in tails:
            tail.drop(tail.next_offset)
        if done < len(batch):
            return records, position


def _walks(folder: Path, size: int) -> dict[str, float]:
    file = PreparedFile(folder, size, PREPARATIONS["none"])
    _, end = _fill(file, BODIES["100 B"])
    os.fdatasync(file.fd)
    file.map.close()
    found = {}
    for name, advice in ADVICE.items():
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fd, size, access=mmap.ACCESS_READ) as view:
            if advice is not None:
                view.madvise(advice)
            begun = time.perf_counter()
            at = 0
            while at < end:
                _, at, _, _, _ = collect(view, at, end, 0, 65_536, (), lambda text, ms: 0)
            found[name] = end / (time.perf_counter() - begun) / 1e9
    file.map = mmap.mmap(file.fd, size)
    file.close()
    return found


if __name__ == "__main__":
    main()
