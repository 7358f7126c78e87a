"""The listener over a log in memory: acknowledgements, refusals, failed appends, order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from motelog.core.errors import BrokerError, FlushTimeoutError, StoreFencedError, StoreFullError
from motelog.core.message import encode_host
from motelog.core.net.reactor import CloseReason, Fault
from motelog.core.spare_memory import NO_MEMORY
from motelog.gateway import listener
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.log_port import OutcomeUnknownError
from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from tests.support.gateway_stage import Stage, publish
from tests.support.mqtt_wire import varint

LASTING = Connect(version=4, clean_start=False, keep_alive_s=60, client_id="lasting")

SUBSCRIBE = encode_subscribe(4, Subscribe(1, (SubscribeEntry("t/#", 1),)))


def lasting(client_id: str) -> bytes:
    return encode_connect(msgspec.structs.replace(LASTING, client_id=client_id))


def test_publish_is_stored_with_what_the_mapping_says() -> None:
    stage = Stage()
    stage.connect(1)
    stage.turn((1, publish("telemetry/dev42/temp", b"21.5", 7)))
    assert stage.sent(1) == [b"\x40\x02\x00\x07"]
    [record] = stage.stored()
    assert record[0] == b"telemetry"
    assert record[12] == (
        b"mqttRealTopic\x01telemetry/dev42/temp\x02TAGS\x01dev42\x02qosLevel\x011\x02"
        b"clientId\x01c1\x02"
    )
    assert record[13] == b"21.5"
    assert record[7] == bytes([127, 0, 0, 1]) + (4001).to_bytes(4, "big")


def test_acknowledgements_wait_until_the_log_is_durable() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1)
    stage.connect(2)
    stage.turn((1, publish("t/a", b"1", 1)), (2, publish("t/a", b"2", 9)))
    stage.turn((1, publish("t/a", b"3", 2)))
    assert stage.log.settle_requests == 0  # the server asks, once for both turns
    assert stage.sent(1) == []
    stage.turn(closed=[(2, CloseReason.PEER)])
    stage.connect(2)  # another client in the same slot
    stage.log.settle()
    assert stage.sent(1) == [b"\x40\x02\x00\x01", b"\x40\x02\x00\x02"]
    assert stage.sent(2) == []


def test_only_what_is_durable_is_acknowledged() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1)
    stage.turn((1, publish("t/a", b"1", 1)))
    stage.turn((1, publish("t/a", b"2", 2)))
    stage.log.settle(1)
    assert stage.sent(1) == [b"\x40\x02\x00\x01"]
    stage.log.settle()
    assert stage.sent(1) == [b"\x40\x02\x00\x02"]


def test_nobody_is_acknowledged_after_the_end() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1)
    stage.turn((1, publish("t/a", b"1", 1)))
    stage.log.close()
    stage.log.settle()
    assert stage.sent(1) == []


def test_acknowledgements_are_owed_to_a_connection_whose_output_is_full_too() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.output.fill(1)
    stage.turn((1, publish("t/a", b"x", 5)), (2, publish("t/a", b"x", 6)))
    assert stage.sent(1) == [b"\x40\x02\x00\x05"]
    assert stage.sent(2) == [b"\x40\x02\x00\x06"]


def test_client_above_receive_maximum_is_disconnected_while_the_log_is_behind() -> None:
    stage = Stage(GatewayConfig(receive_maximum=2))
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.connect(2)
    for connection, version in ((1, 5), (2, 4)):
        for packet_id in (1, 2, 3):
            stage.turn((connection, publish("t/a", b"x", packet_id, version=version)))
    assert stage.sent(1) == [b"\xe0\x01\x93"]
    assert stage.output.closed == [1]


def test_failed_flush_is_answered_and_never_acknowledged() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.connect(2)
    stage.connect(3)
    stage.turn((3, publish("t/a", b"0", 1)))
    stage.log.settle()
    stage.turn((1, publish("t/a", b"1", 1, version=5)), (2, publish("t/a", b"2", 2)))
    stage.log.settle(error=StoreFencedError("EIO"))
    assert stage.sent(1)[0][:5] == b"\x40\x03\x00\x01\x83"
    assert stage.sent(2) == []
    assert stage.sent(3) == [b"\x40\x02\x00\x01"]
    assert stage.output.closed == [2]


def test_a_disk_that_takes_too_long_is_told_and_never_acknowledged() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.connect(2)
    stage.turn((1, publish("t/a", b"1", 1, version=5)), (2, publish("t/a", b"2", 2)))
    stage.turn((1, publish("t/a", b"3", 2, version=5)))
    assert stage.sent(1) == []
    stage.log.settle(1, FlushTimeoutError("not on the disk within 5000 ms"))
    assert stage.sent(1)[0][:5] == b"\x40\x03\x00\x01\x83"
    assert stage.output.closed == [2]
    assert stage.metrics.publishes_refused == 2
    # What was appended stays, and whoever comes in time is acknowledged.
    stage.log.settle()
    assert stage.sent(1) == [b"\x40\x02\x00\x02"]
    assert stage.sent(2) == []
    assert [record[13] for record in stage.stored()] == [b"1", b"2", b"3"]


def test_publishers_that_cannot_be_told_what_became_of_a_message_are_disconnected() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    for number in (1, 2, 3):
        stage.connect(number, version=5)
    stage.turn((1, publish("t/a", b"1", 1, version=5)), (1, publish("t/a", b"2", 2, version=5)))
    stage.turn((2, publish("t/a", b"3", 1, version=5)), (3, publish("t/a", b"4", 1, version=5)))
    stage.log.settle(1, OutcomeUnknownError("no answer"))
    # MQTT 3 has no other way anyway; here a PUBACK would have said that the log has them not.
    assert [packet[:1] for packet in stage.sent(1)] == [b"\xe0"]
    assert stage.output.closed == [1]
    assert stage.log.withdrawn == [encode_host("127.0.0.1", 4001)]
    assert stage.metrics.publishes_refused == 2
    # What the client had sent behind them comes again after them, and must not be there before.
    stage.turn((1, publish("t/a", b"5", 3, version=5)))
    stage.log.settle()
    assert stage.sent(2) == stage.sent(3) == [b"\x40\x02\x00\x01"]
    assert b"5" not in [record[13] for record in stage.stored()]


def test_full_store_refuses_with_quota_exceeded_and_goes_on_when_there_is_room() -> None:
    stage = Stage()
    stage.connect(1, version=5)
    stage.log.error = StoreFullError("disk 91 % full")
    stage.turn((1, publish("t/a", b"1", 1, version=5)))
    assert stage.sent(1)[0][:5] == b"\x40\x03\x00\x01\x97"
    assert stage.metrics.publishes_refused == 1
    stage.log.error = None
    stage.turn((1, publish("t/a", b"2", 2, version=5)))
    assert stage.sent(1) == [b"\x40\x02\x00\x02"]
    assert [record[13] for record in stage.stored()] == [b"2"]


def test_refusal_between_publishes_keeps_the_order_of_acknowledgements() -> None:
    stage = Stage()
    stage.connect(1, version=5)
    frames = [
        (1, publish(topic, b"x", packet_id, version=5))
        for packet_id, topic in enumerate(["t/a", "$SYS/x", "t/b", "t/a"], 1)
    ]
    stage.turn(*frames)
    assert [(p[3], p[4] if p[1] > 2 else 0) for p in stage.sent(1)] == [
        (1, 0),
        (2, 0x90),
        (3, 0),
        (4, 0),
    ]
    assert len(stage.stored()) == 3


def answers(sent: list[bytes]) -> list[tuple[int, int]]:
    """Return (packet identifier, reason code) of PUBACKs."""
    return [(p[3], p[4] if p[1] > 2 else 0) for p in sent]


def test_refusal_waits_behind_publishes_that_wait_for_the_disk() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.connect(2)
    stage.turn((1, publish("t/a", b"x", 1, version=5)))
    stage.turn((1, publish("$SYS/x", b"x", 2, version=5)), (2, publish("t/a", b"x", 1)))
    stage.turn((2, publish("$SYS/x", b"x", 2)), (1, publish("t/a", b"x", 3, version=5)))
    assert (stage.sent(1), stage.sent(2), stage.output.closed) == ([], [], [])
    stage.log.settle(1)
    assert answers(stage.sent(1)) == [(1, 0), (2, 0x90)]
    assert stage.metrics.publishes_refused == 1
    stage.log.settle(1)
    # MQTT 3 is refused by the end of the connection, behind its acknowledgement.
    assert answers(stage.sent(2)) == [(1, 0)]
    assert stage.output.closed == [2]
    stage.log.settle()
    assert answers(stage.sent(1)) == [(3, 0)]
    assert stage.metrics.publishes_refused == 2


def test_refusal_behind_a_failed_append_keeps_its_own_reason() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.turn((1, publish("t/a", b"x", 1, version=5)), (1, publish("$SYS/x", b"x", 2, version=5)))
    stage.log.settle(error=StoreFullError("disk 91 % full"))
    assert answers(stage.sent(1)) == [(1, 0x97), (2, 0x90)]


def test_refusal_that_waits_is_its_connection_s_and_counts_for_receive_maximum() -> None:
    stage = Stage(GatewayConfig(receive_maximum=2))
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.connect(2, version=5)
    for number in (1, 2):
        stage.turn((number, publish("t/a", b"x", 1, version=5)))
        stage.turn((number, publish("$SYS/x", b"x", 2, version=5)))
    stage.turn((1, publish("$SYS/x", b"x", 3, version=5)), closed=[(2, CloseReason.PEER)])
    assert stage.sent(1) == [b"\xe0\x01\x93"]
    stage.connect(2, version=5)  # another client in the same slot
    stage.log.settle()
    assert stage.sent(2) == []
    stage.turn((2, publish("t/a", b"x", 1, version=5)), (2, publish("t/a", b"x", 2, version=5)))
    stage.log.settle()
    assert answers(stage.sent(2)) == [(1, 0), (2, 0)]


def test_subscription_takes_effect_after_the_publishes_before_it() -> None:
    stage = Stage()
    stage.connect(1)
    subscribe = bytes.fromhex("8206 0001 0001 23 00")  # "#"
    stage.turn((1, publish("t/a", b"before")), (1, subscribe), (1, publish("t/a", b"after")))
    suback, message = stage.sent(1)
    assert suback == b"\x90\x03\x00\x01\x00"
    assert message.endswith(b"after")


def test_packets_after_a_close_in_the_same_turn_are_ignored() -> None:
    stage = Stage()
    stage.connect(1)
    stage.turn((1, b"\xe0\x00"), (1, publish("t/a", b"ghost")), (1, b"\xc0\x00"))
    assert stage.output.closed == [1]
    assert stage.stored() == []
    assert stage.sent(1) == []


def test_fault_of_one_connection_does_not_touch_the_batch_of_others() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    stage.turn(
        (1, publish("t/a", b"1", 1)),
        (2, bytes.fromhex("36 06 0001 61 0001 68")),  # QoS 3
        (1, publish("t/a", b"2", 2)),
        faults=[(2, Fault.FRAME_TOO_LARGE)],
    )
    assert stage.sent(1) == [b"\x40\x02\x00\x01", b"\x40\x02\x00\x02"]
    assert stage.output.closed == [2]


def test_topics_beyond_the_limit_go_to_the_default_topic() -> None:
    stage = Stage(GatewayConfig(topics_max=1))
    stage.connect(1)
    stage.turn((1, publish("one/a", b"1", 1)), (1, publish("two/a", b"2", 2)))
    assert sorted(record[0] for record in stage.stored()) == [b"MQTT_DEFAULT", b"one"]


def test_rule_with_the_client_identifier_routes_each_publisher_by_itself() -> None:
    rule = TopicRule(filter="up/#", queue_topic="up", tag="{client_id}")
    stage = Stage(GatewayConfig(topic_map=(rule,)))
    stage.connect(1)
    stage.connect(2)
    stage.turn((1, publish("up/x", b"1")), (2, publish("up/x", b"2")), (1, publish("up/x", b"3")))
    tags = {record[13]: b"TAGS\x01c1\x02" in record[12] for record in stage.stored()}
    assert tags == {b"1": True, b"2": False, b"3": True}


def test_properties_that_do_not_fit_a_record_are_refused() -> None:
    stage = Stage()
    stage.connect(1, version=5)
    pair = b"\x26\x00\x01a" + (40_000).to_bytes(2, "big") + b"v" * 40_000
    body = b"\x00\x03t/a\x00\x05" + varint(len(pair)) + pair
    stage.turn((1, b"\x32" + varint(len(body)) + body))
    assert stage.sent(1)[0][:5] == b"\x40\x03\x00\x05\x97"
    assert stage.stored() == []


def with_correlation_data(size: int, packet_id: int) -> bytes:
    block = b"\x09" + size.to_bytes(2, "big") + bytes(size)
    head = b"\x00\x03t/a" + (packet_id.to_bytes(2, "big") if packet_id else b"")
    body = head + varint(len(block)) + block + b"body"
    return (b"\x32" if packet_id else b"\x30") + varint(len(body)) + body


def test_correlation_data_that_does_not_fit_is_refused_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.connect(1, version=5)
    stage.turn((1, with_correlation_data(24_000, 1)), (1, with_correlation_data(65_535, 2)))
    assert answers(stage.sent(1)) == [(1, 0), (2, 0x97)]
    stage.turn((1, with_correlation_data(24_000, 0)), (1, with_correlation_data(65_535, 0)))
    assert (stage.sent(1), stage.output.closed) == ([], [])
    assert [record[13] for record in stage.stored()] == [b"body"] * 2
    assert stage.metrics.publishes_refused == 2
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" why=")[0] for line in lines] == [
        "the gateway refuses a publish client_id='c1' qos=1 reason_code=0x97 user='' topic='t/a'",
        "the gateway refuses a publish client_id='c1' qos=0 reason_code=0x97 user='' topic='t/a'",
    ]
    assert "bytes in the log, at most 32767 fit" in lines[1]


def test_an_error_is_its_own_batch_s_and_is_told_in_order() -> None:
    stage = Stage()
    stage.log.settles_at_once = False
    stage.connect(1, version=5)
    stage.turn((1, publish("t/a", b"1", 1, version=5)))
    stage.log.error = StoreFullError("disk 91 % full")
    stage.turn((1, publish("t/a", b"2", 2, version=5)))
    stage.log.error = None
    stage.turn((1, publish("t/a", b"3", 3, version=5)))
    assert stage.sent(1) == []
    stage.log.settle()
    assert [(p[3], p[4] if p[1] > 2 else 0) for p in stage.sent(1)] == [(1, 0), (2, 0x97), (3, 0)]


def test_publishes_to_a_topic_that_is_being_created_wait_under_their_ticket() -> None:
    stage = Stage()
    stage.connect(1)
    stage.log.creates_at_once = False
    stage.turn((1, publish("new/a", b"1", 1)))
    stage.turn((1, publish("new/b", b"2", 2)))
    assert stage.sent(1) == []
    stage.log.created("new")
    assert stage.sent(1) == [b"\x40\x02\x00\x01", b"\x40\x02\x00\x02"]
    assert {record[0] for record in stage.stored()} == {b"new"}


def test_a_topic_that_is_refused_after_a_while_leaves_its_name_to_the_default_topic() -> None:
    stage = Stage(GatewayConfig(topics_max=1))
    stage.connect(1, version=5)
    stage.log.creates_at_once = False
    stage.turn((1, publish("new/a", b"1", 1, version=5)))
    stage.log.created("new", BrokerError(1, "no more topics"))
    assert stage.sent(1)[0][:5] == b"\x40\x03\x00\x01\x83"
    stage.turn((1, publish("new/a", b"2", 2, version=5)))
    assert stage.sent(1) == [b"\x40\x02\x00\x02"]
    assert [(record[0], record[13]) for record in stage.stored()] == [(b"MQTT_DEFAULT", b"2")]
    stage.log.creates_at_once = True
    stage.turn((1, publish("other/a", b"3", 3, version=5)))  # the refused one does not count
    assert b"other" in {record[0] for record in stage.stored()}


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_turn_without_memory_ends_its_clients_and_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    stage = Stage()
    for number in (1, 2, 3):
        stage.connect(number)

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(listener, "split", fail)
        stage.turn((1, publish("t/a", b"1", 1)), (2, publish("t/a", b"2", 2)))
    assert stage.output.closed == [1, 2]
    assert [c is not None for c in stage.connections[1:4]] == [False, False, True]
    stage.turn((3, publish("t/a", b"3", 3)))
    assert stage.sent(3) == [b"\x40\x02\x00\x03"]
    assert [record[13] for record in stage.stored()] == [b"3"]
    assert "a turn lacks memory" in caplog.text


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", NO_MEMORY)
def test_an_append_without_memory_acknowledges_nothing_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, qos: int, failing: int, error: type[Exception]
) -> None:
    stage = Stage()
    stage.turn((1, encode_connect(LASTING)), opened=[1])
    stage.sent(1)
    append, left = stage.log.append, failing

    def fail_at_first(messages: list[Any]) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise error
        return append(messages)

    again = bytes([0x30 | qos << 1]) + publish("t/a", b"1", 7)[1:]
    monkeypatch.setattr(stage.log, "append", fail_at_first)
    stage.turn((1, again))
    assert stage.sent(1) == []
    stage.turn((1, encode_connect(LASTING)), opened=[1])
    assert stage.sent(1) == [bytes.fromhex("20020100")]
    stage.turn((1, again))
    answer = 0x40 if qos == 1 else 0x50
    assert stage.sent(1) == [bytes([answer, 2, 0, 7])]
    # At QoS 1 what came of the first turn after all may be there twice.
    once = [b"1"] * (2 if (qos, failing) == (1, 1) else 1)
    assert [record[13] for record in stage.stored()] == once


@pytest.mark.parametrize("lacking", ["append", "note"])
def test_changes_of_sessions_that_lack_memory_end_their_clients_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    stage = Stage()
    names = {1: "one", 2: "two", 3: "three"}
    for number, name in names.items():
        stage.turn((number, lasting(name)), opened=[number])
        stage.sent(number)
    owner: Any = stage.log if lacking == "append" else stage.journal._unread
    work, left = getattr(owner, lacking), 1

    def fail_at_first(*arguments: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise MemoryError
        return work(*arguments)

    monkeypatch.setattr(owner, lacking, fail_at_first)
    stage.turn((1, SUBSCRIBE), (2, SUBSCRIBE))
    assert not left
    assert [stage.connections[number] is not None for number in names] == [False, False, True]
    assert "lack memory" in caplog.text
    for number, name in names.items():
        if number < 3:
            stage.turn((number, lasting(name)), opened=[number])
        stage.turn((number, SUBSCRIBE))
        stage.sent(number)
    stage.turn((3, publish("t/a", b"x", 1)))
    for number in names:
        assert any(b"x" in packet for packet in stage.sent(number))
    while stage.journal.refresh(1000):
        pass
    assert not list(stage.journal._unread)
    assert not stage.journal._unread._writers
    again = Stage(log=stage.log, name="again")
    for name in names.values():
        stored = again.journal.load(name)
        assert stored is not None
        assert [one.topic_filter for one in stored.filters] == ["t/#"]
