"""The command line of device-alerts. Owns: its options."""

from __future__ import annotations

import argparse

from motelog.spark.jobs.job_options import JobParser, job_parser, queue_topic, whole


def parser() -> JobParser:
    """Return the parser of the job's options."""
    made = job_parser(
        "device-alerts",
        "Send alerts of silent devices and unusual values to MQTT subscribers.",
    )
    made.add_argument(
        "--alerts",
        type=queue_topic,
        default="alerts",
        help="first level of the alerts' MQTT topic names (default: alerts)",
    )
    made.add_argument(
        "--silence",
        type=whole(1, 30 * 86_400, "of seconds"),
        default=60,
        help="seconds without a message after which a device is offline (default: 60)",
    )
    made.add_argument(
        "--field", default="value", help="field of the JSON body with the number (default: value)"
    )
    made.add_argument(
        "--deviations",
        type=_positive,
        default=6.0,
        help="standard deviations from the moving mean that are unusual (default: 6.0)",
    )
    made.add_argument(
        "--qos", type=whole(0, 2), default=2, help="QoS of the alerts, 0, 1 or 2 (default: 2)"
    )
    return made


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
