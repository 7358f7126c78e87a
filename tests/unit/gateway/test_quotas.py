"""What waits for a session is bounded by its quota, and nothing is passed over silently."""

from __future__ import annotations

import logging

import pytest

from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.log_port import LogRead
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import (
    ack,
    connect,
    got,
    lose,
    publish,
    settle,
    subscribe,
)


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def payloads(stage: Stage, number: int) -> list[bytes]:
    return [payload for _, _, payload in got(stage, number)]


def dropped(stage: Stage) -> int:
    one = stage.operator.get_session("dev")
    assert one is not None
    return one.dropped.get("quota", 0)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_session_that_was_away_gets_the_youngest(
    is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = GatewayConfig(session_messages_max=10)
    stage = Stage(config)
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, *numbers(0, 25))
    if is_restarted:
        stage = Stage(config, log=stage.log)
    connect(stage, 1)
    settle(stage)
    assert payloads(stage, 1) == numbers(15, 25)
    assert stage.metrics.messages_dropped_quota == dropped(stage) == 15
    told = [r for r in caplog.records if "are skipped" in r.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "'dev'" in told[0].getMessage()


def test_session_within_its_quota_loses_nothing() -> None:
    stage = Stage(GatewayConfig(session_messages_max=10, session_age_max_s=60))
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, *numbers(0, 10))
    stage.clock.advance(60_000)
    connect(stage, 1)
    settle(stage)
    assert payloads(stage, 1) == numbers(0, 10)
    assert stage.metrics.messages_dropped_quota == dropped(stage) == 0


def test_client_that_does_not_acknowledge_keeps_what_is_in_flight() -> None:
    config = GatewayConfig(session_messages_max=10, inflight_max=3)
    stage = Stage(config)
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, *numbers(0, 20))
    settle(stage)
    assert payloads(stage, 1) == numbers(0, 3)
    stage.tick()
    assert dropped(stage) == 7
    stage.tick()
    assert dropped(stage) == 7
    # A crash: what the tick has told is what holds.
    after = Stage(config, log=stage.log)
    connect(after, 1)
    settle(after)
    assert payloads(after, 1) == numbers(0, 3)
    for begin in range(0, 12, 3):
        ack(after, 1, 0x40, *range(begin + 1, begin + 4))
        settle(after)
    assert payloads(after, 1) == numbers(10, 20)
    assert after.metrics.messages_dropped_quota == 0
    ack(stage, 1, 0x40, 1, 2, 3)
    settle(stage)
    assert payloads(stage, 1) == numbers(10, 13)


def test_messages_that_have_waited_too_long_are_passed_over() -> None:
    stage = Stage(GatewayConfig(session_age_max_s=60))
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, b"old", b"older")
    publish(stage, b"for others", topic="u/1")
    stage.clock.advance(61_000)
    stage.log.now_ms += 61_000
    publish(stage, b"young")
    connect(stage, 1)
    settle(stage)
    assert payloads(stage, 1) == [b"young"]
    assert stage.metrics.messages_dropped_quota == dropped(stage) == 2


def size_of_a_record(*payloads: bytes) -> int:
    stage = Stage()
    publish(stage, *payloads)
    read = stage.log.read(stage.log.queue_of("t", "1"), 0, count_max=100, bytes_max=1_000_000)
    assert isinstance(read, LogRead)
    return len(read.records) // len(payloads)


def test_quota_in_bytes_is_by_the_size_of_what_was_read_last() -> None:
    config = GatewayConfig(session_bytes_max=10 * size_of_a_record(b"00"), inflight_max=3)
    stage = Stage(config)
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, *numbers(10, 30))
    settle(stage)
    assert payloads(stage, 1) == numbers(10, 13)
    stage.tick()
    # What is in flight stays, and ten are to come.
    assert stage.metrics.messages_dropped_quota == dropped(stage) == 7
    ack(stage, 1, 0x40, 1, 2, 3)
    settle(stage)
    assert payloads(stage, 1) == numbers(20, 23)


def test_quota_in_bytes_holds_for_a_session_that_was_away() -> None:
    size = size_of_a_record(b"00")
    stage = Stage(GatewayConfig(inflight_max=3))
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, *numbers(10, 40))
    after = Stage(GatewayConfig(session_bytes_max=5 * size + 1, inflight_max=3), log=stage.log)
    connect(after, 1)
    settle(after)
    # Of this queue nothing had been read: the first messages said how large they are.
    assert payloads(after, 1) == numbers(10, 13)
    after.tick()
    assert after.metrics.messages_dropped_quota == dropped(after) == 22
    ack(after, 1, 0x40, 1, 2, 3)
    settle(after)
    assert payloads(after, 1) == numbers(35, 38)


def test_quota_of_less_than_a_message_leaves_one() -> None:
    stage = Stage(GatewayConfig(session_bytes_max=1, session_messages_max=10, inflight_max=1))
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, *numbers(10, 20))
    settle(stage)
    stage.tick()
    assert payloads(stage, 1) == [b"10"]
    ack(stage, 1, 0x40, 1)
    settle(stage)
    assert payloads(stage, 1) == [b"19"]
    assert dropped(stage) == 8


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_at_qos_0_wait_for_a_session_that_is_away_unless_that_is_off(
    waits: bool, is_restarted: bool
) -> None:
    config = GatewayConfig(offline_qos_0=waits, inflight_max=2)
    stage = Stage(config)
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    subscribe(stage, 1, "low/#", qos=0)
    publish(stage, b"there", qos=0)
    settle(stage)
    assert payloads(stage, 1) == [b"there"]
    lose(stage, 1)
    publish(stage, b"0", b"1", qos=0)
    publish(stage, b"2", b"3", b"4")
    publish(stage, b"5", topic="low/1")
    publish(stage, b"6", qos=0)
    publish(stage, b"7", qos=2)
    if is_restarted:
        stage = Stage(config, log=stage.log)
    connect(stage, 1)
    # The window keeps it behind the live position: what comes now is nothing that it has missed.
    publish(stage, b"8", qos=0)
    found = []
    while packets := got(stage, 1):
        found += [payload for _, _, payload in packets]
        ack(stage, 1, 0x40, *(packet_id for first_byte, packet_id, _ in packets if first_byte & 6))
        settle(stage)
    missed = [b"0", b"1", b"5", b"6"] if waits else []
    assert sorted(found) == sorted([b"2", b"3", b"4", b"7", b"8", *missed])
    assert stage.metrics.messages_dropped_away == (0 if waits else 4)
    publish(stage, b"9", qos=0)
    settle(stage)
    assert payloads(stage, 1) == [b"9"]
