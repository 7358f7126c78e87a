"""The registry: what the exposition looks like and when sources are read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from motelog.core.metrics import (
    Histogram,
    Reading,
    Registry,
    counted,
    counter,
    gauge,
    histogram,
    percentile,
    table_of,
)


def lines(registry: Registry) -> list[str]:
    return registry.exposition().decode().splitlines()


def test_counter_and_gauge_are_read_at_scrape() -> None:
    sample = {"messages": 0, "sessions_now": 3}
    table = {"messages": counter("in", "Messages."), "sessions_now": gauge("sessions", "Sessions.")}
    registry = Registry()
    registry.add("m", table, lambda: sample)
    sample["messages"] = 7
    found = lines(registry)
    assert "m_in_total 7.0" in found
    assert "# HELP m_in_total Messages." in found
    assert "m_sessions 3.0" in found
    assert "# TYPE m_sessions gauge" in found


def test_an_entry_without_a_table_is_an_error() -> None:
    registry = Registry()
    registry.add("m", {}, lambda: {"new": 1})
    with pytest.raises(KeyError):
        registry.exposition()


def test_readings_of_one_family_come_together_across_sources() -> None:
    registry = Registry()
    for qos in ("0", "1"):
        table = {"in": counter("in", "In.", qos=qos)}
        registry.add("m", table, lambda: {"in": 1})
    found = lines(registry)
    assert found.count("# TYPE m_in_total counter") == 1
    assert 'm_in_total{qos="0"} 1.0' in found
    assert 'm_in_total{qos="1"} 1.0' in found


def test_histogram_buckets_are_cumulative_bounds_inclusive_and_units_scaled() -> None:
    waits = Histogram((10, 100))
    for value in (1, 10, 11, 1000):
        waits.observe(value)
    waits.observe(50, 5)
    registry = Registry()
    table = {"wait_us": histogram("wait_seconds", "Waiting time.", (10, 100), unit=1e-6)}
    registry.add("m", table, dict, lambda: {"wait_us": waits.sample()})
    found = lines(registry)
    assert 'm_wait_seconds_bucket{le="1e-05"} 2.0' in found
    assert 'm_wait_seconds_bucket{le="0.0001"} 8.0' in found
    assert 'm_wait_seconds_bucket{le="+Inf"} 9.0' in found
    assert "m_wait_seconds_count 9.0" in found
    (total,) = [line for line in found if line.startswith("m_wait_seconds_sum")]
    assert float(total.split()[1]) == pytest.approx(1272e-6)


def test_percentile_is_the_bound_below_which_a_share_is() -> None:
    bounds = (1.0, 10.0, 100.0)
    assert [percentile(bounds, (2, 1, 1, 0), share) for share in (0.5, 0.51, 0.75, 0.76, 1)] == [
        1, 10, 10, 100, 100,
    ]  # fmt: skip
    assert percentile(bounds, (0, 0, 0, 9), 0.5) == 100, "above the last bound"
    assert percentile(bounds, (0, 0, 0, 0), 0.99) == 0


def test_label_values_are_escaped() -> None:
    registry = Registry()
    registry.add_readings("m", lambda: [Reading(gauge("x", "X.", a='b"\n'), 1)])
    assert 'm_x{a="b\\"\\n"} 1.0' in lines(registry)


def test_a_dataclass_of_counters_says_how_they_are_shown() -> None:
    @dataclass(slots=True)
    class Counters:
        slow: int = counted(counter("dropped", "Dropped.", reason="slow"))
        other: str = ""

    assert Counters().slow == 0
    assert table_of(Counters) == {"slow": counter("dropped", "Dropped.", reason="slow")}


def test_the_process_is_shown_too() -> None:
    found = lines(Registry())
    assert any(line.startswith("process_resident_memory_bytes ") for line in found)
    assert any(line.startswith("python_gc_collections_total") for line in found)
