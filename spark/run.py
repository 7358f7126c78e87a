"""The included jobs by name; ``motelog spark run NAME`` calls ``run``.

Owns: the list of jobs. Must not touch: pyspark; a job is imported when it runs.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Final

from motelog.spark.errors import SourceError
from motelog.spark.jobs.job_options import JobParser

# Name -> (module with ``main(argv, stop) -> int``, one line for listings). Its options are in the
# module of that name plus ``_options``, with ``parser()``.
JOBS: Final[dict[str, tuple[str, str]]] = {
    "device-minutes": (
        "motelog.spark.jobs.device_minutes",
        "statistics of each device's values per minute, to Parquet",
    ),
    "telemetry-lake": (
        "motelog.spark.jobs.telemetry_lake",
        "all messages, each exactly once, to Parquet by day",
    ),
    "device-alerts": (
        "motelog.spark.jobs.device_alerts",
        "alerts of silent devices and unusual values, to MQTT subscribers",
    ),
    "dead-letters": (
        "motelog.spark.jobs.dead_letters",
        "messages with a malformed body, to a separate topic",
    ),
}


class UnknownJobError(SourceError):
    """There is no job with this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no Spark job {name!r}; the jobs are: {', '.join(JOBS)}")


def run(name: str, argv: Sequence[str], stop: threading.Event | None = None) -> int:
    """Run a job with its own arguments until it ends or ``stop`` is set; return its exit status."""
    if name not in JOBS:
        raise UnknownJobError(name)
    module = importlib.import_module(JOBS[name][0])
    status = module.main(list(argv), stop or threading.Event())
    assert isinstance(status, int)
    return status


def parser(name: str) -> JobParser:
    """Return the parser of a job's options; the job's dependencies need not be installed."""
    if name not in JOBS:
        raise UnknownJobError(name)
    made = importlib.import_module(f"{JOBS[name][0]}_options").parser()
    assert isinstance(made, JobParser)
    return made
