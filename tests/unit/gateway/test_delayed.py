"""``$delayed/{seconds}/{topic}``: stored at once, delivered when it is due."""

from __future__ import annotations

import pytest

from motelog.core.message import decode_properties
from motelog.core.records.decode import decode_brief
from motelog.core.topic_names import TIMER_TOPIC
from motelog.gateway.mqtt.acks import decode_ack
from motelog.gateway.publish.delayed import split_delayed
from tests.support.gateway_stage import Stage
from tests.support.mqtt import body_of
from tests.unit.gateway.test_sessions import connect, got, lose, restart, settle, subscribe

DAY_S = 86_400


def publish(stage: Stage, topic: str, qos: int, *, version: int = 5, bits: int = 0) -> None:
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name
    body += (b"\0\x05" if qos else b"") + (b"\0" if version == 5 else b"") + b"late"
    stage.turn((2, bytes((0x30 | qos << 1 | bits, len(body))) + body))


def pass_time(stage: Stage, ms: int) -> None:
    stage.log.now_ms += ms
    stage.log.deliver_due()
    settle(stage)


@pytest.mark.parametrize(
    ("topic", "delay_ms", "name"),
    [
        (b"$delayed/1/a", 1_000, b"a"),
        (b"$delayed/060/a/b", 60_000, b"a/b"),
        (b"$delayed/3456000//a", 40 * DAY_S * 1000, b"/a"),
    ],
)
def test_delay_and_name(topic: bytes, delay_ms: int, name: bytes) -> None:
    assert split_delayed(topic) == (delay_ms, name)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_is_acknowledged_when_it_is_stored_and_delivered_when_it_is_due(qos: int) -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2)
    connect(stage, 2, "publisher")
    stage.log.settles_at_once = False
    publish(stage, "$delayed/60/t/1", qos)
    assert stage.sent(2) == []
    stage.log.settles_at_once = True
    stage.log.settle()
    assert [packet[0] for packet in stage.sent(2)] == [[], [0x40], [0x50]][qos]
    pass_time(stage, 59_999)
    assert got(stage, 1) == []
    pass_time(stage, 1)
    [(first_byte, _, payload)] = got(stage, 1)
    assert (first_byte, payload) == (0x30 | qos << 1, b"late")
    [record] = stage.log.records[TIMER_TOPIC, 0]
    assert decode_properties(decode_brief(record, b"")[0][3])["mqttRealTopic"] == "t/1"


@pytest.mark.parametrize("step_ms", [-30_000, 30_000])
def test_the_delay_is_counted_by_the_logs_clock(step_ms: int) -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    connect(stage, 2, "publisher")
    stage.clock.step_wall(step_ms)
    publish(stage, "$delayed/10/t/1", 1)
    pass_time(stage, 9_999)
    assert got(stage, 1) == []
    pass_time(stage, 1)
    assert [payload for _, _, payload in got(stage, 1)] == [b"late"]


@pytest.mark.parametrize(
    "topic",
    [
        "$delayed/0/t",
        "$delayed/-1/t",
        "$delayed/1.5/t",
        "$delayed/3456001/t",
        "$delayed/٣/t",
        "$delayed/1",
        "$delayed/1/",
        "$delayed/1/$SYS/t",
        "$delayed/1/$delayed/1/t",
        "$delayed/t",
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topic_that_cannot_be_delayed_is_refused(topic: str, qos: int) -> None:
    stage = Stage()
    connect(stage, 2, "publisher")
    publish(stage, topic, qos)
    answers = stage.sent(2)
    if qos:
        [answer] = answers
        assert answer[0] == (0x40 if qos == 1 else 0x50)
        assert decode_ack(5, answer[0], body_of(answer)).reason_code == 0x90
    else:
        assert answers == []
        assert stage.metrics.publishes_refused == 1
    assert stage.stored() == []


def test_delayed_publish_is_not_retained() -> None:
    stage = Stage()
    connect(stage, 2, "publisher")
    publish(stage, "$delayed/1/t", 1, bits=1)
    [answer] = stage.sent(2)
    assert decode_ack(5, answer[0], body_of(answer)).reason_code == 0x90
    assert stage.stored() == []


def test_delayed_publish_comes_after_a_restart() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    connect(stage, 2, "publisher")
    publish(stage, "$delayed/60/t/1", 1)
    again = restart(stage)
    connect(again, 1)
    pass_time(again, 60_000)
    assert [payload for _, _, payload in got(again, 1)] == [b"late"]


@pytest.mark.parametrize("is_due", [False, True])
def test_qos_2_publish_that_is_sent_again_is_delivered_once(is_due: bool) -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    connect(stage, 2, "publisher")
    publish(stage, "$delayed/60/t/1", 2)
    again = restart(stage)
    connect(again, 1)
    if is_due:
        pass_time(again, 60_000)
    assert connect(again, 2, "publisher")
    publish(again, "$delayed/60/t/1", 2, bits=8)
    assert [packet[0] for packet in again.sent(2)] == [0x50]
    lose(again, 2)
    pass_time(again, 120_000)
    assert [payload for _, _, payload in got(again, 1)] == [b"late"]
