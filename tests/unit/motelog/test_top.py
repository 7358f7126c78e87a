"""What ``motelog top`` prints: no wider than a terminal, whatever the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.cli.top import NOW, heads, number, row

RATES = ("mqtt_in", "mqtt_out", "mqtt_refused", "queue_in", "queue_out")


def line(value: float, *names: str) -> dict[str, Any]:
    return {"time_ms": 1, "lag": value, **dict.fromkeys(names or (*NOW, *RATES), value)}


@pytest.mark.parametrize("value", [0, 0.3, 99_999, 999_999.4, 1e6, 1_234_567, 9e8, 1e12])
def test_lines_fit_a_terminal_and_columns_stay_apart(value: float) -> None:
    told = line(value)
    assert [len(one) for one in (*heads(told), row(told))] == [80, 80, 80]
    assert row(told).split()[1:] == [number(value)] * 9
    assert heads(told)[1].split() == [
        "time", "open", "clients", "in", "out", "refused", "clients", "in", "out", "behind",
    ]  # fmt: skip


def test_gateway_alone_has_no_columns_of_queues() -> None:
    told = line(7, "connections", "sessions", "mqtt_in")
    assert heads(told)[1].split() == ["time", "open", "clients", "in"]
    assert "queues" not in heads(told)[0]
    assert row(told).split()[1:] == ["7", "7", "7"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.04, "0"),
        (9.94, "9.9"),
        (9.95, "10"),
        (1234.4, "1,234"),
        (999_999.4, "999,999"),
        (999_999.5, "1,000k"),
        (99_999_400, "99,999k"),
        (99_999_600, "100M"),
    ],
)
def test_number_is_short(value: float, text: str) -> None:
    assert number(value) == text
