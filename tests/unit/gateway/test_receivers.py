"""What an operator is told of one message: who gets it, and how far it has got to them."""

from __future__ import annotations

import pytest

from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES
from motelog.gateway.operator.answers import MessageReceiver, MessageReceivers
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import (
    ack,
    connect,
    lose,
    publish,
    restart,
    settle,
    subscribe,
)

GROUP = "$share/g/t/#"


def asked(stage: Stage, at: int, client_id: str = "") -> MessageReceivers | None:
    """Ask about the message of t/1 at a queue offset; those of t/1 and below are in one queue."""
    settle(stage)
    queue = stage.log.describe(stage.log.queue_of("t", "1"))
    called = [queue, queue.replace("/", "/some-broker/")]
    return stage.operator.list_receivers("t/1", "t", called, at, client_id)


def receivers(stage: Stage, at: int, client_id: str = "") -> list[MessageReceiver]:
    found = asked(stage, at, client_id)
    assert found is not None
    assert found.more == 0
    return found.receivers


def places(stage: Stage, at: int, client_id: str = "") -> dict[str, str]:
    """Return where the message is, by client, or shared subscription and client."""
    found = receivers(stage, at, client_id)
    return {" ".join(filter(None, (one.share, one.client_id))): one.place for one in found}


def test_message_is_followed_to_each_session() -> None:
    stage = Stage(GatewayConfig(inflight_max=2))
    for number, client_id in ((1, "slow"), (2, "quick"), (3, "second"), (4, "other")):
        connect(stage, number, client_id)
        subscribe(stage, number, "u/#" if client_id == "other" else "t/#", qos=number % 3)
    publish(stage, b"0", b"1", b"2", b"3", qos=2)
    ack(stage, 1, 0x40, 2)
    ack(stage, 2, 0x50, 1)
    assert places(stage, 0) == {"slow": "in flight", "quick": "released", "second": "passed"}
    assert places(stage, 1) == {"slow": "passed", "quick": "in flight", "second": "passed"}
    assert places(stage, 3) == {"slow": "waits", "quick": "waits", "second": "passed"}
    ack(stage, 2, 0x70, 1)
    assert places(stage, 0)["quick"] == "passed"
    slow = receivers(stage, 0, "slow")
    assert [(one.filters, one.qos, one.is_connected) for one in slow] == [(["t/#"], 1, True)]


def test_session_that_is_away_is_found_by_its_name() -> None:
    stage = Stage()
    connect(stage, 1, "dev")
    subscribe(stage, 1, "t/#", "t/+", "+/none")
    publish(stage, b"0")
    ack(stage, 1, 0x40, 1)
    lose(stage, 1)
    publish(stage, b"1")
    for one in (stage, restart(stage)):
        assert receivers(one, 1) == []
        assert places(one, 0, "dev") == {"dev": "passed"}
        (dev,) = receivers(one, 1, "dev")
        assert (dev.place, dev.is_connected, dev.filters) == ("waits", False, ["t/#", "t/+"])
        assert asked(one, 1, "nobody") is None


def test_session_that_does_not_want_it_is_told_as_such() -> None:
    stage = Stage(GatewayConfig(inflight_max=1))
    connect(stage, 1, "dev")
    subscribe(stage, 1, "u/#", "t/other")
    connect(stage, 2, "late")
    subscribe(stage, 2, "t/1/x")
    publish(stage, b"fills its window", b"waits", topic="t/1/x")
    # Its cursor is before this message, but the subscription that matches it is younger.
    publish(stage, b"2")
    subscribe(stage, 2, "t/1")
    publish(stage, b"3")
    assert places(stage, 2, "dev") == {"dev": "not wanted"}
    assert places(stage, 2, "late") == {"late": "not wanted"}
    assert places(stage, 3, "late") == {"late": "waits"}


def test_message_of_a_shared_subscription_is_with_one_member() -> None:
    stage = Stage(GatewayConfig(inflight_max=1))
    for number, client_id in ((1, "a"), (2, "b")):
        connect(stage, number, client_id, properties=NO_PROPERTIES)
        subscribe(stage, number, GROUP)
    publish(stage, b"0", b"1", b"2")
    assert places(stage, 0) == {f"{GROUP} a": "in flight"}
    assert [one.qos for one in receivers(stage, 0)] == [1]
    assert places(stage, 1) == {f"{GROUP} b": "in flight"}
    assert places(stage, 2) == {GROUP: "waits"}
    ack(stage, 1, 0x40, 1)
    settle(stage)
    assert places(stage, 0) == {GROUP: "passed"}
    assert places(stage, 2) == {f"{GROUP} a": "in flight"}
    # Of a member, its own subscriptions and those that it shares.
    assert places(stage, 2, "b") == {"b": "not wanted", f"{GROUP} a": "in flight"}
    lose(stage, 1)
    assert places(stage, 2) == {GROUP: "waits"}


def test_receivers_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motelog.gateway.operator.receivers.RECEIVERS_MAX", 2)
    stage = Stage()
    for number in range(5):
        connect(stage, number, f"dev{number}", properties=NO_PROPERTIES)
        subscribe(stage, number, "t/#", qos=0)
    publish(stage, b"0")
    found = asked(stage, 0)
    assert found is not None
    assert (len(found.receivers), found.more) == (2, 3)


def test_queue_that_this_gateway_does_not_know_has_no_receivers() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, b"0")
    for topic, names in (("t", ["t/99"]), ("none", ["none/0"])):
        for client_id in ("", "dev"):
            found = stage.operator.list_receivers("t/1", topic, names, 0, client_id)
            assert found == MessageReceivers(receivers=[], more=0)
