"""A gateway in a process of its own, whose brokers are elsewhere.

Owns: GatewayProcess: ``motelog up`` with the role gateway alone. Must not touch: other processes.
"""

from __future__ import annotations

import json
from pathlib import Path

from motelog.core.addresses import parse_address
from tests.support.server_process import ServerProcess


class GatewayProcess(ServerProcess):
    """A gateway on a free port, with ``settings`` in its section; ends with the ``with`` block."""

    def __init__(self, folder: Path, *, namesrv: str, settings: str = "") -> None:
        super().__init__()
        self._config = folder / "gateway.toml"
        self._config.write_text(
            'roles = ["gateway"]\n[gateway]\nlisten = "127.0.0.1:0"\n'
            f'namesrv = ["{namesrv}"]\n{settings}\n'
        )
        self._errors = folder / "gateway.errors"
        self._errors.touch()
        self.address = ("", 0)

    def start(self) -> None:
        """Start it and return when it serves."""
        with self._errors.open("a") as errors:
            line = self._run(
                "motelog", "up", "--json", "--config", str(self._config), errors=errors
            )
        assert line, f"the gateway did not start:\n{self.errors()}"
        self.address = parse_address(json.loads(line)["gateway"])

    def errors(self) -> str:
        """Return what it has logged so far."""
        return self._errors.read_text()
