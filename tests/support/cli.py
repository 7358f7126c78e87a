"""Run ``motelog`` as a user does: a process, its output, its exit status.

Owns: starting and ending that process, and running a command in this one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from motelog.cli.main import main

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
    """Run one command that must succeed and return the JSON objects it prints.

    In this process, unless it reads ``input``: a command reads the descriptor.
    """
    run = motelog_here if input is None else partial(motelog, input=input)
    result = run(*arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def motelog_here(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end in this process, which takes a fraction of the time."""
    out, err = _text_file(), _text_file()
    with (
        mock.patch.object(sys, "argv", ["motelog", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        mock.patch.dict(os.environ, environment or {}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exc:
            status = int(exc.code or 0)
    return subprocess.CompletedProcess(arguments, status, _written(out), _written(err))


def _text_file() -> io.TextIOWrapper:
    """Return a file in memory that takes text and, as standard output does, bytes."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)


def _written(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def started_motelog(
    *arguments: str, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Run a command whose output is read meanwhile; what has not ended by then is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "motelog", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(None),
        preexec_fn=_interruptible,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _interruptible() -> None:
    """Hear SIGINT also below a shell that has put the tests into the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    # From another folder, -m finds the checkout through this when it is not installed.
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root, **(extra or {})}
