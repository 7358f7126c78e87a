"""What is put on a turn between turns, and the order in which a turn carries it."""

from __future__ import annotations

import pytest

from motelog.core.net.reactor import CloseReason
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect, ReasonCode, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from tests.support.gateway_stage import Stage, publish


def connected(version: int = 4) -> Stage:
    stage = Stage()
    stage.connect(1, version)
    stage.connect(2, version)
    return stage


def test_a_connection_ends_behind_the_answers_that_it_is_owed() -> None:
    stage = connected(5)
    acknowledged_by_nobody = bytes.fromhex("4002 0009")  # what has not been sent
    stage.turn(
        (1, publish("t", b"a", 1, version=5)),
        (1, publish("", b"neither name nor alias", 2, version=5)),
        (1, publish("t", b"too late", 3, version=5)),
        (2, publish("t", b"b", 1, version=5)),
        (2, acknowledged_by_nobody),
    )
    assert stage.packets(1) == [b"\x40\x02\x00\x01", b"\xe0\x01\x82"]
    assert stage.packets(2) == [b"\x40\x02\x00\x01"]
    assert [message[13] for message in stage.stored()] == [b"a", b"b"]


def test_what_is_put_on_it_between_turns_asks_for_one_and_is_carried_first() -> None:
    stage = connected(5)
    connection = stage.connections[1]
    assert connection is not None
    stage.listener.during(lambda: None)
    assert not stage.is_woken
    stage.turn_under_way.end(connection, ReasonCode.SERVER_BUSY, "a test")
    assert stage.is_woken
    stage.turn((1, publish("t", b"a", 1, version=5)))
    assert [packet[0] for packet in stage.packets(1)] == [0xE0]
    assert stage.stored() == []


def test_packets_that_have_waited_are_not_another_connections() -> None:
    stage = connected()
    before = stage.connections[1]
    assert before is not None
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.connect(1)
    ping = (1, 0xC0, None, b"", 0, None)
    stage.listener.during(lambda: stage.turn_under_way.handle_again(before, [ping]))
    assert stage.sent(1) == []
    now = stage.connections[1]
    assert now is not None
    stage.listener.during(lambda: stage.turn_under_way.handle_again(now, [ping]))
    assert stage.sent(1) == [b"\xd0\x00"]


def test_a_turn_ends_though_what_was_done_in_it_fails() -> None:
    stage = connected(5)
    with pytest.raises(ZeroDivisionError):
        stage.listener.during(lambda: 1 / 0)
    assert not stage.turn_under_way.is_open
    with pytest.raises(TypeError):
        stage.turn(opened=[], faults=[None])
    assert not stage.turn_under_way.is_open
    connection = stage.connections[1]
    assert connection is not None
    stage.turn_under_way.end(connection, ReasonCode.SERVER_BUSY, "a test")
    assert stage.is_woken


def test_a_session_that_changes_often_in_a_turn_is_stored_once() -> None:
    stage = Stage()
    connect = Connect(version=4, clean_start=False, keep_alive_s=60, client_id="c")
    stage.turn((1, encode_connect(connect)), opened=[1])
    stage.sent(1)
    before = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
    entries = [(SubscribeEntry(f"t/{number}", 1),) for number in range(20)]
    packets = [encode_subscribe(4, Subscribe(9 + i, one)) for i, one in enumerate(entries)]
    stage.turn(*[(1, packet) for packet in packets])
    assert [packet[:4] for packet in stage.packets(1)] == [
        bytes((0x90, 3, 0, 9 + number)) for number in range(20)
    ]
    assert len(stage.log.records[MQTT_SESSION_TOPIC, 0]) == before + 1
    stored = stage.journal.load("c")
    assert stored is not None
    assert [one.topic_filter for one in stored.filters] == [f"t/{n}" for n in range(20)]


def test_a_session_whose_client_leaves_in_the_turn_is_stored_as_left() -> None:
    stage = Stage()
    connect = Connect(version=4, clean_start=False, keep_alive_s=60, client_id="c")
    stage.turn((1, encode_connect(connect)), opened=[1])
    stage.turn(
        (1, encode_subscribe(4, Subscribe(9, (SubscribeEntry("t/1", 1),)))), (1, b"\xe0\x00")
    )
    stored = stage.journal.load("c")
    assert stored is not None
    assert (stored.left_ms, len(stored.filters)) == (stage.steady.now_ms(), 1)
