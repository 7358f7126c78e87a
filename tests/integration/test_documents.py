"""README.md and docs/quickstart.md as a reader meets them: each block pasted, in their order.

What the blocks name by default ports is answered by a stack on free ports: ``motelog`` and
mosquitto's clients are found as scripts that add the addresses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from motelog import Message, SyncProducer
from motelog.testing import MotelogProcess
from tests.support.cli import motelog

ROOT = Path(__file__).resolve().parents[2]
BLOCK_WITHIN_S = 60.0

# These set a machine up, and the tests run on one that is.
SETUP = re.compile(r"make |\. \.venv/bin/activate|pip install ")
# It runs until Ctrl-C and writes after minutes: tests/integration/spark/test_device_minutes.py.
TESTED_ELSEWHERE = re.compile(r"motelog spark run device-minutes --output")
ENDLESS = re.compile(r"motelog sub (?!.*(-C|--count))[^&]*$")

# The addresses of the stack, for a command of each program.
MOTELOG = """#!/bin/sh
case "$1" in
    pub|sub) command=$1; shift; set -- "$command" --to {mqtt} "$@" ;;
    produce|consume) set -- "$@" --namesrv {namesrv} ;;
    # It finds what a machine lacks; this test is about the words that call it.
    doctor) {python} -m motelog doctor || true; exit 0 ;;
esac
exec {python} -m motelog "$@"
"""
MOSQUITTO = """#!/bin/sh
exec {program} -h {host} -p {port} "$@"
"""


class Reader:
    """Someone who pastes the blocks of a document into terminals."""

    def __init__(self, stack: MotelogProcess, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._programs = folder / "programs"
        self._programs.mkdir()
        self.others: list[subprocess.Popen[str]] = []
        self._script("motelog", MOTELOG.format(python=sys.executable, **stack.ready))
        host, port = stack.mqtt
        program = shutil.which("mosquitto_pub") or "true"
        self._script("mosquitto_pub", MOSQUITTO.format(program=program, host=host, port=port))
        path = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    @property
    def namesrv(self) -> str:
        return str(self._stack.ready["namesrv"])

    def read(self, document: str) -> Iterator[tuple[str, str]]:
        """Yield each block that was pasted and what it printed."""
        text = (ROOT / document).read_text(encoding="utf-8")
        for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
            if kind == "toml":
                (self._folder / "motelog.toml").write_text(block, encoding="utf-8")
            elif kind == "python":
                if "motelog.spark" not in block:  # tests/integration/spark/test_quickstart.py
                    yield block, self._run([sys.executable, "-c", self._addressed(block)])
            elif kind == "sh":
                lines = [line for line in block.splitlines() if _is_pasted(line)]
                if lines and ENDLESS.match(lines[-1]):
                    self._open_terminal("\n".join(lines))
                elif lines:
                    yield block, self._run(["bash", "-e", "-c", self._addressed("\n".join(lines))])

    def seen_by_subscriber(self, *, until: str) -> list[str]:
        """Return the lines that the subscriber in the other terminal has printed, up to this one.

        What a producer has sent when its program ends may still be on its way to it.
        """
        (other,) = self.others
        assert other.stdout is not None
        seen: list[str] = []
        deadline = Timer(20, other.kill)
        deadline.start()
        for line in other.stdout:
            seen.append(line.rstrip("\n"))
            if seen[-1] == until:
                break
        deadline.cancel()
        return seen

    def close(self) -> None:
        for other in self.others:
            other.kill()
            other.communicate()

    def _open_terminal(self, command: str) -> None:
        # "exec", so that the process is the subscriber and not its shell.
        other = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.others.append(other)
        assert other.stderr is not None
        assert other.stderr.readline().startswith("subscribed to ")

    def _run(self, command: list[str]) -> str:
        result = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_WITHIN_S,
            check=False,
        )
        assert result.returncode == 0, f"{command[-1]}\n{result.stdout}{result.stderr}"
        return result.stdout

    def _addressed(self, block: str) -> str:
        host, port = self._stack.mqtt
        block = block.replace("127.0.0.1:9876", self._stack.ready["namesrv"])
        block = block.replace("127.0.0.1:8080", self._stack.ready["admin"])
        return block.replace('"127.0.0.1", 1883', f'"{host}", {port}')

    def _script(self, name: str, text: str) -> None:
        path = self._programs / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


def _is_pasted(line: str) -> bool:
    return not (SETUP.match(line) or TESTED_ELSEWHERE.match(line))


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    with MotelogProcess() as stack:
        found = Reader(stack, folder)
        try:
            yield found
        finally:
            found.close()


def test_readme_as_it_is_pasted(tmp_path: Path) -> None:
    with reader(tmp_path) as someone:
        # What others have sent before, and not as JSON.
        with SyncProducer(namesrv=someone.namesrv) as producer:
            producer.send(Message("telemetry", b"warm", tags="dev7"))
        printed = dict(someone.read("README.md"))
        (program,) = (block for block in printed if "Producer(" in block)
        lines = printed[program].splitlines()
        assert sorted(lines) == [
            "telemetry/dev42 21.5",
            "telemetry/dev42/temperature 21.5",
            *(["telemetry/dev42/temperature 22"] if shutil.which("mosquitto_pub") else []),
            "telemetry/dev7 warm",
        ]
        last = "telemetry/dev42 21.5"
        seen = someone.seen_by_subscriber(until=last)
        assert (seen[0], seen[-1]) == ("telemetry/dev42/temperature 21.5", last)


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is missing")
def test_quickstart_as_it_is_pasted(tmp_path: Path) -> None:
    with reader(tmp_path) as someone:
        printed = dict(someone.read("docs/quickstart.md"))

        def output_of(words: str) -> str:
            (found,) = (text for block, text in printed.items() if words in block)
            return found

        assert output_of("--since 1h -C 1") == "telemetry/dev42/temperature 21.5\n"
        values = ("21.5", "21.7", "21.9")
        lines = output_of("with SyncPullConsumer").splitlines()
        assert sorted(lines) == [f"telemetry/dev42/temperature dev42 {one}" for one in values]
        lines = output_of("AsyncioProducer").splitlines()
        assert lines[-1] == "dev0 b'report'"
        assert sorted(lines[:-1]) == [f"dev{n} b'restart'" for n in range(3)]
        assert "commands/dev42 restart\n" in output_of("motelog produce")
        assert "ready" in output_of("curl -s http://127.0.0.1:8080/health/ready")
        assert "valid" in output_of("motelog config check")
        told = [f"telemetry/dev42/temperature {one}" for one in values]
        assert someone.seen_by_subscriber(until=told[-1]) == told


def test_quickstart_configurations_are_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        path = tmp_path / "motelog.toml"
        path.write_text(block, encoding="utf-8")
        assert motelog("config", "check", str(path)).returncode == 0, block
