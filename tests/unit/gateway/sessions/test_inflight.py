"""Packet identifiers: limits, the way round, and order."""

from __future__ import annotations

from motelog.gateway.sessions.inflight import PACKET_ID_MAX, InflightWindow


def test_window_is_full_at_its_limit() -> None:
    window: InflightWindow[str] = InflightWindow(2)
    assert [window.allocate("a"), window.allocate("b"), window.allocate("c")] == [1, 2, 0]
    assert window.ack(1)
    assert window.allocate("c") == 3
    assert list(window) == [(2, "b"), (3, "c")]


def test_ack_of_nothing_is_told() -> None:
    window: InflightWindow[str] = InflightWindow(2)
    assert not window.ack(1)
    window.allocate("a")
    assert not window.ack(2)
    assert window.ack(1)
    assert not window.ack(1)
    assert len(window) == 0


def test_identifiers_go_round_and_skip_what_is_in_flight() -> None:
    window: InflightWindow[str] = InflightWindow(3)
    assert window.allocate("stays") == 1
    for expected in range(2, PACKET_ID_MAX + 1):
        assert window.allocate("goes") == expected
        assert window.ack(expected)
    assert window.allocate("next") == 2
    window._check()


def test_every_identifier_can_be_in_flight() -> None:
    window: InflightWindow[int] = InflightWindow(PACKET_ID_MAX)
    assert {window.allocate(i) for i in range(PACKET_ID_MAX)} == set(range(1, PACKET_ID_MAX + 1))
    assert window.allocate(0) == 0
    assert window.ack(40_000)
    assert window.allocate(0) == 40_000
    window._check()


def test_idle_window_keeps_no_table() -> None:
    window: InflightWindow[str] = InflightWindow(3)
    window.ack(window.allocate("a"))
    assert window._messages is None
    assert window.allocate("b") == 2
