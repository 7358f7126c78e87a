"""The job device-minutes on a running stack: every minute of every device once, over a restart."""

from __future__ import annotations

import statistics
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message

pytestmark = pytest.mark.spark

START_S = 1_767_225_600  # 2026-01-01T00:00:00Z
TOPIC = "spark_minutes"
Key = tuple[str, datetime]


def speak(
    producer: SyncProducer, monkeypatch: pytest.MonkeyPatch, minutes: range
) -> dict[Key, list[float]]:
    """Let three devices send six values in each minute; return them by device and minute."""
    said: dict[Key, list[float]] = defaultdict(list)
    for minute in minutes:
        for second in range(0, 60, 10):
            born_s = START_S + 60 * minute + second
            # The time that a producer puts into its messages.
            monkeypatch.setattr(
                "motelog.bridge.producer.time", SimpleNamespace(time_ns=lambda s=born_s: s * 10**9)
            )
            messages = []
            for device in ("dev0", "dev1", "dev2"):
                value = minute * 10 + second / 10 + int(device[3:])
                said[device, datetime.fromtimestamp(START_S + 60 * minute, UTC)].append(value)
                messages.append(Message(TOPIC, b'{"value": %r}' % value, tags=device))
            if second == 0:
                messages.append(Message(TOPIC, b"\xff no JSON", tags="dev0"))
            producer.send_batch(messages)
    return said


def expected(said: dict[Key, list[float]]) -> dict[Key, tuple[Any, ...]]:
    return {
        key: (
            len(values) + (key[0] == "dev0"),
            len(values),
            min(values),
            max(values),
            pytest.approx(statistics.mean(values)),
            pytest.approx(statistics.stdev(values)),
        )
        for key, values in said.items()
    }


def test_minutes_are_written_once_over_a_restart(
    spark_session: Any,
    producer: SyncProducer,
    namesrv: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from motelog.spark.run import run

    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"
    argv = ["--namesrv", namesrv, "--topic", TOPIC, "--output", str(output)]
    argv += ["--checkpoint", str(checkpoint), "--once", "--time", "born_time"]
    argv += ["--lateness", "0 seconds"]

    def written() -> list[tuple[Key, tuple[Any, ...]]]:
        rows = spark_session.read.parquet(str(output)).collect()
        return [((row[0], row[1].astimezone(UTC)), tuple(row[2:])) for row in rows]

    said = speak(producer, monkeypatch, range(3))
    assert run("device-minutes", argv) == 0
    # The newest minute may still get messages, so it waits in the checkpoint.
    closed = {key: values for key, values in said.items() if key[1].minute < 2}
    assert dict(written()) == expected(closed)

    said |= speak(producer, monkeypatch, range(3, 6))
    assert run("device-minutes", argv) == 0
    closed = {key: values for key, values in said.items() if key[1].minute < 5}
    rows = written()
    assert dict(rows) == expected(closed)
    assert len(rows) == len(closed) == 15
