"""How far a long start is: told every two seconds, with rate and time left."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.core.clock import ManualClock
from motelog.core.store.state import progress
from motelog.core.store.state.progress import ProgressMeter, StartProgress
from tests.support.stores import abandon, make_store, message


def test_a_meter_tells_every_two_seconds() -> None:
    clock = ManualClock()
    told: list[StartProgress] = []
    meter = ProgressMeter(clock, told.append)
    meter.begin("reading the log", 1_000)
    for done in range(100, 1_100, 100):
        clock.advance(500)
        meter.advance(done)
    assert [(p.done_bytes, p.bytes_per_s, p.left_s) for p in told] == [
        (400, 200.0, 3.0),
        (800, 200.0, 1.0),
    ]
    assert str(told[0]) == "reading the log: 0.0 of 0.0 GB, 0 MB/s, 3 s left"


def test_a_short_start_says_nothing() -> None:
    clock = ManualClock()
    told: list[StartProgress] = []
    meter = ProgressMeter(clock, told.append)
    meter.begin("reading the log", 1_000)
    clock.advance(1_999)
    meter.advance(1_000)
    assert told == []


def test_a_start_tells_of_the_log_the_queues_and_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path)
    store.open()
    for _ in range(300):
        tail = store.queue_tail("T", 0)
        store.append([message(tail, b"x" * 100, properties=b"KEYS\x01k\x02")])
    store.close()
    (tmp_path / "consumequeue" / "T" / "0" / "0".zfill(20)).unlink()
    (tmp_path / "index.json").unlink()
    monkeypatch.setattr(progress, "INTERVAL_MS", 0)
    told: list[StartProgress] = []
    again = make_store(tmp_path)
    again.open(told.append)
    doing = [p.doing for p in told]
    assert sorted(set(doing), key=doing.index) == [
        "reading the log",
        "rebuilding ConsumeQueues",
        "rebuilding the index",
    ]
    for step in told:
        assert 0 <= step.done_bytes <= step.total_bytes
    # After a clean stop only the last file is read; rebuilding a queue takes the whole log.
    totals = {p.doing: p.total_bytes for p in told}
    assert 0 < totals["reading the log"] <= 16_384 < totals["rebuilding ConsumeQueues"]
    abandon(again)
