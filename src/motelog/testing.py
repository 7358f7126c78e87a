"""A Motelog stack in a process of its own, for tests of programs that use it.

Owns: starting ``motelog dev`` on free ports, waiting for its ready line, stopping it by its pid.
Must not touch: pytest (motelog.pytest_plugin), other processes.

    with MotelogProcess() as motelog:
        paho_client.connect(*motelog.mqtt)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from motelog.core.addresses import parse_address

READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0
ANY_PORT = "127.0.0.1:0"


class MotelogProcessError(Exception):
    """The process did not become ready or did not stop; the text contains its output."""


class MotelogProcess:
    """``motelog dev`` in a subprocess. Without ``data`` its messages are deleted when it stops.

    ``mqtt``, ``namesrv``, ``broker`` and ``admin`` are (host, port). ``ready`` is the ready line.
    """

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        options: Sequence[str] = (),
        ready_within_s: float = READY_WITHIN_S,
    ) -> None:
        storage = ["--ephemeral"] if data is None else ["--data", str(data)]
        ports = [f"--{port}={ANY_PORT}" for port in ("mqtt", "namesrv", "broker", "admin")]
        # If an option is given twice the later one wins, so a caller may choose a port.
        self._command = [sys.executable, "-m", "motelog", "dev", "--json"]
        self._command += [*storage, *ports, *options]
        self._ready_within_s = ready_within_s
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._output: list[str] = []
        self._answered = threading.Event()
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def mqtt(self) -> tuple[str, int]:
        return self._address("mqtt")

    @property
    def namesrv(self) -> tuple[str, int]:
        return self._address("namesrv")

    @property
    def broker(self) -> tuple[str, int]:
        return self._address("broker")

    @property
    def admin(self) -> tuple[str, int]:
        return self._address("admin")

    def start(self) -> None:
        """Start the process and return when it is ready."""
        assert self._process is None, "already started"
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(os.environ, PYTHONUNBUFFERED="1"),
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, True), daemon=True),
            threading.Thread(target=self._read, args=(process.stderr, False), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self._answered.wait(self._ready_within_s)
        if not self.ready:
            self.kill()
            command = " ".join(self._command)
            raise MotelogProcessError(f"not ready: {command}\n{self.output()}")

    def stop(self, within_s: float = STOPPED_WITHIN_S) -> int:
        """Send SIGTERM, wait, return the exit status; an error, after SIGKILL, if it hangs."""
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(within_s)
        except subprocess.TimeoutExpired as exc:
            self.kill()
            raise MotelogProcessError(f"not stopped in {within_s:g} s\n{self.output()}") from exc
        self._close(process)
        return status

    def kill(self) -> None:
        """Kill the process (SIGKILL): nothing more is written, as in a crash."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait()
        self._close(self._process)

    def output(self) -> str:
        """Return what the process has printed so far, on both streams."""
        return "".join(self._output)

    def _address(self, name: str) -> tuple[str, int]:
        return parse_address(str(self.ready[name]))

    def _read(self, stream: IO[str], holds_ready_line: bool) -> None:
        for line in stream:
            self._output.append(line)
            if holds_ready_line and not self.ready and line.startswith('{"event": "ready"'):
                self.ready = json.loads(line)
                self._answered.set()
        if holds_ready_line:
            self._answered.set()  # end of output: the process has ended

    def _close(self, process: subprocess.Popen[str]) -> None:
        for reader in self._readers:
            reader.join(5)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
