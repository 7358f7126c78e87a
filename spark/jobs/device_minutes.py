"""Statistics of each device's values per minute, from a topic's JSON telemetry to Parquet.

Owns: its query. Must not touch: the source's inside; its command line (device_minutes_options).
A message is ``{"value": 21.5, ...}``; its device is the tag. Messages without a number in ``value``
count as messages, not as values. A minute is written once, when the watermark has passed it: the
Parquet folder and the checkpoint together give every minute exactly once, over restarts too. With
--once the newest minutes therefore stay in the checkpoint until a later run sees newer messages.

    device  minute (UTC)         messages  values  value_min  value_max  value_mean  value_stddev
    dev42   2026-11-21 03:00:00  60        60      19.5       23.0       21.2        0.8
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from motelog.spark.errors import SourceError, our_sentence
from motelog.spark.jobs.device_minutes_options import parser
from motelog.spark.jobs.progress import Progress
from motelog.spark.session import start_session

# Batches of a first run over a long log stay small enough for a laptop.
OFFSETS_PER_TRIGGER = 1_000_000
STOP_LOOK_S = 1


def main(argv: Sequence[str], stop: threading.Event) -> int:
    """Run the job; returns when --once has read everything, else soon after ``stop`` is set.

    In a program that has a Spark session already, that one is used and left running.
    """
    arguments = parser().parse_args(argv)
    running = SparkSession.getActiveSession()
    try:
        session = running or start_session("motelog device-minutes", master=arguments.master)
    except SourceError as exc:
        return _failed(exc)
    try:
        query = start(session, arguments)
        progress = Progress("device-minutes", arguments.topic)
        progress.begin()
        while not stop.is_set() and not query.awaitTermination(STOP_LOOK_S):
            progress.tell(query.recentProgress, reads=query.status["isDataAvailable"])
        progress.tell(query.recentProgress, reads=False)
        query.stop()
    except (AnalysisException, StreamingQueryException) as exc:
        return _failed(exc)
    finally:
        if running is None:
            session.stop()
    return 0


def start(session: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query that ``arguments`` describe."""
    source = session.readStream.format("motelog")
    if arguments.credentials is not None:
        source = source.option("credentials", arguments.credentials)
    readings = (
        source.option("namesrv", arguments.namesrv)
        .option("topic", arguments.topic)
        .option("columns", f"device,payload,{arguments.time}")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        # A stream may start before the first device has published. With --once that is an error.
        .option("failOnMissingTopic", str(arguments.once).lower())
        .load()
        .withColumnRenamed(arguments.time, "time")
    )
    writer = (
        device_minutes(readings, lateness=arguments.lateness)
        .writeStream.format("parquet")
        .outputMode("append")
        .queryName("device-minutes")
        .option("path", arguments.output)
        .option("checkpointLocation", arguments.checkpoint)
    )
    if arguments.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{arguments.interval} seconds").start()


def device_minutes(readings: DataFrame, *, lateness: str) -> DataFrame:
    """Return statistics per device and minute of rows (device, time, payload)."""
    value = F.from_json(F.col("payload").cast("string"), "value double")["value"]
    return (
        readings.select("device", "time", value.alias("value"))
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


def _failed(exc: Exception) -> int:
    sys.stderr.write(f"device-minutes: {our_sentence(exc)}\n")
    return 1
