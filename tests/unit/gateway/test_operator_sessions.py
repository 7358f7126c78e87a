"""What an operator sees of sessions, connected and away, and how one is ended."""

from __future__ import annotations

import pytest

from motelog.core.errors import MotelogError, StoreFullError
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Properties, Will
from motelog.gateway.operator.sessions import SessionInUseError
from tests.conformance.peers import Gateway
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import (
    ack,
    connect,
    got,
    lose,
    publish,
    restart,
    settle,
    subscribe,
)


def names(stage: Stage, prefix: str = "", limit: int = 100) -> list[str]:
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = stage.operator.list_sessions(prefix, after, limit)
        found += [session.client_id for session in page.sessions]
        after = page.after
    return found


def test_sessions_are_listed_in_pages_connected_and_away() -> None:
    stage = Stage()
    for number, client_id in enumerate(("b/2", "a/1", "b/1", "c/1")):
        connect(stage, number, client_id)
    connect(stage, 5, "b/0", properties=NO_PROPERTIES)
    lose(stage, 0)
    lose(stage, 3)
    for limit in (1, 2, 3, 100):
        assert names(stage, limit=limit) == ["a/1", "b/0", "b/1", "b/2", "c/1"]
        assert names(stage, "b/", limit) == ["b/0", "b/1", "b/2"]
    lose(stage, 5)
    assert names(stage, "b/") == ["b/1", "b/2"]
    after = restart(stage)
    assert names(after) == ["a/1", "b/1", "b/2", "c/1"]
    assert not after.operator.list_sessions("", "", 10).sessions[0].is_connected


def test_session_is_described_with_what_waits_for_it() -> None:
    stage = Stage()
    will = Will("gone", b"12345", 1, False, Properties(will_delay_interval_s=30))
    began_ms = stage.clock.now_ms()
    connect(stage, 1, will=will)
    subscribe(stage, 1, "t/#", qos=2, identifier=5, no_local=True)
    subscribe(stage, 1, "u")
    publish(stage, b"a", b"b")
    one = stage.operator.get_session("dev")
    assert one is not None
    assert (one.is_connected, one.peer, one.version) == (True, "127.0.0.1:4001", 5)
    assert one.since_ms == began_ms
    assert [(f.filter, f.qos, f.no_local, f.identifier) for f in one.filters] == [
        ("t/#", 2, True, 5),
        ("u", 1, False, None),
    ]
    assert [(f.qos, f.state) for f in one.inflight] == [(1, "sent"), (1, "sent")]
    assert one.queues == {}
    lose(stage, 1)
    left_ms = stage.clock.now_ms()
    publish(stage, b"c", b"d", b"e")
    one = stage.operator.get_session("dev")
    assert one is not None
    assert (one.is_connected, one.peer, one.since_ms) == (False, None, left_ms)
    assert one.expires_ms == left_ms + 3_600_000
    assert one.will is not None
    assert one.will.topic == "gone"
    assert one.will.payload_bytes == 5
    assert one.will_due_ms == left_ms + 30_000
    assert [queue.messages_waiting for queue in one.queues.values()] == [3]
    connect(stage, 1)
    settle(stage)
    ack(stage, 1, 0x40, *[packet_id for _, packet_id, _ in got(stage, 1)])
    one = stage.operator.get_session("dev")
    assert one is not None
    assert (one.inflight, one.queues, one.will) == ([], {}, None)
    assert stage.operator.get_session("nobody") is None


def test_session_that_is_ended_loses_its_connection_and_its_state() -> None:
    stage = Stage()
    will = Will("t/gone", b"will", 1, False, Properties(will_delay_interval_s=30))
    connect(stage, 1, will=will)
    connect(stage, 2, "other")
    subscribe(stage, 1, "t/#")
    subscribe(stage, 2, "t/#")
    done: list[MotelogError | None] = []
    assert stage.operator.end_session("dev", done.append)
    assert done == [None]
    [disconnect] = stage.sent(1)
    assert (disconnect[0], disconnect[2]) == (0xE0, 0x98)
    assert stage.reasons == ["an operator has ended the session"]
    assert 1 in stage.output.closed
    settle(stage)
    assert [payload for _, _, payload in got(stage, 2)] == [b"will"]
    assert names(stage) == ["other"]
    assert names(restart(stage)) == ["other"]
    assert not connect(stage, 1)


def test_session_that_is_away_is_ended() -> None:
    stage = Stage()
    connect(stage, 1)
    lose(stage, 1)
    stage.log.settles_at_once = False
    done: list[MotelogError | None] = []
    assert stage.operator.end_session("dev", done.append)
    assert done == []
    stage.log.settle()
    assert done == [None]
    assert not stage.operator.end_session("dev", done.append)
    assert names(restart(stage)) == []


def test_end_that_the_log_does_not_take_is_told() -> None:
    stage = Stage()
    connect(stage, 1)
    lose(stage, 1)
    stage.log.error = StoreFullError("full")
    done: list[MotelogError | None] = []
    assert stage.operator.end_session("dev", done.append)
    assert [str(error) for error in done] == ["full"]
    assert names(stage) == ["dev"]


def test_shared_subscription_is_listed_and_not_ended_while_it_has_members() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "$share/g/t/#")
    name = "$share/g/t/#"
    assert names(stage) == [*(f"{name} #{number}" for number in range(8)), "dev"]
    described = stage.operator.get_session(name)
    assert described is not None
    assert (described.client_id, described.is_connected) == (name, True)
    assert stage.operator.list_sessions("dev", "", 1).sessions[0].filters == 1
    done: list[MotelogError | None] = []
    with pytest.raises(SessionInUseError):
        stage.operator.end_session(name, done.append)
    lose(stage, 1)
    assert stage.operator.end_session(name, done.append)
    assert done == [None]
    assert names(stage) == ["dev"]
    connect(stage, 1)
    publish(stage, b"a")
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"a"]


def test_what_a_client_did_not_get_is_counted_by_why() -> None:
    gateway = Gateway()
    slow = gateway.connect(5, "slow")
    small = gateway.connect(5, "small", maximum_packet_bytes=64)
    for peer in (slow, small):
        peer.subscribe("t/#", qos=1)
    gateway.stage.output.fill(slow.number)
    sender = gateway.connect(5, "sender")
    sender.publish("t/a", b"x")
    sender.publish("t/a", b"x" * 100, 1)
    for name, dropped in (("slow", {"slow": 1}), ("small", {"too_large": 1}), ("sender", {})):
        one = gateway.stage.operator.get_session(name)
        assert one is not None
        assert one.dropped == dropped
    metrics = gateway.stage.metrics
    assert (metrics.messages_dropped_qos0, metrics.messages_dropped_too_large) == (1, 1)
