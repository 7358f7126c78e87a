"""Alerts of silent devices and unusual values, for MQTT subscribers.

Owns: its query. Must not touch: the rules (alert_rules), the internals of source and sink; its
command line (device_alerts_options).
Each device has a state and a timer in Spark's state store (RocksDB). The timer uses the time of
Spark's batches, which is the same when a batch is repeated. So a repeated batch raises the same
alerts, which the sink recognises.

    telemetry/dev42/temp {"value": 99}  ->  alerts/dev42/anomaly
    {"device": "dev42", "kind": "anomaly", "time": "2026-11-21T03:00:00Z", "value": 99.0,
     "mean": 21.2}
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import DoubleType, StructField, StructType

from motelog.spark.jobs.alert_rules import Alert, DeviceState, Reading, Rules
from motelog.spark.jobs.device_alerts_options import parser
from motelog.spark.jobs.running import ROCKSDB, readings, run_query, started

NAME: Final = "device-alerts"
_IN_TOPIC_NAME: Final = r"^[^+#\x00]+$"
_STATE_DDL: Final = (
    "last_ms bigint, is_offline boolean, readings int, mean double, variance double,"
    " timer_ms bigint"
)
_ALERT_DDL: Final = (
    "device string, kind string, time_ms bigint, value double, mean double, since_ms bigint"
)


def main(argv: Sequence[str], stop: threading.Event) -> int:
    """Run the job until it has read everything (--once), or soon after ``stop`` is set."""
    arguments = parser().parse(argv)
    # With timers Spark starts one batch after the other. With --once that would never end.
    follow = {"spark.sql.streaming.noDataMicroBatches.enabled": str(not arguments.once).lower()}
    return run_query(NAME, arguments, start, stop, settings=ROCKSDB | follow)


def start(session: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query that ``arguments`` describe."""
    rows = readings(session, arguments, "device,payload,store_time,queue_offset", badPayload="null")
    rules = Rules(silence_ms=arguments.silence * 1000, deviations=arguments.deviations)
    alerts = device_alerts(rows, rules, field=arguments.field)
    messages = alerts.select(
        F.concat_ws("/", F.lit(arguments.alerts), "device", "kind").alias("topic"),
        F.struct(
            "device",
            "kind",
            F.timestamp_millis("time_ms").alias("time"),
            "value",
            "mean",
            F.timestamp_millis("since_ms").alias("since"),
        ).alias("payload"),
        F.lit(arguments.qos).alias("qos"),
        F.lit("application/json").alias("content_type"),
    )
    return started(messages, NAME, arguments, "motelog")


def device_alerts(rows: DataFrame, rules: Rules, *, field: str) -> DataFrame:
    """Return the alerts of rows (device, payload, store_time, queue_offset)."""
    body = StructType([StructField(field, DoubleType())])
    value = F.from_json(F.col("payload").cast("string"), body)[field]
    # Tags of native producers may not be valid in MQTT topic names, so no alert could be sent.
    read = rows.where(
        F.col("device").rlike(_IN_TOPIC_NAME) & F.col("store_time").isNotNull()
    ).select(
        "device", F.unix_millis("store_time").alias("time_ms"), "queue_offset", value.alias("value")
    )
    return read.groupBy("device").transformWithState(
        statefulProcessor=AlertProcessor(rules),
        outputStructType=_ALERT_DDL,
        outputMode="append",
        timeMode="processingTime",
    )


class AlertProcessor(StatefulProcessor):
    """The rules applied to one device's rows and timer; Spark calls its methods by keyword."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("device", _STATE_DDL)

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Check the rows of a device, and restart its timer."""
        found = (Reading(row["time_ms"], row["queue_offset"], row["value"]) for row in rows)
        state, timer_ms = self._kept()
        state, alerts = self._rules.read(state, found)
        if timer_ms:
            self._handle.deleteTimer(timer_ms)
        timer_ms = timerValues.getCurrentProcessingTimeInMs() + self._rules.silence_ms
        self._handle.registerTimer(timer_ms)
        self._state.update((*state, timer_ms))
        yield from _rows(key[0], alerts)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Report that a device is offline."""
        state, alerts = self._rules.expired(self._kept()[0])
        # An expired timer no longer exists.
        self._state.update((*state, 0))
        yield from _rows(key[0], alerts)

    def close(self) -> None:
        """Do nothing: Spark owns the state."""

    def _kept(self) -> tuple[DeviceState, int]:
        """Return a device's state, and when its timer expires, 0 if it has none."""
        kept = self._state.get() if self._state.exists() else None
        return (DeviceState(), 0) if kept is None else (DeviceState._make(kept[:-1]), kept[-1])


def _rows(device: str, alerts: list[Alert]) -> Iterator[Row]:
    for alert in alerts:
        yield Row(device=device, **alert._asdict())
