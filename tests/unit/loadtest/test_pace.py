"""An even rate: whose message is due when."""

from __future__ import annotations

from motelog.loadtest.bench_pub import Publisher
from motelog.loadtest.pace import NS, Pace


def test_publishers_send_in_turn_and_evenly() -> None:
    pace = Pace(4, 3, 100)
    assert pace.next_ns == 100
    assert list(pace.due(99)) == []
    assert list(pace.due(100)) == [(0, 100)]
    quarter = NS // 4
    assert pace.next_ns == 100 + quarter
    # What is late was due at its own time.
    assert list(pace.due(100 + 4 * quarter)) == [
        (1, 100 + quarter),
        (2, 100 + 2 * quarter),
        (0, 100 + 3 * quarter),
        (1, 100 + 4 * quarter),
    ]
    assert list(pace.due(100 + 4 * quarter)) == []


def test_rounding_does_not_add_up() -> None:
    pace = Pace(3, 1, 0)
    assert len(list(pace.due(3_600 * NS))) == 3 * 3_600 + 1
    assert pace.next_ns == 3_600 * NS + NS // 3


def test_a_message_that_waits_for_the_window_is_measured_from_when_it_was_due() -> None:
    publisher = Publisher(1, 0, b"", 0)
    publisher.late.extend((10, 20, 30))
    assert publisher.take_due([1, 2]) == [2, 1]
    assert publisher.in_flight == {2: 10, 1: 20}
    assert publisher.take_due([]) == []
    del publisher.in_flight[1]
    assert publisher.take_due([1]) == [1]
    assert publisher.in_flight == {2: 10, 1: 30}
    assert publisher.take_due([7]) == []
    assert publisher.free == [7]
