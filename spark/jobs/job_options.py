"""Command lines of jobs; their help works without Spark.

Owns: JobParser, the options of all jobs, option files. Must not touch: pyspark, what a job does.

    # lake.toml, for: motelog spark run telemetry-lake --conf lake.toml
    topic = "telemetry"
    output = "/data/lake"
    checkpoint = "/data/lake-checkpoint"
    once = true
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from motelog.spark.errors import JobUsageError

CONF: Final = "--conf"


class JobParser(argparse.ArgumentParser):
    """Parses a job's options; JobUsageError if they are wrong."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as JobUsageError."""
        raise JobUsageError(message)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options of the command line and of the option file that it names.

        The command line overrides the file. A job must not write to the topic that it reads: it
        would read its own output for ever.
        """
        before = JobParser(add_help=False, allow_abbrev=False)
        before.add_argument(CONF)
        path = before.parse_known_args(argv)[0].conf
        given = [] if path is None or {"-h", "--help"} & set(argv) else self._of_file(path)
        found = self.parse_args([*given, *argv])
        for action in self._actions:
            if action.type is queue_topic and getattr(found, action.dest) == found.topic:
                self.error(
                    f"argument {action.option_strings[0]}: {found.topic!r} is the topic read"
                )
        return found

    def _of_file(self, path: str) -> list[str]:
        try:
            pairs = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise JobUsageError(f"{CONF} {path}: {exc}") from None
        known = {name.lstrip("-") for action in self._actions for name in action.option_strings}
        arguments = []
        for name, value in pairs.items():
            if name not in known - {"help", "conf", "h"}:
                raise JobUsageError(f"{CONF} {path}: {name!r} is not an option of the job")
            if isinstance(value, dict | list):
                raise JobUsageError(
                    f"{CONF} {path}: {name!r} must have one value, a text or a number"
                )
            if value is True:
                arguments.append(f"--{name}")
            elif value is not False:
                arguments.append(f"--{name}={value}")
        return arguments


def job_parser(name: str, description: str) -> JobParser:
    """Return a parser with the common options of all jobs."""
    made = JobParser(prog=f"motelog spark run {name}", description=description, allow_abbrev=False)
    made.add_argument(CONF, metavar="FILE", help="a TOML file with these options")
    made.add_argument("--namesrv", default="127.0.0.1:9876", help="name servers, HOST:PORT;...")
    made.add_argument("--credentials", metavar="FILE", help="file with accessKey and secretKey")
    made.add_argument(
        "--tls", metavar="FILE", help="file of trusted authorities, or RocketMQ's tls.properties"
    )
    made.add_argument(
        "--topic", type=_topic_read, default="telemetry", help="queue topic (default: telemetry)"
    )
    made.add_argument("--checkpoint", required=True, help="folder for the query's progress")
    made.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    trigger = made.add_mutually_exclusive_group()
    trigger.add_argument(
        "--once", action="store_true", help="read the existing messages, then stop"
    )
    trigger.add_argument(
        "--interval",
        type=whole(1, 86_400, "of seconds"),
        default=10,
        help="seconds between batches (default: 10)",
    )
    return made


def whole(low: int, high: int, of_what: str = "") -> Callable[[str], int]:
    """Return an argparse type for a whole number."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and low <= int(text[:9]) <= high):
            number = f"a number {of_what}".rstrip()
            raise argparse.ArgumentTypeError(f"{text!r} is not {number}, {low} to {high}")
        return int(text[:9])

    return parse


def duration(text: str) -> str:
    """Act as the argparse type of a duration in Spark's notation."""
    if not re.fullmatch(r"[0-9]{1,6} (second|minute|hour|day)s?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as '2 minutes'")
    return text


def _topic_read(text: str) -> str:
    """Act as the argparse type of the topic that is read."""
    from motelog.core.topic_names import topic_name_fault

    fault = topic_name_fault(text)
    if fault is not None:
        raise argparse.ArgumentTypeError(fault)
    return text


def queue_topic(text: str) -> str:
    """Act as the argparse type of a topic that devices may subscribe to."""
    from motelog.core.topic_names import is_device_topic

    if not is_device_topic(text):
        fault = "is not a topic: letters, digits, '_' and '-', at most 127"
        raise argparse.ArgumentTypeError(f"{text!r} {fault}")
    return text


def defaults(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return option -> default, ``required`` for those without one."""
    found: dict[str, Any] = {}
    for action in parser._actions:
        name = action.option_strings[-1]
        if name != "--help":
            found[name] = "required" if action.required else action.default
    return found
