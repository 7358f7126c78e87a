"""The results of a load run: one table, with machine, commit and kernels.

Owns: Row, the text of the summary. Must not touch: locust's own report files, the load itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_PERCENTILES: Final = (0.5, 0.95, 0.99)


class Entry(Protocol):
    """The used part of a locust statistics entry."""

    name: str
    num_requests: int
    num_failures: int

    @property
    def total_rps(self) -> float: ...

    def get_response_time_percentile(self, percent: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of request; times are milliseconds."""

    name: str
    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


def row_of(entry: Entry) -> Row:
    """Return the row of one statistics entry."""
    p50_ms, p95_ms, p99_ms = (
        # There is no percentile without a request.
        entry.get_response_time_percentile(percent) if entry.num_requests else 0.0
        for percent in _PERCENTILES
    )
    return Row(
        entry.name,
        entry.num_requests,
        entry.num_failures,
        entry.total_rps,
        p50_ms,
        p95_ms,
        p99_ms,
    )


def summary(rows: Iterable[Row]) -> str:
    """Return the whole report as text that ends with a newline."""
    rows = sorted(rows, key=lambda row: row.name)
    width = max([len("request"), *(len(row.name) for row in rows)])
    heads = ("requests", "failures", "per s", "p50 ms", "p95 ms", "p99 ms")
    lines = [machine(), f"{'request':<{width}}" + "".join(f"{head:>10}" for head in heads)]
    lines += [
        f"{row.name:<{width}}{row.requests:>10}{row.failures:>10}{row.per_s:>10.1f}"
        f"{row.p50_ms:>10.1f}{row.p95_ms:>10.1f}{row.p99_ms:>10.1f}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the line that describes machine and software."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, commit {_commit()}"
    )


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "rev-parse", "--short", "HEAD"]
    found = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
