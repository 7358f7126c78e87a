"""The Locust scenario, headless, for a few seconds against the whole stack."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from motelog.testing import MotelogProcess

pytest.importorskip("paho.mqtt.client")

ROOT = Path(__file__).parents[2]
SCENARIO = "loadtest/scenarios/ramp_publish_subscribe.py"


def run_scenario(host: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", SCENARIO, "--headless", "--host", host]
    # Locust reads configuration files of the home and the current folder, and the environment.
    return subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def requests_by_name(prefix: Path) -> dict[str, tuple[int, int]]:
    """Return (requests, failures) per name from locust's statistics file."""
    with Path(f"{prefix}_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {row["Name"]: (int(row["Request Count"]), int(row["Failure Count"])) for row in rows}


def test_ramp_publishes_and_receives_without_failures(
    motelog_stack: MotelogProcess, tmp_path: Path
) -> None:
    host, port = motelog_stack.mqtt
    prefix = tmp_path / "run"
    options = ["--users=12", "--spawn-rate=12", "--run-time=5s", "--subscribers=2"]
    run = run_scenario(f"{host}:{port}", *options, "--publish-interval-s=0.2", "--csv", str(prefix))
    assert run.returncode == 0, run.stdout + run.stderr
    counts = requests_by_name(prefix)
    names = {
        "connect",
        "publish:1:telemetry/{device}/temp",
        "subscribe:1:telemetry/#",
        "deliver:telemetry/{device}/temp",
        "Aggregated",
    }
    assert set(counts) == names, run.stdout
    assert counts["connect"] == (12, 0)
    assert counts["subscribe:1:telemetry/#"] == (2, 0)
    assert counts["publish:1:telemetry/{device}/temp"][0] >= 10
    assert counts["deliver:telemetry/{device}/temp"][0] >= 10
    assert counts["Aggregated"][1] == 0
    assert "kernels" in run.stdout


def test_broker_that_is_not_there_is_a_failure() -> None:
    run = run_scenario("127.0.0.1:1", "--users=1", "--run-time=2s")
    assert run.returncode != 0
