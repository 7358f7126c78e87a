"""Rates: who sends or comes faster is read later, and nothing is lost by it."""

from __future__ import annotations

import pytest

from motelog.core.net.reactor import CloseReason
from motelog.gateway.config import GatewayConfig
from tests.support.gateway_stage import Stage, publish


def send(stage: Stage, number: int, count: int, *, size: int = 0) -> None:
    stage.turn(*((number, publish("t/1", bytes(size))) for _ in range(count)))


def wait(stage: Stage, ms: int) -> None:
    stage.clock.advance(ms)
    stage.rates.resume_due(stage.clock.monotonic_ms())


def is_paused(stage: Stage, number: int) -> bool:
    return number in stage.output.paused


def test_client_that_publishes_faster_is_paused_for_as_long_as_that_takes() -> None:
    stage = Stage(GatewayConfig(publish_rate_max=100))
    stage.connect(1)
    stage.connect(2)
    send(stage, 1, 100)
    assert not is_paused(stage, 1)  # what a second brings may come at once
    send(stage, 1, 50)
    assert is_paused(stage, 1)
    assert len(stage.stored()) == 150  # what has been read counts
    send(stage, 2, 1)
    assert not is_paused(stage, 2)
    wait(stage, 499)
    assert is_paused(stage, 1)
    wait(stage, 1)
    assert not is_paused(stage, 1)
    send(stage, 1, 1)
    assert is_paused(stage, 1)
    wait(stage, 10)
    assert not is_paused(stage, 1)


@pytest.mark.parametrize("turn_ms", [1, 50, 700])
def test_rate_is_kept_and_reached(turn_ms: int) -> None:
    stage = Stage(GatewayConfig(publish_rate_max=1000))
    stage.connect(1)
    sent = 0
    for _ in range(0, 20_000, turn_ms):
        while not is_paused(stage, 1):
            send(stage, 1, 40)
            sent += 40
        wait(stage, turn_ms)
    assert 20_000 <= sent <= 21_000 + turn_ms + 40


def test_bytes_are_limited_as_well_and_other_packets_are_not() -> None:
    stage = Stage(GatewayConfig(publish_bytes_per_s_max=10_000))
    stage.connect(1)
    send(stage, 1, 1, size=9_000)
    stage.turn(*[(1, b"\xc0\x00")] * 1000)
    assert not is_paused(stage, 1)
    send(stage, 1, 1, size=6_000)
    assert is_paused(stage, 1)
    wait(stage, 400)
    assert is_paused(stage, 1)
    wait(stage, 200)
    assert not is_paused(stage, 1)


def test_number_of_a_connection_that_has_gone_begins_anew() -> None:
    stage = Stage(GatewayConfig(publish_rate_max=10))
    stage.connect(1)
    send(stage, 1, 100)
    assert is_paused(stage, 1)
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.connect(1)
    assert not is_paused(stage, 1)
    send(stage, 1, 10)
    assert not is_paused(stage, 1)
    send(stage, 1, 10)
    wait(stage, 900)  # the pause of the one before is over, this one is not
    assert is_paused(stage, 1)
    wait(stage, 8_000)
    assert not is_paused(stage, 1)


def test_connections_are_read_at_the_rate_in_their_order() -> None:
    stage = Stage(GatewayConfig(connect_rate_max=4))
    stage.turn(opened=range(12))
    assert sorted(stage.output.paused) == list(range(4, 12))
    for first_paused in range(5, 13):
        wait(stage, 250)
        assert sorted(stage.output.paused) == list(range(first_paused, 12))
    assert stage.output.closed == []
    wait(stage, 10_000)
    stage.turn(closed=[(number, CloseReason.PEER) for number in range(12)])
    stage.turn(opened=range(6))
    assert sorted(stage.output.paused) == [4, 5]


def test_without_limits_nobody_is_paused() -> None:
    stage = Stage()
    stage.connect(1)
    send(stage, 1, 3000)
    assert not stage.rates.is_on
    assert stage.output.paused == set()
