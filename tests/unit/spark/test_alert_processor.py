"""What the processor of device-alerts keeps and winds up, with a state store in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs the [spark] extra")

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from motelog.spark.jobs.alert_rules import Rules
from motelog.spark.jobs.device_alerts import AlertProcessor

KEY = ("dev1",)


class Store:
    """One device's state and timers, as Spark's handle gives them."""

    def __init__(self) -> None:
        self.kept: tuple[Any, ...] | None = None
        self.timers: list[int] = []

    def getValueState(self, name: str, schema: str) -> Store:
        assert len(schema.split(",")) == 6
        return self

    def exists(self) -> bool:
        return self.kept is not None

    def get(self) -> tuple[Any, ...] | None:
        return self.kept

    def update(self, value: tuple[Any, ...]) -> None:
        self.kept = value

    def deleteTimer(self, timer: int) -> None:
        self.timers.remove(timer)

    def registerTimer(self, timer: int) -> None:
        self.timers.append(timer)


def test_rows_wind_the_timer_up_and_it_tells_of_silence() -> None:
    store = Store()
    processor = AlertProcessor(Rules(silence_ms=5000, deviations=6))
    processor.init(cast("Any", store))

    def read(*times_ms: int, now_ms: int) -> list[Row]:
        rows = [Row(time_ms=ms, queue_offset=ms, value=1.0) for ms in times_ms]
        values = TimerValues(now_ms, 0)
        # Spark calls by keyword, and a timer that has expired is gone.
        return list(processor.handleInputRows(key=KEY, rows=iter(rows), timerValues=values))

    assert read(1000, 2000, now_ms=2100) == []
    assert store.timers == [7100]
    assert read(4000, now_ms=4100) == []
    assert store.timers == [9100], "one timer, wound up again"
    store.timers.clear()
    (offline,) = processor.handleExpiredTimer(
        key=KEY, timerValues=TimerValues(9100, 0), expiredTimerInfo=ExpiredTimerInfo(9100)
    )
    assert offline.asDict() == {
        "device": "dev1",
        "kind": "offline",
        "time_ms": 9000,
        "value": None,
        "mean": None,
        "since_ms": 4000,
    }
    (online,) = read(20_000, now_ms=20_100)
    assert store.timers == [25_100]
    assert (online["kind"], online["since_ms"]) == ("online", 4000)
