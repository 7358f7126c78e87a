"""How ``motelog spark run`` ends a job at Ctrl-C, and what ``report`` writes.

The jobs themselves are tested with Spark.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from motelog.cli.output import CliError
from motelog.cli.spark import report, run_until_interrupt

RECORDED = Path(__file__).resolve().parents[2] / "vectors/spark/progress.jsonl"


def test_interrupt_stops_the_job_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stopped: list[bool] = []

    def job(stop: threading.Event) -> int:
        os.kill(os.getpid(), signal.SIGINT)  # the main thread gets it, wherever it is sent from
        stopped.append(stop.wait(10))
        return 0

    assert run_until_interrupt(job, "minutes") == 130
    assert stopped == [True], "the job has ended by itself"
    assert capsys.readouterr().err == "motelog: minutes is interrupted and stops\n"


def test_status_and_error_of_a_job_are_those_of_the_command() -> None:
    def failing(stop: threading.Event) -> int:
        raise ValueError("no")

    assert run_until_interrupt(lambda stop: 3, "minutes") == 3
    with pytest.raises(ValueError, match="no"):
        run_until_interrupt(failing, "minutes")


def test_report_writes_a_page_or_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.html"
    report(RECORDED, output)
    assert capsys.readouterr().out == f"{output}: 5 batches of telemetry-lake\n"
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")
    output.unlink()
    report(RECORDED, output, json=True)
    assert json.loads(capsys.readouterr().out)["batches"] == 5
    assert not output.exists()
    with pytest.raises(CliError, match="no batch of a job was recorded"):
        report(tmp_path, output)
    with pytest.raises(CliError, match="No such file or directory"):
        report(RECORDED, tmp_path / "none" / "report.html")
