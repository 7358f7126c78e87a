"""How far an assigned queue is read and committed."""

from __future__ import annotations

import pytest

from motelog.bridge.read_ahead import COMMIT_AGAIN_S, ReadAhead
from motelog.bridge.reader import Start
from motelog.bridge.selector import SELECT_ALL
from motelog.core.message import MessageQueue


@pytest.mark.parametrize(
    ("position", "committed", "later_s", "expected"),
    [
        (None, None, 0, False),  # nobody knows yet where it begins
        (5, None, 0, True),
        (5, 4, 0, True),
        (5, 5, 0, False),
        # A broker that was killed may have lost it, and no message may come to commit behind.
        (5, 5, COMMIT_AGAIN_S - 1, False),
        (5, 5, COMMIT_AGAIN_S, True),
    ],
)
async def test_a_confirmed_position_is_committed_again_now_and_then(
    position: int | None, committed: int | None, later_s: float, expected: bool
) -> None:
    reading = ReadAhead(MessageQueue("T", "b", 0), Start.COMMITTED, SELECT_ALL)
    reading.position, reading.committed = position, committed
    if committed is not None:
        reading.committed_at = 100.0
    assert reading.is_uncommitted(100.0 + later_s) is expected
