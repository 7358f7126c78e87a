"""The command line of device-minutes, which can be shown where Spark is not installed.

Owns: its options. Must not touch: pyspark, the query.
"""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from motelog.spark.errors import JobUsageError


class JobParser(argparse.ArgumentParser):
    """Reads a job's options; JobUsageError if they are wrong."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say."""
        raise JobUsageError(message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the job's options."""
    made = JobParser(
        prog="motelog spark run device-minutes",
        description="Statistics of each device's values per minute, to Parquet.",
    )
    made.add_argument("--namesrv", default="127.0.0.1:9876", help="name servers, HOST:PORT;...")
    made.add_argument("--credentials", metavar="FILE", help="accessKey and secretKey")
    made.add_argument("--topic", default="telemetry", help="queue topic (default: telemetry)")
    made.add_argument("--output", required=True, help="folder of the Parquet files")
    made.add_argument("--checkpoint", required=True, help="folder of the query's progress")
    made.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    trigger = made.add_mutually_exclusive_group()
    trigger.add_argument("--once", action="store_true", help="read what is there, then end")
    trigger.add_argument(
        "--interval", type=_seconds, default=10, help="seconds from batch to batch (default: 10)"
    )
    made.add_argument(
        "--lateness",
        type=_duration,
        default="2 minutes",
        help="how long a minute waits for late messages (default: 2 minutes)",
    )
    made.add_argument(
        "--time",
        choices=("store_time", "born_time"),
        default="store_time",
        help="the broker's clock (default), or the producer's: one that runs ahead makes the"
        " others' messages late",
    )
    return made


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 86_400):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 1 to 86400")
    return int(text[:6])


def _duration(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6} (second|minute|hour|day)s?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as '2 minutes'")
    return text
