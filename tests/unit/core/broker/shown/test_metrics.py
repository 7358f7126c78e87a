"""What /metrics names of topics and groups, and that the dashboards know no other names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from motelog.console.process import LoopLag, build_readings
from motelog.core.broker.shown.metrics import (
    BROKER_METRICS,
    NAMED_MAX,
    lag_by_group,
    topics_by_name,
)
from motelog.core.broker.shown.stats import BrokerStats
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.clock import ManualClock
from motelog.core.metrics import Histogram, MetricKind, Registry
from motelog.core.namesrv.server import NAMESRV_METRICS
from motelog.core.store.message_store import MessageStore
from motelog.gateway.metrics import GATEWAY_METRICS, GatewayMetrics
from tests.support.repository import ROOT
from tests.support.stores import message, opened

MONITORING = ROOT / "docs" / "monitoring"


class Stage:
    def __init__(self, store: MessageStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.stats = BrokerStats(
            cluster="C",
            clock=clock,
            messages_in=lambda: 0,
            take_grown=store.readable.take_grown,
            items_max=NAMED_MAX * 2,
        )
        self.offsets = ConsumerOffsets(entries_max=100, clock=ManualClock())

    def put(self, topic: str, count: int) -> None:
        tail = self.store.queue_tail(topic, 0)
        self.store.append([message(tail)] * count)

    def lines(self) -> list[str]:
        registry = Registry()
        registry.add_readings("b", lambda: topics_by_name(self.stats))
        now_ms = self.clock.now_ms()
        registry.add_readings("b", lambda: lag_by_group(self.offsets, self.store.reader, now_ms))
        return registry.exposition().decode().splitlines()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        yield Stage(store, clock)


def test_topics_and_groups_are_named(stage: Stage) -> None:
    stage.put("T", 3)
    stage.stats.note_get("T", "g", 2, 99)
    stage.stats.tick()
    found = stage.lines()
    assert 'b_topic_put_messages_total{topic="T"} 3.0' in found
    assert 'b_group_got_messages_total{group="g",topic="T"} 2.0' in found
    assert 'b_group_got_bytes_total{group="g",topic="T"} 99.0' in found


def test_only_the_busiest_are_named(stage: Stage) -> None:
    for number in range(NAMED_MAX + 5):
        stage.put(f"T{number}", number + 1)
    stage.stats.tick()
    named = [line for line in stage.lines() if line.startswith("b_topic_put_messages_total{")]
    assert len(named) == NAMED_MAX
    assert 'b_topic_put_messages_total{topic="T0"} 1.0' not in named


def test_how_far_a_group_lags(stage: Stage) -> None:
    stage.put("T", 3)
    stage.clock.advance(2_000)
    stage.put("T", 1)
    stage.clock.advance(5_000)
    stage.offsets.commit("slow", "T", 0, 1)
    stage.offsets.commit("late", "T", 0, 3)
    stage.offsets.commit("done", "T", 0, 4)
    found = stage.lines()
    assert 'b_group_lag_messages{group="slow",topic="T"} 3.0' in found
    assert 'b_group_lag_seconds{group="slow",topic="T"} 7.0' in found
    assert 'b_group_lag_seconds{group="late",topic="T"} 5.0' in found
    assert 'b_group_lag_messages{group="done",topic="T"} 0.0' in found
    assert 'b_group_lag_seconds{group="done",topic="T"} 0.0' in found


def test_every_counter_of_the_gateway_is_in_its_table() -> None:
    metrics = GatewayMetrics()
    assert metrics.sample().keys() | metrics.histograms().keys() == GATEWAY_METRICS.keys()


def test_dashboard_and_alerts_know_no_other_names(stage: Stage) -> None:
    stage.put("T", 1)
    stage.stats.note_get("T", "g", 1, 1)
    stage.stats.tick()
    stage.offsets.commit("g", "T", 0, 0)
    registry = Registry()
    for prefix, table in (
        ("motelog_broker", BROKER_METRICS),
        ("motelog_gateway", GATEWAY_METRICS),
        ("motelog_namesrv", NAMESRV_METRICS),
    ):
        numbers = {n: 0 for n, s in table.items() if s.kind is not MetricKind.HISTOGRAM}
        counts = {
            n: Histogram(s.bounds).sample()
            for n, s in table.items()
            if s.kind is MetricKind.HISTOGRAM
        }
        registry.add(prefix, table, numbers.copy, counts.copy)
    registry.add_readings("motelog_broker", lambda: topics_by_name(stage.stats))
    reader = stage.store.reader
    registry.add_readings("motelog_broker", lambda: lag_by_group(stage.offsets, reader, 0))
    registry.add_readings("motelog", build_readings)
    registry.add_readings("motelog", LoopLag().readings)
    known = set(re.findall(r"^(\w+)[{ ]", registry.exposition().decode(), re.MULTILINE))
    dashboard = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    asked += re.findall(r"expr: (.*)", (MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    names = {name for text in asked for name in re.findall(r"\b(?:motelog|process)_\w+", text)}
    assert len(names) > 30
    assert names - known == set()
