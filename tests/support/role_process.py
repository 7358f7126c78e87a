"""One role as a process of the command line.

Owns: its configuration file and log. Must not touch: what the role does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.support.server_process import ServerProcess


class RoleProcess(ServerProcess):
    """``motelog up`` with one role; ``ready`` is its line. Ends with the ``with`` block."""

    def __init__(
        self,
        folder: Path,
        role: str,
        sections: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(environment)
        self.ready: dict[str, str] = {}
        self._config = folder / f"{role}.toml"
        self._config.write_text(f'roles = ["{role}"]\n{sections}')
        self._errors = folder / f"{role}.errors"

    def start(self) -> None:
        with self._errors.open("w") as errors:
            line = self._run(
                "motelog", "up", "--json", "--config", str(self._config), errors=errors
            )
        assert line, f"it did not start:\n{self.errors()}"
        self.ready = json.loads(line)

    def errors(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        if self._process is not None:
            super().kill()
