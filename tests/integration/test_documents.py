"""The programs in README.md and docs/quickstart.md do what the text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from motelog.testing import MotelogProcess
from tests.support.cli import motelog, motelog_lines

ROOT = Path(__file__).resolve().parents[2]


def program(document: str, holding: str, stack: MotelogProcess) -> str:
    """Return the Python block that holds a word, with the stack's addresses in it."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (found,) = (block for block in blocks if holding in block)
    host, port = stack.mqtt
    found = found.replace("127.0.0.1:9876", stack.ready["namesrv"])
    return found.replace('"127.0.0.1", 1883', f'"{host}", {port}')


def run(source: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_readme_sends_and_reads() -> None:
    with MotelogProcess() as stack:
        # As the text has it: the topic exists since the first messages above.
        pub = ["pub", "-t", "telemetry/dev42/temperature", "-m", "21.5", "--json"]
        motelog_lines(*pub, "--to", stack.ready["mqtt"])
        lines = run(program("README.md", "Producer(", stack)).splitlines()
    assert set(lines) == {"dev42 b'21.5'"}


def test_quickstart_publishes_with_paho_and_reads_in_a_program() -> None:
    with MotelogProcess() as stack:
        run(program("docs/quickstart.md", "paho", stack))
        reader = program("docs/quickstart.md", "SyncPullConsumer", stack)
        assert run(reader) == "telemetry/dev42/temperature b'21.9'\n"
        assert run(reader) == "", "the group has committed"


def test_quickstart_configurations_are_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        path = tmp_path / "motelog.toml"
        path.write_text(block, encoding="utf-8")
        assert motelog("config", "check", str(path)).returncode == 0, block
