"""The command line of device-minutes. Owns: its options."""

from __future__ import annotations

from motelog.spark.jobs.job_options import JobParser, duration, job_parser


def parser() -> JobParser:
    """Return the parser of the job's options."""
    made = job_parser(
        "device-minutes", "Statistics of each device's values per minute, to Parquet."
    )
    made.add_argument("--output", required=True, help="folder of the Parquet files")
    made.add_argument(
        "--lateness",
        type=duration,
        default="2 minutes",
        help="how long to wait for late messages of a minute (default: 2 minutes)",
    )
    made.add_argument(
        "--time",
        choices=("store_time", "born_time"),
        default="store_time",
        help="the broker's clock (default), or the producers': if one producer's clock is fast,"
        " the others' messages count as late",
    )
    return made
