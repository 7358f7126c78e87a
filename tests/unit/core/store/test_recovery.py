"""Recovery's pure part; the rest is in tests/fault/test_store_recovery.py."""

from __future__ import annotations

import pytest

from core.store.recovery import deliver_time_ms


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"DELAY\x011\x02", 1_000 + 1_000),
        (b"KEYS\x01k\x02DELAY\x0118\x02", 1_000 + 7_200_000),
        (b"DELAY\x0199\x02", 1_000 + 7_200_000),
        (b"DELAY\x010\x02", 0),
        (b"DELAY\x01-1\x02", 0),
        (b"DELAY\x01x\x02", 0),
        (b"DELAY\x01" + b"9" * 5000, 0),
        (b"", 0),
    ],
)
def test_a_delay_level_tells_when_a_message_is_due(properties: bytes, expected: int) -> None:
    assert deliver_time_ms(properties, 1_000) == expected
