"""When the end of a session that is away, and its will, are due."""

from __future__ import annotations

import pytest

from motelog.gateway.state.progress import AWAY, SessionState
from motelog.gateway.state.stored import EXPIRY_NEVER, StoredFlight, StoredSession, StoredWill

LEFT_MS = 1_000_000


def session(expiry_s: int, delay_s: int | None) -> StoredSession:
    will = None
    if delay_s is not None:
        will = StoredWill("t", b"gone", 0, False, delay_s, b"", "")
    return StoredSession("c", expiry_s, LEFT_MS, will=will)


@pytest.mark.parametrize(
    ("expiry_s", "delay_s", "ends_s", "will_s"),
    [
        (60, None, 60, None),
        (EXPIRY_NEVER, None, None, None),
        (60, 10, 60, 10),
        (60, 90, 60, 60),  # section 3.1.3.2.2: at the latest when the session ends
        (EXPIRY_NEVER, 10, None, 10),
        (0, 10, 0, 0),
    ],
)
def test_will_is_due_before_the_session_s_end_or_with_it(
    expiry_s: int, delay_s: int | None, ends_s: int | None, will_s: int | None
) -> None:
    one = session(expiry_s, delay_s)
    assert one.expires_ms == (None if ends_s is None else LEFT_MS + ends_s * 1000)
    assert one.will_due_ms == (None if will_s is None else LEFT_MS + will_s * 1000)
    times = [ms for ms in (one.expires_ms, one.will_due_ms) if ms is not None]
    assert one.due_ms(LEFT_MS) == min(times, default=None)


def test_session_that_is_away_has_its_flights_as_delivered() -> None:
    state = SessionState(session(60, None), AWAY, 7)
    assert state.as_of_now({}) is state.session
    flight = StoredFlight(1, "t/0", 5, 1)
    flying = StoredSession("c", 60, LEFT_MS, cursors={"t/0": 3}, inflight=(flight,))
    assert SessionState(flying, AWAY, 7).as_of_now({}).delivered == (("t/0", 5),)
