"""Statistics of each device's values per minute, from a topic's JSON telemetry to Parquet.

Owns: its query. Must not touch: the internals of the source; its command line
(device_minutes_options).
A message is ``{"value": 21.5, ...}``; its device is the tag. Messages without a number in ``value``
count as messages, not as values. A minute is written once, when the watermark has passed it: the
Parquet folder together with the checkpoint has every minute exactly once, across restarts too. So
with --once the newest minutes stay in the checkpoint until a later run reads newer messages.

    device  minute (UTC)         messages  values  value_min  value_max  value_mean  value_stddev
    dev42   2026-11-21 03:00:00  60        60      19.5       23.0       21.2        0.8
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from motelog.spark.jobs.device_minutes_options import parser
from motelog.spark.jobs.running import readings, run_query, started

NAME = "device-minutes"


def main(argv: Sequence[str], stop: threading.Event) -> int:
    """Run the job until it has read everything (--once), or soon after ``stop`` is set."""
    return run_query(NAME, parser().parse(argv), start, stop)


def start(session: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query that ``arguments`` describe."""
    rows = readings(session, arguments, f"device,payload,{arguments.time}")
    minutes = device_minutes(
        rows.withColumnRenamed(arguments.time, "time"), lateness=arguments.lateness
    )
    return started(minutes, NAME, arguments, "parquet", path=arguments.output)


def device_minutes(rows: DataFrame, *, lateness: str) -> DataFrame:
    """Return statistics per device and minute of ``rows`` (device, time, payload)."""
    value = F.from_json(F.col("payload").cast("string"), "value double")["value"]
    return (
        rows.select("device", "time", value.alias("value"))
        .withWatermark("time", lateness)
        .groupBy(F.window("time", "1 minute"), "device")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.count("value").alias("values"),
            F.min("value").alias("value_min"),
            F.max("value").alias("value_max"),
            F.avg("value").alias("value_mean"),
            F.stddev("value").alias("value_stddev"),
        )
        .select(
            "device",
            F.col("window.start").alias("minute"),
            "messages",
            "values",
            "value_min",
            "value_max",
            "value_mean",
            "value_stddev",
        )
    )
