"""Sizes and times with units."""

from __future__ import annotations

from fractions import Fraction

import pytest

from motelog.core.units import span_text, unit_of


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("file_bytes", "0B", 0),
        ("file_bytes", "1GB", 1_000_000_000),
        ("file_bytes", "1GiB", 1 << 30),
        ("file_bytes", " 64 mib ", 64 << 20),
        ("file_bytes", "1.5kB", 1500),
        ("packet_bytes_max", "2TB", 2_000_000_000_000),
        ("publish_bytes_per_s_max", "1MB", 1_000_000),
        ("flush_interval_ms", "500ms", 500),
        ("flush_interval_ms", "0.5s", 500),
        ("idle_s_max", "2m", 120),
        ("idle_s_max", "1ms", Fraction(1, 1000)),
        ("retention_hours", "3d", 72),
        ("retention_hours", "72h", 72),
    ],
)
def test_a_text_says_how_many_of_the_keys_own_unit(
    key: str, text: str, number: int | Fraction
) -> None:
    unit = unit_of(key)
    assert unit is not None
    assert unit.parse(text) == number


@pytest.mark.parametrize(
    "text", ["", "GB", "1", "-1GB", "1e3B", "1GB2", "1M", "1h", "1,5GB", "1 G B", "\u0661GB"]
)
def test_a_text_that_is_no_size(text: str) -> None:
    unit = unit_of("file_bytes")
    assert unit is not None
    with pytest.raises(ValueError, match="is not a number with a unit"):
        unit.parse(text)


@pytest.mark.parametrize(
    "key", ["connections_max", "qos", "status", "file_units", "characters_max"]
)
def test_a_mere_count_has_no_unit(key: str) -> None:
    assert unit_of(key) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_290, "2 h 1 min"), (2_592_000, "30 d")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
