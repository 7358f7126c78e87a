"""When a message that waits is due, from its text."""

from __future__ import annotations

import pytest

from motelog.core.store.due_time import DueTimes, number


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"DELAY\x011\x02", 1_000 + 1_000),
        (b"KEYS\x01k\x02DELAY\x0118\x02", 1_000 + 7_200_000),
        (b"DELAY\x0199\x02", 1_000 + 7_200_000),
        (b"DELAY\x010\x02", 0),
        (b"DELAY\x01-1\x02", 0),
        (b"DELAY\x01x\x02", 0),
        ("DELAY\x01\u0663\x02".encode(), 0),
        (b"DELAY\x01" + b"9" * 5000, 0),
        (b"TIMER_OUT_MS\x0177\x02", 77),
        (b"TIMER_OUT_MS\x0177\x02DELAY\x013\x02", 77),
        (b"TIMER_OUT_MS\x01soon\x02DELAY\x011\x02", 2_000),
        (b"TIMER_OUT_MS\x01" + b"9" * 19, 0),
        (b"", 0),
    ],
)
def test_a_text_tells_when_a_message_is_due(properties: bytes, expected: int) -> None:
    assert DueTimes().due_ms(properties, 1_000) == expected


def test_the_levels_are_rocketmqs_unless_configured() -> None:
    assert DueTimes().levels_ms[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert len(DueTimes().levels_ms) == 18
    due = DueTimes("2s 1d")
    assert (due.level("1"), due.level("7"), due.level("0")) == (1, 2, 0)
    assert due.due_ms(b"DELAY\x019\x02", 5) == 86_400_005


@pytest.mark.parametrize("levels", ["", "1", "1s 2x", "s", "-1s", "1s," * 3, "1s " * 65])
def test_levels_that_cannot_be_meant_are_refused(levels: str) -> None:
    with pytest.raises(ValueError, match="level"):
        DueTimes(levels)


def test_a_number_is_decimal_digits_that_fit() -> None:
    assert number("12") == 12
    assert [number(text) for text in ("", "-1", "1.0", "9" * 19, "\u0663")] == [None] * 5
