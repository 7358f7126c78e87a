"""The text that every bench of this folder prints around its figures: machine, commit, a table.

Owns: the header that says how figures were made, Markdown tables, running another bench in a
process of its own. Must not touch: what is measured.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from motelog.cli.kernels import COMPILED, kernel_states

ROOT: Final = Path(__file__).resolve().parents[2]

Row = tuple[str, ...]


def commit() -> str:
    """Return the commit of the tree, with ``-dirty`` if it has been changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def environment() -> dict[str, Any]:
    """Return machine, software and commit, for JSON."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "commit": commit(),
        "kernels": kernel_states(),
        "load_average": os.getloadavg()[0],
    }


def machine() -> str:
    """Return machine, software and commit, as one line of text."""
    facts = environment()
    others = [f"{name} {state}" for name, state in facts["kernels"].items() if state != COMPILED]
    kernels = "; ".join(others) or "all kernels compiled"
    return (
        f"{facts['date']}, {facts['machine']}, {facts['processors']} processors, "
        f"{facts['system']}, Python {facts['python']}, commit {facts['commit']}, "
        f"load average at the start {facts['load_average']:.1f}; {kernels}"
    )


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table; the first row is its head."""
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|" + "---|" * len(row)


def run_json(bench: str, *arguments: str, within_s: float = 1200) -> dict[str, Any]:
    """Run another bench of this folder in a process of its own and return its JSON."""
    result = subprocess.run(
        [sys.executable, "-m", f"motelog.loadtest.bench.{bench}", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=within_s,
        check=True,
    )
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Print the progress of a bench on standard error, apart from the figures."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
