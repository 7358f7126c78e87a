"""Brokers that were slow get no turn for as long as RocketMQ's table says."""

from __future__ import annotations

import pytest

from motelog.bridge.slow_brokers import SlowBrokers


@pytest.mark.parametrize(
    ("took_s", "pause_s"), [(0.54, 0), (0.55, 3), (1.0, 60), (2.5, 120), (3.0, 180), (20.0, 600)]
)
def test_a_slow_answer_costs_turns(took_s: float, pause_s: float) -> None:
    slow = SlowBrokers()
    slow.note("a", took_s, 100.0)
    assert slow.to_avoid({"a", "b"}, 100.0) == ({"a"} if pause_s else set())
    assert slow.to_avoid({"a", "b"}, 99.9 + pause_s) == ({"a"} if pause_s else set())
    assert slow.to_avoid({"a", "b"}, 100.0 + pause_s) == set()


def test_a_quick_answer_ends_it_and_a_failure_counts() -> None:
    slow = SlowBrokers()
    slow.note_failed("a", 0.0)
    assert slow.to_avoid({"a", "b"}, 59.0) == {"a"}
    slow.note("a", 0.01, 10.0)
    assert slow.to_avoid({"a", "b"}, 10.0) == set()


def test_one_broker_is_always_left_the_one_whose_time_is_over_first() -> None:
    slow = SlowBrokers()
    slow.note("a", 2.0, 0.0)
    slow.note("b", 0.6, 0.0)
    assert slow.to_avoid(["a", "b"], 1.0) == {"a"}
    assert slow.to_avoid(["a"], 1.0) == set()
    assert slow.to_avoid([], 1.0) == set()
