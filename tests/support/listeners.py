"""A server with further listeners, as a configuration file has them.

Owns: ListenerServer: the file, the process. Must not touch: other processes.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.server_process import ServerProcess

ROLES = """
[namesrv]
listen = "127.0.0.1:0"
{namesrv}
[broker]
listen = "127.0.0.1:0"
vip = false
{broker}
[broker.store]
directory = "{folder}"
[admin]
listen = "127.0.0.1:0"
"""


class ListenerServer(ServerProcess):
    """``motelog up`` with all roles and the tables of ``listeners``; ends with the block."""

    def __init__(
        self,
        folder: Path,
        listeners: str,
        *,
        gateway: str = "",
        namesrv: str = "",
        broker: str = "",
    ) -> None:
        super().__init__()
        self._config = folder / "motelog.toml"
        self._config.write_text(
            f'[gateway]\nlisten = "127.0.0.1:0"\n{gateway}\n'
            + ROLES.format(folder=folder / "store", namesrv=namesrv, broker=broker)
            + listeners
        )
        self._errors = folder / "motelog.errors"
        #: What it has said of its addresses.
        self.ready: dict[str, Any] = {}
        self.listeners: dict[str, str] = {}

    def start(self) -> None:
        with self._errors.open("a") as errors:
            line = self._run(
                "motelog", "up", "--json", "--config", str(self._config), errors=errors
            )
        assert line, f"the server did not start:\n{self.errors()}"
        self.ready = json.loads(line)
        self.listeners = json.loads(line)["listeners"]

    def port(self, name: str) -> int:
        """Return the port of a listener."""
        port = urlsplit(self.listeners[name]).port
        assert port is not None, self.listeners[name]
        return port

    def stop(self) -> int:
        """SIGTERM: return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(15)

    def errors(self) -> str:
        """Return what it has logged so far."""
        return self._errors.read_text()
