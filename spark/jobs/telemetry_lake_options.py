"""The command line of telemetry-lake. Owns: its options."""

from __future__ import annotations

from motelog.spark.jobs.job_options import JobParser, duration, job_parser


def parser() -> JobParser:
    """Return the parser of the job's options."""
    made = job_parser(
        "telemetry-lake", "All messages of a topic, each exactly once, as Parquet by day."
    )
    made.add_argument("--output", required=True, help="folder of the Parquet files")
    made.add_argument(
        "--within",
        type=duration,
        default="1 hour",
        help="how long a message's id is remembered after reading (default: 1 hour)",
    )
    return made
