"""The Locust scenario, headless, for a few seconds against the whole stack."""

from __future__ import annotations

import contextlib
import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from motelog.testing import MotelogProcess

pytest.importorskip("paho.mqtt.client")

ROOT = Path(__file__).parents[2]
SCENARIO = "loadtest/scenarios/ramp_publish_subscribe.py"


# Locust's tables and its progress go to stderr; without them only warnings and faults do.
LOCUST = [sys.executable, "-m", "locust", "-f", SCENARIO, "--headless", "--skip-log-setup"]
PUBLISH = "publish:1:telemetry/{device}/temp"
SUBSCRIBE = "subscribe:1:telemetry/#"
DELIVER = "deliver:telemetry/{device}/temp"
REASONS = {"3.1.1": "connection lost", "5": "Server shutting down"}
WITHIN_S = 60.0


def run_scenario(host: str, *options: str) -> subprocess.CompletedProcess[str]:
    # Locust reads configuration files of the home and the current folder, and the environment.
    return subprocess.run(
        [*LOCUST, "--host", host, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


class Run:
    """A scenario that goes on until it is told to end; its figures are those of ``--csv``."""

    def __init__(self, prefix: Path, *options: str) -> None:
        self._prefix = prefix
        self._process = subprocess.Popen(
            [*LOCUST, "--csv", str(prefix), *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, **least: int) -> dict[str, tuple[int, int]]:
        """Return the figures as soon as so many requests of these names have succeeded."""
        names = {"connect": "connect", "publish": PUBLISH, "deliver": DELIVER}
        give_up_at = time.monotonic() + WITHIN_S
        counts: dict[str, tuple[int, int]] = {}
        while time.monotonic() < give_up_at and self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError, TypeError):  # it is being written
                counts = requests_by_name(self._prefix)
            done = {name: succeeded(counts, names[name]) for name in least}
            if all(done[name] >= count for name, count in least.items()):
                return counts
            time.sleep(0.1)
        self._process.kill()
        raise AssertionError(f"{least} of {counts}\n{self._process.communicate()}")

    def end(self) -> tuple[int, dict[str, tuple[int, int]], str, str]:
        """Return status, figures, stdout and stderr."""
        self._process.terminate()
        out, err = self._process.communicate(timeout=WITHIN_S)
        return self._process.returncode, requests_by_name(self._prefix), out, err

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def running(host: str, prefix: Path, *options: str) -> Iterator[Run]:
    run = Run(prefix, "--host", host, "--users=6", "--spawn-rate=6", *options)
    try:
        yield run
    finally:
        run.kill()


def succeeded(counts: dict[str, tuple[int, int]], name: str) -> int:
    requests, failures = counts.get(name, (0, 0))
    return requests - failures


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
    assert run.stderr == ""
    counts = requests_by_name(prefix)
    names = {
        "connect",
        PUBLISH,
        SUBSCRIBE,
        DELIVER,
        "Aggregated",
    }
    assert set(counts) == names, run.stdout
    assert counts["connect"] == (12, 0)
    assert counts[SUBSCRIBE] == (2, 0)
    assert counts[PUBLISH][0] >= 10
    assert counts[DELIVER][0] >= 10
    assert counts["Aggregated"][1] == 0
    assert "Python" in run.stdout


def test_broker_that_is_not_there_is_a_failure() -> None:
    run = run_scenario("127.0.0.1:1", "--users=1", "--run-time=2s")
    assert run.returncode != 0


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_users_come_back_after_a_restart_of_the_server(version: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with MotelogProcess(data=data) as server:
        address = f"127.0.0.1:{server.mqtt[1]}"
        options = ["--publish-interval-s=0.2", f"--mqtt-version={version}"]
        with running(address, tmp_path / "run", *options) as run:
            run.wait_for(connect=6, publish=10, deliver=10)
            server.stop()
            with MotelogProcess(data=data, options=[f"--mqtt={address}"]):
                counts = run.wait_for(connect=12)
                more = {
                    "publish": succeeded(counts, PUBLISH) + 20,
                    "deliver": succeeded(counts, DELIVER) + 20,
                }
                run.wait_for(**more)
                status, counts, out, err = run.end()
    assert err == ""
    assert status == 1  # a lost connection is a failure
    lost = {name: count for name, count in counts.items() if name.startswith("disconnect")}
    assert lost == {f"disconnect:{REASONS[version]}": (6, 6)}, out
    assert f"disconnect:{REASONS[version]}" in out
    assert counts[SUBSCRIBE] == (2, 0)  # again on the new connection
    assert counts[PUBLISH][1] == 0


@pytest.mark.parametrize(
    ("version", "reason"), [("3.1.1", "connection lost"), ("5", "Administrative action")]
)
def test_users_whom_the_server_disconnects_are_counted_and_come_back(
    version: str, reason: str, tmp_path: Path
) -> None:
    options = ["--publish-interval-s=0.2", f"--mqtt-version={version}"]
    with MotelogProcess() as server, contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{server.mqtt[1]}"
        run = stack.enter_context(running(address, tmp_path / "run", *options))
        run.wait_for(connect=6, publish=10, deliver=10)
        assert end_sessions(server) == 6
        counts = run.wait_for(connect=12)
        run.wait_for(
            publish=succeeded(counts, PUBLISH) + 20, deliver=succeeded(counts, DELIVER) + 20
        )
        _, counts, out, err = run.end()
    assert err == ""
    lost = {name: count for name, count in counts.items() if name.startswith("disconnect")}
    assert lost == {f"disconnect:{reason}": (6, 6)}, out


def end_sessions(server: MotelogProcess) -> int:
    """End the session of each client of the scenario, as an operator does; return how many."""
    address = f"http://{server.admin[0]}:{server.admin[1]}/api/v1/sessions"
    names = [one["client_id"] for one in httpx.get(address).json()["sessions"]]
    headers = {"X-Motelog": "test"}
    for name in names:
        answer = httpx.delete(f"{address}/session", params={"client_id": name}, headers=headers)
        assert answer.status_code == 200, answer.text
    return len(names)
