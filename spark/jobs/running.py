"""The common part of all jobs: start a session and a query, print its batches, stop on request.

Owns: run_query, the source for the common options. Must not touch: what a job does with rows.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from motelog.spark.errors import SourceError, our_sentence
from motelog.spark.jobs.progress import Progress
from motelog.spark.jobs.record import ProgressRecord, record_path
from motelog.spark.report import BUSIEST, OBSERVED
from motelog.spark.session import start_session

# Keeps batches of a first run over a long log small enough for a laptop.
OFFSETS_PER_TRIGGER: Final = 1_000_000
STOP_LOOK_S: Final = 1
#: Keeps a query's state on disk, and only what is in use in memory.
ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def run_query(
    name: str,
    arguments: argparse.Namespace,
    start: Callable[[SparkSession, argparse.Namespace], StreamingQuery],
    stop: threading.Event,
    *,
    settings: Mapping[str, str] | None = None,
) -> int:
    """Run a query; return when --once has read everything, else soon after ``stop`` is set.

    If the program already has a Spark session, that session is used and left unchanged.
    ``settings`` apply only to the query.
    """
    running = SparkSession.getActiveSession()
    try:
        session = running or start_session(f"motelog {name}", master=arguments.master)
    except SourceError as exc:
        return _failed(name, exc)
    try:
        with _set(session, settings or {}):
            query = start(session, arguments)
        progress = Progress(name, arguments.topic)
        record = ProgressRecord(record_path(arguments.checkpoint))
        progress.begin()
        while not stop.is_set() and not query.awaitTermination(STOP_LOOK_S):
            new = progress.tell(query.recentProgress, reads=query.status["isDataAvailable"])
            record.add(event.json for event in new)
        record.add(event.json for event in progress.tell(query.recentProgress, reads=False))
        if running is None:
            # An interrupted batch is not an error, but Spark would print a page for each task.
            session.sparkContext.setLogLevel("OFF")
        query.stop()
    except (AnalysisException, StreamingQueryException) as exc:
        return _failed(name, exc)
    finally:
        if running is None:
            session.stop()
    return 0


def readings(
    session: SparkSession, arguments: argparse.Namespace, columns: str, **options: Any
) -> DataFrame:
    """Return the rows of the topic, as a stream whose progress counts devices."""
    source = session.readStream.format("motelog").options(**options)
    rows = (
        source.options(**_files(arguments))
        .option("namesrv", arguments.namesrv)
        .option("topic", arguments.topic)
        .option("columns", columns)
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        # A stream may start before the first device has published. With --once that is an error.
        .option("failOnMissingTopic", str(arguments.once).lower())
        .load()
    )
    counted = [
        F.approx_count_distinct("device").alias("devices"),
        F.expr(f"approx_top_k(device, {BUSIEST})").alias("busiest"),
    ]
    if "store_time" in rows.columns:
        counted.append(F.min("store_time").alias("oldest"))
    return rows.observe(OBSERVED, *counted)


def _files(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of source and sink that are file names."""
    files = {"credentials": arguments.credentials, "tls": arguments.tls}
    return {name: file for name, file in files.items() if file is not None}


def started(
    frame: DataFrame,
    name: str,
    arguments: argparse.Namespace,
    kind: str,
    *,
    partition_by: str | None = None,
    **options: Any,
) -> StreamingQuery:
    """Start the query that writes ``frame`` in the format ``kind``, with the chosen trigger."""
    if kind == "motelog":
        options |= {"namesrv": arguments.namesrv, **_files(arguments)}
    writer = (
        frame.writeStream.format(kind)
        .outputMode("append")
        .queryName(name)
        .options(**options)
        .option("checkpointLocation", arguments.checkpoint)
    )
    if partition_by is not None:
        writer = writer.partitionBy(partition_by)
    if arguments.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{arguments.interval} seconds").start()


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings for queries started in the block, which keep them."""
    before = {key: session.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


def _failed(name: str, exc: Exception) -> int:
    sys.stderr.write(f"{name}: {our_sentence(exc)}\n")
    return 1
