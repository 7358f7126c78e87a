"""The store's bench: every case gives positive figures and floors, in JSON and as a table."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from motelog.loadtest.bench.report import ROOT
from motelog.loadtest.bench.store.__main__ import CASES
from motelog.loadtest.bench.store.figures import Figure
from motelog.loadtest.bench.store.others import start
from motelog.loadtest.bench.store.soak import PARTS, Part, SmallDisk, judge

HAS_COMPILER = shutil.which("cc") is not None or shutil.which("gcc") is not None


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_every_case_gives_figures_beside_floors(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    # A start after a kill takes a log that was really written: seconds, however small.
    names = [name for name in CASES if name != "recovery"]
    done = run(
        "motelog.loadtest.bench.store", "--quick", "--json",
        f"--folder={tmp_path}", f"--output={table}",
        *(f"--case={name}" for name in names),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["commit"]
    assert report["kernels"]
    assert list(report["cases"]) == names
    figures = [figure for case in report["cases"].values() for figure in case]
    # The difference of two times may come out as nothing, in sizes as small as here.
    differences = ("a key's share", "index rebuilt")
    for figure in figures:
        assert figure["value"] > 0 or figure["name"].startswith(differences), figure
        assert figure["floor"] is None or figure["floor"] > 0, figure
    if HAS_COMPILER:
        with_floor = {figure["name"].split(",")[0] for figure in figures if figure["floor"]}
        assert with_floor >= {"append", "group commit", "read", "append and dispatch"}
    text = table.read_text(encoding="utf-8")
    for figure in figures:
        assert f"| {figure['name']} |" in text
    assert sorted(tmp_path.iterdir()) == [table]


def test_a_start_is_allowed_two_seconds_and_one_for_each_gigabyte() -> None:
    found = {"start_s": 3.9, "read_s": 1.3, "bytes": 2e9, "start_cpu_s": 3.0, "records": 1}
    figure = start(found, "start")
    assert (figure.goal, figure.is_met) == (4.0, True)
    assert figure.ratio == pytest.approx(3.0)
    assert start({**found, "start_s": 4.1}, "start").is_met is False
    assert start({**found, "read_s": 0.0}, "start").ratio is None


def test_the_soak_says_how_each_twentieth_went(tmp_path: Path) -> None:
    done = run(
        "motelog.loadtest.bench.store.soak", "--messages=60000", "--warm-up=5000", "--queues=150",
        "--file-bytes=1048576", "--json", f"--folder={tmp_path}",
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr  # 1 only says that it was slower
    report = json.loads(done.stdout)
    assert [part["messages"] for part in report["parts"]] == list(range(3_000, 60_001, 3_000))
    assert report["warm_up"]["messages"] == 5_000
    last = report["parts"][-1]
    assert last["log_bytes"] > 60_000 * 100
    assert last["descriptors"] > 0
    assert last["rss_bytes"] > 0


def test_the_soaks_disk_is_as_full_as_the_log_makes_it(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for number in range(3):
        (tmp_path / "commitlog" / str(number)).write_bytes(bytes(1_000))
    usage = SmallDisk(4_000).disk_usage(str(tmp_path))
    assert (usage.used_percent, usage.free_bytes) == (75.0, 1_000)


def test_the_soak_is_slower_when_its_last_tenth_is() -> None:
    def parts(last_rate: float) -> list[Part]:
        rates = [1_000.0] * (PARTS - 2) + [last_rate] * 2
        return [Part(1, rate, rate, 0, 0, 0, 1, 1, 0, 0.0, 0, 1, 0.0) for rate in rates]

    assert not judge(parts(950.0))["is_slower"]
    assert judge(parts(850.0))["is_slower"]


def test_a_goal_is_a_least_rate_or_a_greatest_time() -> None:
    assert Figure("append", 3.0, "records", goal=2.0).is_met is True
    assert Figure("append", 1.0, "records", goal=2.0).is_met is False
    assert Figure("query", 1.0, "us", goal=2.0, less_is_better=True).is_met is True
    assert Figure("query", 3.0, "us", goal=2.0, less_is_better=True).is_met is False
    assert Figure("query", 3.0, "us").is_met is None
    assert Figure("query", 3.0, "us", floor=2.0).ratio == 1.5
