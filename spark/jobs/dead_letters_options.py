"""The command line of dead-letters. Owns: its options, the kinds of a field's values."""

from __future__ import annotations

import argparse
from typing import Final

from motelog.spark.jobs.job_options import JobParser, job_parser, queue_topic

KINDS: Final = ("number", "text", "boolean", "object", "list", "any")


def parser() -> JobParser:
    """Return the parser of the job's options."""
    made = job_parser("dead-letters", "Send messages with a malformed body to a separate topic.")
    made.add_argument(
        "--dead", type=queue_topic, help="queue topic of the dead letters (default: TOPIC_dead)"
    )
    made.add_argument(
        "--good",
        type=queue_topic,
        help="queue topic to which good messages are copied (default: none)",
    )
    made.add_argument(
        "--require",
        type=fields,
        default={},
        metavar="NAME:KIND,...",
        help=f"fields that a body must have; KIND is {', '.join(KINDS)} (default: none)",
    )
    return made


def fields(text: str) -> dict[str, str]:
    """Return field -> kind of ``name:kind,...``."""
    found = {}
    for part in text.split(","):
        name, _, kind = part.strip().partition(":")
        if not name or (kind or "any") not in KINDS:
            fault = f"is not NAME:KIND with a KIND of {', '.join(KINDS)}"
            raise argparse.ArgumentTypeError(f"{part!r} {fault}")
        found[name] = kind or "any"
    return found
