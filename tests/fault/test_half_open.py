"""Who connects and does not come to a CONNECT is ended in time, and disturbs nobody meanwhile.

10,000 of them are a command of their own: python -m tests.fault.half_open.
"""

from __future__ import annotations

from tests.fault.half_open import run

DEADLINE_S = 3


def test_connections_without_a_connect_are_ended_at_the_deadline() -> None:
    outcome = run(400, DEADLINE_S)
    assert outcome.ended == 400
    # A quarter of them sends a byte each second, which wins no time.
    assert outcome.first_ended_s > DEADLINE_S / 2
