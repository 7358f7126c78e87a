"""What all connections hold together is bounded: those that hold the most are closed first."""

from __future__ import annotations

import logging

import pytest

from motelog.core import spare_memory
from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.config import GatewayConfig
from tests.support.gateway_stage import Stage


def held_by(stage: Stage, *sizes: int) -> None:
    """Have client number n + 1 not read sizes[n] bytes."""
    for number, size in enumerate(sizes, 1):
        stage.connect(number)
        stage.sent(number)
        stage.output.stop_reading(number)
        stage.output.fan_out(bytes(size), [number])


def test_those_that_hold_the_most_are_closed_until_the_rest_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(GatewayConfig(memory_bytes_max=10_000))
    held_by(stage, 3_000, 9_000, 2_000, 5_000)
    with caplog.at_level(logging.WARNING):
        stage.memory.tick()
    # 19,000 bytes: without the largest one the rest of them fits.
    assert stage.output.aborted == [2]
    assert [c is not None for c in stage.connections[1:5]] == [True, False, True, True]
    assert stage.metrics.connections_held_bytes_now == 19_000
    assert (stage.metrics.connections_shed, stage.metrics.sessions_now) == (1, 3)
    told = [
        record.getMessage()
        for record in caplog.records
        if "memory_bytes_max" in record.getMessage()
    ]
    assert len(told) == 1
    assert "held_bytes=19000 closed=1" in told[0]
    stage.memory.tick()
    assert stage.output.aborted == [2]


@pytest.mark.parametrize("bytes_max", [0, 19_000])
def test_nobody_is_closed_within_the_limit(bytes_max: int) -> None:
    stage = Stage(GatewayConfig(memory_bytes_max=bytes_max))
    held_by(stage, 3_000, 9_000, 2_000, 5_000)
    stage.memory.tick()
    assert (stage.output.aborted, stage.output.closed) == ([], [])


def test_client_that_could_read_is_told_why() -> None:
    stage = Stage()
    stage.connect(1, version=5)
    stage.sent(1)
    stage.clients.shed(1)
    assert [packet.hex() for packet in stage.sent(1)] == ["e00197"]
    assert stage.output.closed == [1]
    assert stage.connections[1] is None
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.clients.shed(1)
    assert stage.metrics.connections_shed == 1


def test_a_process_without_memory_closes_those_that_hold_the_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    held_by(stage, 3_000, 9_000, 2_000, 5_000)
    monkeypatch.setattr(spare_memory, "keep", lambda: False)
    monkeypatch.setattr(spare_memory, "SPARE_BYTES", 10_000)
    stage.memory.tick()
    assert stage.output.aborted == [2, 4]
    assert "the process has no memory left" in caplog.text
