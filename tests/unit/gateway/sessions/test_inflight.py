"""Packet identifiers: limits, the way round, and order."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.errors import ProtocolViolationError
from motelog.gateway.sessions.inflight import (
    PACKET_ID_MAX,
    Flight,
    InflightWindow,
    flight_of,
    read_flight,
)


def test_window_is_full_at_its_limit() -> None:
    window = InflightWindow(2)
    assert [window.allocate(11), window.allocate(12), window.allocate(13)] == [1, 2, 0]
    assert window.ack(1)
    assert window.allocate(13) == 3
    assert list(window) == [(2, 12), (3, 13)]


def test_ack_of_nothing_is_told() -> None:
    window = InflightWindow(2)
    assert not window.ack(1)
    window.allocate(11)
    assert not window.ack(2)
    assert window.ack(1)
    assert not window.ack(1)
    assert len(window) == 0


def test_identifiers_go_round_and_skip_what_is_in_flight() -> None:
    window = InflightWindow(3)
    assert window.allocate(11) == 1
    for expected in range(2, PACKET_ID_MAX + 1):
        assert window.allocate(12) == expected
        assert window.ack(expected)
    assert window.allocate(13) == 2
    window._check()


def test_every_identifier_can_be_in_flight() -> None:
    window = InflightWindow(PACKET_ID_MAX)
    assert {window.allocate(i) for i in range(PACKET_ID_MAX)} == set(range(1, PACKET_ID_MAX + 1))
    assert window.allocate(0) == 0
    assert window.ack(40_000)
    assert window.allocate(0) == 40_000
    window._check()


def test_idle_window_keeps_no_table() -> None:
    window = InflightWindow(3)
    window.ack(window.allocate(11))
    assert window._flights is None
    assert window.allocate(12) == 2


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("number", [0, 1, 70_000])
@pytest.mark.parametrize("offset", [0, 1, 2**48 - 1])
def test_flight_says_where_its_message_is(number: int, offset: int, qos: int) -> None:
    flight = flight_of(number, offset, qos)
    assert read_flight(flight) == Flight(number, offset, qos, is_released=False)
    assert read_flight(~flight) == Flight(number, offset, qos, is_released=True)


def test_released_flight_stays_until_it_is_acknowledged() -> None:
    window = InflightWindow(2)
    flight = flight_of(1, 2, 2)
    packet_id = window.allocate(flight)
    window.release(packet_id)
    window.release(packet_id)  # PUBREC may come twice
    assert window.get(packet_id) == ~flight
    assert window.ack(packet_id)
    assert window.get(packet_id) is None


def test_acknowledgements_are_taken_up_to_one_that_is_none() -> None:
    window = InflightWindow(4)
    for qos in (1, 1, 2, 1):
        window.allocate(flight_of(1, 2, qos))
    assert window.acknowledge([9, 1, 1])
    assert not window.acknowledge([1, 9])
    with pytest.raises(ProtocolViolationError):
        window.acknowledge([2, 3, 4])
    assert [packet_id for packet_id, _ in window] == [3, 4]
    window.release(3)
    with pytest.raises(ProtocolViolationError):
        window.acknowledge([3])
    assert window.ack(3)
    assert window.acknowledge([4])
    window._check()


def test_restored_flights_keep_their_identifiers_and_order() -> None:
    window = InflightWindow(2)
    window.restore([(9, 4), (3, 8), (7, 12)])
    assert list(window) == [(9, 4), (3, 8), (7, 12)]
    assert window.room == 0
    assert window.allocate(16) == 0  # an earlier connection took more at once
    window.ack(9)
    window.ack(3)
    assert window.room == 1
    assert window.allocate(16) == 8
    window._check()
