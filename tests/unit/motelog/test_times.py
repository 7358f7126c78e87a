"""Times as commands tell them."""

from __future__ import annotations

import pytest

from motelog.cli.admin import apart_text, time_text

NOW_S = 1_795_455_000.5


@pytest.mark.parametrize(
    ("apart_ms", "text"),
    [
        (0, "0 s ago"),
        (-1_999, "1 s ago"),
        (-7_290_000, "2 h 1 min ago"),
        (1, "in 0 s"),
        (2_592_000_000, "in 30 d"),
    ],
)
def test_how_far_a_time_is_from_now(
    apart_ms: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    assert apart_text(int(NOW_S * 1000) + apart_ms) == text


def test_a_time_is_told_in_utc() -> None:
    assert time_text(int(NOW_S * 1000)) == "2026-11-23T17:30:00Z"
    assert time_text(None) == apart_text(None) == "-"
