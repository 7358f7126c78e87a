"""MQTT clients of other languages, each in a program of its own that takes orders.

Owns: building the programs of tests/integration/clients into build/, once for their sources; the
lines between a test and a program. Skips the test visibly, with the reason, where a toolchain or
what it fetches is not available. Must not touch: expectations.

An order is a JSON object on a line of the program's input, and each names a ``client``:

    connect     port, id; keep: with a session that stays; will: {topic, payload, qos, retain}
    subscribe   filter, qos
    publish     topic, payload, qos, retain; does not wait
    drain       all that was published is acknowledged
    disconnect

An event is one on a line of its output: ``connected`` (present: whether the session was, null where
the client does not say; again after each reconnect of its own), ``subscribed``, ``message`` (topic,
payload, qos, retain), ``drained``, ``disconnected``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.lock_file import file_lock

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "integration" / "clients"
BUILD = ROOT / "build"
BUILT_WITHIN_S = 400
DEADLINE_S = 40.0

GMQTT = "gmqtt==0.8.0"


@cache
def go_program(name: str) -> list[str]:
    """Return the command of a Go program."""
    folder = BUILD / "go"
    # Without a C compiler's work, which is a fifth of it.
    command = ["env", "CGO_ENABLED=0", "go", "build", "-buildvcs=false", "-o", f"{folder}/"]
    _build("go", SOURCES / "go", folder, [*command, "./..."])
    return [str(folder / name)]


@cache
def rumqttc_program() -> list[str]:
    folder = BUILD / "rumqttc"
    command = ["cargo", "build", "--quiet", "--locked", "--target-dir", str(folder)]
    _build("cargo", SOURCES / "rumqttc", folder, command)
    return [str(folder / "debug" / "rumqttc-driver")]


@cache
def hivemq_program() -> list[str]:
    folder = BUILD / "hivemq"
    command = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={folder / 'lib'}")
    _build("mvn", SOURCES / "hivemq", folder, command)
    path = f"{folder / 'classes'}:{folder / 'lib'}/*"
    quick_start = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return ["java", *quick_start, "-cp", path, "HiveMq"]


@cache
def gmqtt_program() -> list[str]:
    """Its wheel has a package ``tests`` besides, which would hide ours: a folder of its own."""
    folder = BUILD / "gmqtt"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--upgrade", "--target", str(folder / "packages"), GMQTT]
    _build(sys.executable, SOURCES / "gmqtt", folder, command)
    shutil.copy(SOURCES / "gmqtt" / "driver.py", folder / "packages")
    return [sys.executable, str(folder / "packages" / "driver.py")]


def _build(tool: str, sources: Path, folder: Path, command: Sequence[str]) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    inputs = [Path(__file__), *(path for path in sources.rglob("*") if path.is_file())]
    stamp = folder / "built"
    with file_lock(folder / "lock"):
        if stamp.exists() and stamp.stat().st_mtime >= max(p.stat().st_mtime for p in inputs):
            return
        done = subprocess.run(
            command, cwd=sources, capture_output=True, text=True, timeout=BUILT_WITHIN_S
        )
        if done.returncode:
            pytest.skip(f"{' '.join(command)} failed: {(done.stdout + done.stderr).strip()[-300:]}")
        stamp.touch()


class Program:
    """A running program; ends with the block."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors: list[str] = []
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [threading.Thread(target=it) for it in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def order(self, client: str, what: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"client": client, "do": what, **fields}) + "\n")
        self._process.stdin.flush()

    def wait(self, client: str, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the events of a client fulfil a condition."""
        events = self._events.setdefault(client, [])
        with self._changed:
            done = self._changed.wait_for(lambda: condition(events), DEADLINE_S)
            assert done, (client, events[-5:], "".join(self._errors)[-2000:])

    def events(self, client: str) -> list[dict[str, Any]]:
        return self._events.setdefault(client, [])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._changed:
                self._events.setdefault(event["client"], []).append(event)
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)


class ProgramClient:
    """One client of a program, under a name of its own; ``client_id`` is what the server knows."""

    def __init__(
        self, program: Program, name: str, *, port: int, client_id: str = "", **how: Any
    ) -> None:
        self._program = program
        self._name = name
        self._program.order(name, "connect", port=port, id=client_id or name, **how)
        self.wait_connected(1)

    def wait_connected(self, times: int) -> bool | None:
        """Wait for that many connections; return what the last CONNACK said of the session."""
        self._program.wait(self._name, lambda _: len(self._all("connected")) >= times)
        present: bool | None = self._all("connected")[-1]["present"]
        return present

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._do("subscribe", "subscribed", filter=topic_filter, qos=qos)

    def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        """Give the order alone."""
        fields = {"topic": topic, "payload": payload, "qos": qos, "retain": retain}
        self._program.order(self._name, "publish", **fields)

    def drain(self) -> None:
        self._do("drain", "drained")

    def disconnect(self) -> None:
        self._do("disconnect", "disconnected")

    @property
    def messages(self) -> list[tuple[str, str, int, bool]]:
        """What it has got so far: (topic, payload, QoS, RETAIN)."""
        return [(m["topic"], m["payload"], m["qos"], m["retain"]) for m in self._all("message")]

    def take(self, count: int) -> list[tuple[str, str, int, bool]]:
        """Wait for this many messages since the start, and return all that came."""
        self._program.wait(self._name, lambda _: len(self._all("message")) >= count)
        return self.messages

    def _do(self, what: str, event: str, **fields: Any) -> None:
        before = len(self._all(event))
        self._program.order(self._name, what, **fields)
        self._program.wait(self._name, lambda _: len(self._all(event)) > before)

    def _all(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self._program.events(self._name) if one["event"] == event]
