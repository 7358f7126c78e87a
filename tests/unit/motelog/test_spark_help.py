"""What ``motelog spark`` says where Spark is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
sys.argv = ["motelog", *sys.argv[1:]]
from motelog.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "Run Spark jobs"),
        (["list"], 0, "device-minutes"),
        (["run", "--help"], 0, "motelog spark run"),
        (["run", "device-minutes", "--help"], 0, "usage: motelog spark run device-minutes"),
        (
            ["run", "device-minutes"],
            2,
            "motelog: the following arguments are required: --checkpoint, --output",
        ),
        (
            ["run", "device-minutes", "--interval=x"],
            2,
            "motelog: argument --interval: 'x' is not a number of seconds, 1 to 86400\n"
            "  see: motelog spark run device-minutes --help\n",
        ),
        (["run", "device-minute"], 2, "did you mean device-minutes?"),
        (["run", "device-minutes", "--output=o", "--checkpoint=c"], 1, "[spark]"),
    ],
)
def test_help_and_wrong_use_need_no_spark(arguments: list[str], status: int, text: str) -> None:
    command = [sys.executable, "-c", PROGRAM, "spark", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert text in result.stdout + result.stderr
    assert result.returncode == status
    assert "Traceback" not in result.stderr
