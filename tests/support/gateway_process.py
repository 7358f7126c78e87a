"""A gateway in a process of its own, whose brokers are elsewhere.

Owns: GatewayProcess: ``motelog up`` with the role gateway alone. Must not touch: other processes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from motelog.core.addresses import parse_address

STOPPED_WITHIN_S = 15


class GatewayProcess:
    """A gateway on a free port, with ``settings`` in its section; ends with the ``with`` block."""

    def __init__(self, folder: Path, *, namesrv: str, settings: str = "") -> None:
        self._config = folder / "gateway.toml"
        self._config.write_text(
            'roles = ["gateway"]\n[gateway]\nlisten = "127.0.0.1:0"\n'
            f'namesrv = ["{namesrv}"]\n{settings}\n'
        )
        self._errors = folder / "gateway.errors"
        self.address = ("", 0)
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and return when it serves."""
        command = [sys.executable, "-m", "motelog", "up", "--json", "--config", str(self._config)]
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the gateway did not start:\n{self.errors()}"
        self.address = parse_address(json.loads(line)["gateway"])

    def stop(self) -> int:
        """SIGTERM: return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(STOPPED_WITHIN_S)
        self.kill()
        return status

    def kill(self) -> None:
        """SIGKILL: nothing is sent any more."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def errors(self) -> str:
        """Return what it has logged so far."""
        return self._errors.read_text()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
