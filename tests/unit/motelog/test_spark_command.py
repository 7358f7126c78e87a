"""How ``motelog spark run`` ends a job at Ctrl-C; the jobs themselves are tested with Spark."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from motelog.cli.spark import run_until_interrupt


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
