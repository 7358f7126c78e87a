"""A server in a process of its own, to be killed as a power cut would.

Owns: ServerProcess: the process, its first line, its end. Must not touch: other processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, Self

STOPPED_WITHIN_S: Final = 30.0


class ServerProcess:
    """A Python module run as a program; ``start`` and the ``with`` block's end are its life."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """``environment`` is what it has beside ours."""
        self._process: subprocess.Popen[str] | None = None
        self._environment = environment or {}

    def start(self) -> None:
        """Start it and return when it serves."""
        raise NotImplementedError

    def _run(self, module: str, *arguments: str, errors: IO[str] | None = None) -> str:
        """Run a module; return the first line that it prints, "" if it ends without one."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **self._environment},
        )
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: nothing is sent or written any more."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> int:
        """SIGTERM, for a module that ends by it: return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOPPED_WITHIN_S)
        finally:
            self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()
