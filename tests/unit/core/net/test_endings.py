"""When connections end by a clock."""

from __future__ import annotations

from motelog.core.net.endings import SPARE, Endings


def test_the_first_of_several_times_ends_a_connection_once() -> None:
    endings = Endings()
    endings.begin(1, 20.0, None, 10.0)
    endings.begin(2, 30.0)
    endings.begin(3, None)
    assert list(endings.due(9.9)) == []
    assert list(endings.due(10.0)) == [1]
    assert list(endings.due(50.0)) == [2]
    assert list(endings.due(99.0)) == []


def test_a_number_that_is_used_again_has_the_new_time_alone() -> None:
    endings = Endings()
    endings.begin(1, 10.0)
    endings.begin(1, None)
    endings.begin(2, 10.0)
    endings.begin(2, 20.0)
    assert list(endings.due(15.0)) == []
    assert list(endings.due(20.0)) == [2]


def test_what_is_kept_of_connections_that_have_ended_is_bounded() -> None:
    endings = Endings()
    endings.begin(7, 5.0)
    for days in range(10_000):
        endings.begin(1, 1e9 + days)
    assert len(endings._ending) <= 2 * 2 + SPARE
    assert list(endings.due(5.0)) == [7]
    assert list(endings.due(2e9)) == [1]
