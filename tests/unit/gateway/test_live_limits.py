"""Limits that change while the gateway runs hold from then on."""

from __future__ import annotations

import msgspec
import trio

from motelog.gateway.config import LIVE, GatewayConfig
from motelog.gateway.mqtt.packet_types import ReasonCode, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.gateway.server import Gateway
from tests.support.fake_log import FakeLog
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import connect, got, lose, publish, settle, subscribe


def test_a_quota_that_is_set_holds_for_sessions_that_are_away() -> None:
    stage = Stage(GatewayConfig())
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, *(b"%d" % number for number in range(25)))
    stage.configure(GatewayConfig(session_messages_max=10))
    connect(stage, 1)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"%d" % n for n in range(15, 25)]


def test_limits_of_retained_messages_rates_and_memory() -> None:
    stage = Stage(GatewayConfig())
    assert not stage.rates.is_on
    stage.configure(GatewayConfig(publish_rate_max=5, memory_bytes_max=4096))
    assert stage.rates.limits_publishes
    assert stage.memory.bytes_max == 4096
    stage.configure(GatewayConfig(connect_rate_max=5))
    assert (stage.rates.is_on, stage.rates.limits_publishes) == (True, False)
    stage.configure(GatewayConfig())
    assert not stage.rates.is_on


def test_a_session_of_before_has_the_new_limit_of_subscriptions() -> None:
    stage = Stage(GatewayConfig())
    connect(stage, 1)
    subscribe(stage, 1, "a/#")
    stage.configure(GatewayConfig(subscriptions_max=1))
    stage.turn((1, encode_subscribe(5, Subscribe(8, (SubscribeEntry("b/#", 1),)))))
    (suback,) = [packet for packet in stage.output.sent[1] if packet[0] == 0x90]
    assert suback[-1] == ReasonCode.QUOTA_EXCEEDED


async def test_a_gateway_takes_live_keys_alone(nursery: trio.Nursery) -> None:
    before = GatewayConfig(listen="127.0.0.1:0", topic_bytes_max=100)
    gateway = Gateway(before, FakeLog())
    await nursery.start(gateway.run)
    gateway.configure(GatewayConfig(listen="127.0.0.1:1", topic_bytes_max=7, will_bytes_max=9))
    taken = gateway._config
    assert (taken.listen, taken.topic_bytes_max, taken.will_bytes_max) == ("127.0.0.1:0", 100, 9)
    unchanged = {field for field in msgspec.structs.asdict(before) if field not in LIVE}
    assert all(getattr(taken, name) == getattr(before, name) for name in unchanged)
    nursery.cancel_scope.cancel()
