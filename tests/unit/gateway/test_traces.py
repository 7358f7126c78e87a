"""Traces of one client: what they show, how they end, what remains of them."""

from __future__ import annotations

import pytest

from motelog.gateway.operator.traces import RESULT_KEPT_MS, RUNNING_MAX, TraceRefusedError
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import connect, lose, publish, settle, subscribe


def begin(stage: Stage, client_id: str = "dev", seconds: int = 60, packets: int = 100) -> str:
    trace = stage.operator.start_trace(client_id, seconds, packets)
    assert trace is not None
    return trace.trace


def test_trace_shows_packets_both_ways_until_it_is_ended() -> None:
    stage = Stage()
    connect(stage, 1)
    name = begin(stage)
    stage.output.observers[1].received(b"\xc0\0")
    subscribe(stage, 1, "t/#", qos=0)
    publish(stage, b"payload")
    settle(stage)
    shown = stage.operator.read_trace(name, 0)
    assert shown is not None
    assert [(one.direction, one.type) for one in shown.packets] == [
        ("in", "PINGREQ"),
        ("out", "SUBACK"),
        ("out", "PUBLISH"),
    ]
    assert shown.packets[-1].topic == "t/1"
    assert shown.packets[0].at_ms == shown.began_ms
    assert "payload" not in repr(shown)
    rest = stage.operator.read_trace(name, 2)
    assert rest is not None
    assert [one.number for one in rest.packets] == [3]
    assert stage.operator.end_trace(name)
    assert stage.output.observers == {}
    over = stage.operator.read_trace(name, 3)
    assert over is not None
    assert (over.packets, over.over) == ([], "it was ended")


def test_trace_ends_by_time_by_number_and_with_its_connection() -> None:
    stage = Stage()
    for number, client_id in enumerate(("time", "number", "gone")):
        connect(stage, number, client_id)
    names = [begin(stage, "time", seconds=2), begin(stage, "number", packets=1)]
    names.append(begin(stage, "gone"))
    stage.output.observers[1].received(b"\xc0\0\xc0\0\xc0\0")
    lose(stage, 2)
    stage.operator.tick()
    assert set(stage.output.observers) == {0, 2}
    stage.clock.advance(2000)
    stage.operator.tick()
    assert set(stage.output.observers) == {2}
    answers = [stage.operator.read_trace(name, 0) for name in names]
    assert [one.over for one in answers if one is not None] == [
        "its time is over",
        "it has reached its number of packets",
        "the connection has ended",
    ]
    assert answers[1] is not None
    assert len(answers[1].packets) == 1
    stage.clock.advance(RESULT_KEPT_MS)
    stage.operator.tick()
    assert [stage.operator.read_trace(name, 0) for name in names] == [None] * 3
    assert not stage.operator.end_trace(names[0])


def test_only_so_many_run_and_one_of_a_client() -> None:
    stage = Stage()
    assert stage.operator.start_trace("dev", 1, 1) is None
    for number in range(RUNNING_MAX + 1):
        connect(stage, number, f"dev{number}")
    first = begin(stage, "dev0")
    with pytest.raises(TraceRefusedError, match="already"):
        begin(stage, "dev0")
    for number in range(1, RUNNING_MAX):
        begin(stage, f"dev{number}")
    with pytest.raises(TraceRefusedError, match="clients are being traced"):
        begin(stage, f"dev{RUNNING_MAX}")
    for _ in range(20):  # those that are over make room
        stage.operator.end_trace(first)
        first = begin(stage, "dev0")


def test_names_behind_topic_aliases_are_shown_as_far_as_they_were_seen() -> None:
    stage = Stage()
    connect(stage, 1)
    name = begin(stage)
    observer = stage.output.observers[1]
    observer.received(b"\x30\x07\0\1a\3\x23\0\5" + b"\x30\x06\0\0\3\x23\0\5\x30\x06\0\0\3\x23\0\6")
    shown = stage.operator.read_trace(name, 0)
    assert shown is not None
    assert [(one.topic, one.topic_alias) for one in shown.packets] == [("a", 5), ("a", 5), ("", 6)]
