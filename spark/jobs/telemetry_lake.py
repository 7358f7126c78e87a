"""All messages of a topic, each exactly once, as Parquet in a folder per day.

Owns: its query. Must not touch: the internals of the source; its command line
(telemetry_lake_options).
A producer that sends an unacknowledged message again gives it the same unique id. A message without
one, as published by devices, is identified by its place in the log. Ids are remembered for a while
by the time of reading, which never goes back: by the time of storing, messages of a queue that lags
would be dropped as late.

    output/day=2026-11-21/part-....parquet    day is that of store_time, UTC
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from motelog.core.message import UNIQ_KEY
from motelog.spark.jobs.running import ROCKSDB, readings, run_query, started
from motelog.spark.jobs.telemetry_lake_options import parser

NAME: Final = "telemetry-lake"


def main(argv: Sequence[str], stop: threading.Event) -> int:
    """Run the job until it has read everything (--once), or soon after ``stop`` is set."""
    return run_query(NAME, parser().parse(argv), start, stop, settings=ROCKSDB)


def start(session: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query that ``arguments`` describe."""
    rows = readings(session, arguments, "all", badPayload="null")
    return started(
        lake_rows(rows, within=arguments.within),
        NAME,
        arguments,
        "parquet",
        partition_by="day",
        path=arguments.output,
    )


def lake_rows(rows: DataFrame, *, within: str) -> DataFrame:
    """Return the rows of the lake, each message once."""
    place = F.concat_ws("/", "queue_topic", "broker", "queue_id", "queue_offset")
    return (
        rows.withColumn("message_id", F.coalesce(F.col("properties")[UNIQ_KEY], place))
        .withColumn("day", F.to_date("store_time"))
        .withColumn("read_time", F.current_timestamp())
        .withWatermark("read_time", within)
        .dropDuplicatesWithinWatermark(["message_id"])
        .drop("read_time")
    )
