"""The shared part of the store's cases: a figure, its options, an open store, the C floor.

Owns: Figure, Options, timing by CPU time, the compiled ``floor.c``. Must not touch: which cases
there are, how figures are printed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from motelog.core.clock import SystemClock
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import Storage
from motelog.core.store.message_store import MessageStore

HOST: Final = bytes([127, 0, 0, 1, 0, 0, 7, 91])
MQTT: Final = b"mqttRealTopic\x01telemetry/dev42/temp\x02TAGS\x01dev42\x02qosLevel\x011\x02"
BATCH: Final = 100
TOPIC: Final = "telemetry"

Message = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """How much of a case to run, and where; ``quick`` only shows that it works."""

    folder: Path
    rounds: int
    floor: Floor | None
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the store beside the bare floor of the same bytes in the same run.

    ``goal`` is a least rate or, if ``less_is_better``, a greatest time.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    goal: float | None = None
    less_is_better: bool = False
    details: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Return how many times the floor this is."""
        return self.value / self.floor if self.floor else None

    @property
    def is_met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.less_is_better else self.value >= self.goal


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of this thread, and seconds on the wall."""

    cpu_s: float
    wall_s: float


def timed(work: Callable[[], object], times: int = 1) -> Spent:
    """Return the time of ``times`` calls."""
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(times):
        work()
    return Spent(time.thread_time() - cpu, time.perf_counter() - wall)


def percentile(sorted_values: list[float], percent: int) -> float:
    return sorted_values[min(len(sorted_values) * percent // 100, len(sorted_values) - 1)]


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this process on one processor: threads that help share it too."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(processors)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


@contextmanager
def store_folder(options: Options) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="store-bench-", dir=options.folder) as folder:
        yield folder


def log_file_bytes(options: Options) -> int:
    """Return the size of CommitLog files: small ones if little is appended."""
    return 1 << 22 if options.quick else 1 << 28


def open_store(folder: str, *, storage: Storage | None = None, **changes: Any) -> MessageStore:
    """Return an open store that a full disk does not stop."""
    limits = {"disk_used_percent_max": 100, "disk_free_bytes_min": 0}
    config = StoreConfig(directory=folder, **{**limits, **changes})
    store = MessageStore(config, store_host=HOST, clock=SystemClock(), storage=storage)
    store.open()
    return store


def message(tail: Any, body: bytes, properties: bytes = b"") -> Message:
    return (tail, body, properties, 0, 1, HOST, 0, 0, 0, 0)


def log_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder, "commitlog").iterdir())


class Floor:
    """``floor.c``, compiled for this run: the same bytes without other work."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __call__(self, *arguments: object) -> dict[str, float]:
        done = subprocess.run(
            [self._program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        )
        answer: dict[str, float] = json.loads(done.stdout)
        return answer


@contextmanager
def compiled_floor() -> Iterator[Floor | None]:
    """Yield the floor, or None if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="store-floor-") as folder:
        program = f"{folder}/floor"
        source = str(Path(__file__).with_name("floor.c"))
        subprocess.run([compiler, "-O2", "-o", program, source], check=True, timeout=120)
        yield Floor(program)
