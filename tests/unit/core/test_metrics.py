"""The registry: what the exposition looks like and when sources are read."""

from __future__ import annotations

from motelog.core.metrics import Histogram, MetricKind, Reading, Registry


def lines(registry: Registry) -> list[str]:
    return registry.exposition().decode().splitlines()


def test_counter_and_gauge_are_read_at_scrape() -> None:
    count = 0
    registry = Registry()
    registry.add(
        lambda: [
            Reading("m_messages", MetricKind.COUNTER, "Messages.", count),
            Reading("m_sessions", MetricKind.GAUGE, "Sessions.", 3),
        ]
    )
    count = 7
    assert "m_messages_total 7.0" in lines(registry)
    assert "m_sessions 3.0" in lines(registry)
    assert "# TYPE m_sessions gauge" in lines(registry)


def test_readings_of_one_name_form_one_family_across_sources() -> None:
    registry = Registry()
    for qos in ("0", "1"):
        reading = Reading("m_in", MetricKind.COUNTER, "In.", 1, {"qos": qos})
        registry.add(lambda reading=reading: [reading])  # type: ignore[misc]  # bound per turn
    found = lines(registry)
    assert found.count("# TYPE m_in_total counter") == 1
    assert 'm_in_total{qos="0"} 1.0' in found
    assert 'm_in_total{qos="1"} 1.0' in found


def test_histogram_buckets_are_cumulative_and_bounds_inclusive() -> None:
    histogram = Histogram("m_latency_us", "Latency.", (10, 100))
    for value in (1, 10, 11, 1000):
        histogram.observe(value)
    registry = Registry()
    registry.add(lambda: [histogram])
    found = lines(registry)
    assert 'm_latency_us_bucket{le="10"} 2.0' in found
    assert 'm_latency_us_bucket{le="100"} 3.0' in found
    assert 'm_latency_us_bucket{le="+Inf"} 4.0' in found
    assert "m_latency_us_sum 1022.0" in found


def test_label_values_are_escaped() -> None:
    registry = Registry()
    registry.add(lambda: [Reading("m_x", MetricKind.GAUGE, "X.", 1, {"a": 'b"\n'})])
    assert 'm_x{a="b\\"\\n"} 1.0' in lines(registry)


def test_plain_counters_are_shown_with_a_prefix() -> None:
    registry = Registry()
    registry.add_counters("m", lambda: {"publishes_received": 4, "sessions_now": 2})
    found = lines(registry)
    assert "m_publishes_received_total 4.0" in found
    assert "# HELP m_sessions_now Sessions." in found
    assert "# TYPE m_sessions_now gauge" in found


def test_histograms_are_shown_with_a_prefix_and_their_newest_counts() -> None:
    registry = Registry()
    known = Histogram("wait_us", "Waiting time.", (10, 100))
    registry.add_histograms("broker", lambda: [known])
    known.observe(11)
    lines = registry.exposition().decode().splitlines()
    assert 'broker_wait_us_bucket{le="10"} 0.0' in lines
    assert 'broker_wait_us_bucket{le="100"} 1.0' in lines
    assert "broker_wait_us_sum 11.0" in lines
    assert known.name == "wait_us"
