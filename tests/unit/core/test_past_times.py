"""Times in the past as options say them."""

from __future__ import annotations

import time

import pytest

from motelog.core.past_times import before_now


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("1h", 3600), ("1h ago", 3600), ("7d", 604_800), ("0s", 0)],
)
def test_how_long_ago(text: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.5)
    assert before_now(text) == 1_000_000_500 - seconds * 1000


@pytest.mark.parametrize("text", ["", "1y", "1", "-1h", "1 h", "ago", "1hago", "2026-01-31"])
def test_other_texts_are_none_of_these(text: str) -> None:
    assert before_now(text) is None
