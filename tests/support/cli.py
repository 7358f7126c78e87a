"""Run ``motelog`` as a user does: a process, its output, its exit status.

Owns: starting and ending that process. Must not touch: anything in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUN_WITHIN_S = 60.0


def motelog(
    *arguments: str,
    input: str | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    within_s: float = RUN_WITHIN_S,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "motelog", *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=within_s,
        cwd=cwd,
        env=_environment(environment),
        check=False,
    )


def motelog_lines(*arguments: str, input: str | None = None) -> list[dict[str, Any]]:
    """Run one command that must succeed and return the JSON objects it prints."""
    result = motelog(*arguments, input=input)
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def start_motelog(*arguments: str) -> subprocess.Popen[str]:
    """Start a command whose output is read while it runs; the caller waits for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "motelog", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(None),
    )


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    # From another folder, -m finds the checkout through this when it is not installed.
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root, **(extra or {})}
