"""Clients: what decisions do to connections, sessions and metrics; refusals' log lines."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from motelog.core.net.reactor_types import CloseReason, Fault
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.packet_types import (
    Connect,
    Properties,
    PropertyId,
    PropertyValue,
    Subscribe,
    SubscribeEntry,
    Unsubscribe,
    Will,
)
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from tests.support.gateway_stage import Stage, publish

SUBSCRIBE = bytes.fromhex("8206 0001 0001 61 01")  # "a", QoS 1
SUBSCRIBE_V5 = bytes.fromhex("8207 0001 00 0001 61 01")


def connect(client_id: str, version: int = 4, will: Will | None = None) -> bytes:
    return encode_connect(
        Connect(version=version, clean_start=True, keep_alive_s=60, client_id=client_id, will=will)
    )


def test_connection_has_a_session_from_connect_on() -> None:
    stage = Stage()
    stage.turn(opened=[1])
    connection = stage.connections[1]
    assert connection is not None
    assert connection.session is None
    stage.turn((1, connect("me", version=5)))
    session = connection.session
    assert session is not None
    assert (session.client_id, session.connection) == ("me", connection)
    assert (stage.output.variants[1], stage.output.limits[1]) == (5, (1_114_112, 90))
    assert stage.metrics.sessions_now == 1


@pytest.mark.parametrize("version", [3, 4, 5])
def test_second_connection_takes_over(version: int) -> None:
    stage = Stage()
    stage.turn((1, connect("twin", version)), opened=[1])
    stage.turn((1, SUBSCRIBE_V5 if version == 5 else SUBSCRIBE))
    stage.sent(1)
    stage.turn((2, connect("twin", version)), opened=[2])
    assert stage.sent(1) == ([b"\xe0\x01\x8e"] if version == 5 else [])
    assert stage.output.closed == [1]
    assert stage.connections[1] is None
    metrics = stage.metrics
    assert (metrics.sessions_now, metrics.subscriptions_now) == (1, 0)
    assert (metrics.sessions_taken_over, metrics.connections_closed) == (1, 1)


def test_refused_connection_is_answered_closed_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    will = Will(topic="$SYS/t", payload=b"", qos=0, retain=False)
    stage.turn((1, connect("me", 5, will=will)), (1, publish("a", b"x")), opened=[1])
    assert stage.sent(1) == [b"\x20\x03\x00\x90\x00"]
    assert (stage.output.closed, stage.connections[1]) == ([1], None)
    assert stage.stored() == []
    assert (stage.metrics.connections_refused, stage.metrics.sessions_now) == (1, 0)
    [record] = caplog.records
    assert "peer=127.0.0.1:4001 client_id='me' reason_code=0x90" in record.getMessage()


def test_client_above_the_limit_is_answered_and_one_that_is_known_takes_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(connections_max=2)
    stage.turn((1, connect("one")), (2, connect("two", 5)), opened=[1, 2])
    stage.turn((3, connect("three")), (4, connect("four", 5)), opened=[3, 4])
    assert (stage.sent(3), stage.sent(4)) == ([b"\x20\x02\x00\x03"], [b"\x20\x03\x00\x88\x00"])
    assert stage.output.closed == [3, 4]
    assert stage.metrics.connections_refused == 2
    assert "client_id='three' reason_code=0x88 why=as many clients" in caplog.text
    stage.turn((5, connect("one")), opened=[5])  # its first connection is half-open
    assert stage.sent(5) == [b"\x20\x02\x00\x00"]
    assert (stage.output.closed, stage.connections[1]) == ([3, 4, 1], None)
    stage.turn((5, b"\xe0\x00"))
    stage.turn((6, connect("three")), opened=[6])
    assert stage.sent(6) == [b"\x20\x02\x00\x00"]


def test_client_is_refused_while_its_session_cannot_be_found() -> None:
    stage = Stage()
    stage.turn((1, connect("one")), opened=[1])
    stage.view.rebuild("for the test")
    stage.turn((2, connect("one")), (3, connect("two", 5)), opened=[2, 3])
    assert (stage.sent(2), stage.sent(3)) == ([b"\x20\x02\x00\x03"], [b"\x20\x03\x00\x88\x00"])
    assert stage.output.closed == [1, 2, 3]
    while stage.journal.refresh(100):
        pass
    stage.turn((4, connect("one")), opened=[4])
    assert stage.sent(4) == [b"\x20\x02\x00\x00"]


def test_fault_before_connect_ends_the_connection_without_an_answer() -> None:
    stage = Stage()
    stage.turn(opened=[1], faults=[(1, Fault.IDLE)])
    assert stage.sent(1) == []
    assert stage.output.closed == [1]
    assert stage.metrics.connections_refused == 1


@pytest.mark.parametrize(
    ("fault", "reason_code"),
    [(Fault.IDLE, 0x8D), (Fault.FRAME_TOO_LARGE, 0x95), (Fault.MALFORMED_LENGTH, 0x81)],
)
def test_fault_is_told_to_version_5(fault: Fault, reason_code: int) -> None:
    stage = Stage()
    stage.connect(1, version=5)
    stage.turn(faults=[(1, fault)])
    assert stage.sent(1) == [bytes([0xE0, 1, reason_code])]
    assert stage.output.closed == [1]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ("32 06 0001 2b 0001 00", "topic name is empty, or has '+', '#' or a control character"),
        ("32 06 0001 61 0000 00", "packet identifier is 0, or there is no topic name and no alias"),
        ("30 03 0000 00", "packet identifier is 0, or there is no topic name and no alias"),
        ("36 06 0001 61 0001 00", "malformed packet"),
    ],
)
def test_reason_says_what_is_wrong_with_a_frame(packet: str, reason: str) -> None:
    stage = Stage()
    stage.turn((1, connect("me", 5)), opened=[1])
    stage.sent(1)
    stage.turn((1, bytes.fromhex(packet)))
    stage.sent(1)
    [told] = stage.reasons
    assert told.partition(" (at byte ")[0] == reason


def test_first_packet_that_is_no_connect_is_called_so(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.turn((1, b"\xc0\x00"), opened=[1])
    assert (stage.sent(1), stage.output.closed) == ([], [1])
    [record] = caplog.records
    assert record.getMessage().endswith("reason_code=0x82 why=the first packet is not CONNECT")


def test_connection_that_ended_earlier_in_a_turn_is_counted_once() -> None:
    stage = Stage()
    stage.connect(1)
    stage.turn(
        (1, b"\xe0\x00"), (1, SUBSCRIBE), faults=[(1, Fault.IDLE)], closed=[(1, CloseReason.PEER)]
    )
    assert stage.metrics.connections_closed == 1
    assert (stage.connections[1], stage.sent(1)) == (None, [])


def test_connection_that_does_not_read_is_ended_and_its_subscriptions_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.connect(1)
    stage.turn((1, SUBSCRIBE))
    stage.output.fill(1)
    stage.output.send(1, bytes(GatewayConfig().output_bytes_max))
    stage.turn()
    assert stage.connections[1] is None
    assert (stage.metrics.sessions_now, stage.metrics.subscriptions_now) == (0, 0)
    assert "output is full client_id='c1'" in caplog.text


def test_unsubscribe_ends_delivery() -> None:
    stage = Stage()
    stage.connect(1)
    stage.turn((1, SUBSCRIBE))
    stage.turn((1, bytes.fromhex("a205 0002 0001 61")))
    assert stage.sent(1) == [b"\x90\x03\x00\x01\x01", b"\xb0\x02\x00\x02"]
    assert stage.metrics.subscriptions_now == 0
    stage.turn((1, publish("a", b"x")))
    assert stage.sent(1) == []


def test_answer_that_the_client_does_not_take_ends_the_connection_instead() -> None:
    stage = Stage()
    properties = Properties(maximum_packet_bytes=40)
    connect = Connect(5, clean_start=True, keep_alive_s=60, client_id="c", properties=properties)
    for number, answer_bytes in ((1, 40), (2, 41)):
        stage.turn((number, encode_connect(connect)), opened=[number])
        stage.sent(number)
        filters = [SubscribeEntry(f"f{i}", 0) for i in range(answer_bytes - 5)]
        stage.turn((number, encode_subscribe(5, Subscribe(1, tuple(filters)))))
        [answer] = stage.sent(number)
        if answer_bytes == 40:
            assert (answer[0], len(answer)) == (0x90, 40)
            names = tuple(f"g{i}" for i in range(36))
            stage.turn((number, encode_unsubscribe(5, Unsubscribe(1, names))))
            [answer] = stage.sent(number)
        assert answer == b"\xe0\x01\x95"
        assert stage.output.closed.pop() == number
    assert stage.metrics.subscriptions_now == 0


@pytest.mark.parametrize(
    ("asked_s", "then_s", "answer"),
    [(0, 9, [b"\xe0\x01\x82"]), (None, 9, [b"\xe0\x01\x82"]), (0, 0, []), (9, 9, []), (9, 0, [])],
)
def test_session_expiry_in_disconnect_needs_one_in_connect(
    asked_s: int | None, then_s: int, answer: list[bytes]
) -> None:
    stage = Stage()
    properties = Properties(session_expiry_interval_s=asked_s)
    connect = Connect(5, clean_start=True, keep_alive_s=60, client_id="c", properties=properties)
    stage.turn((1, encode_connect(connect)), opened=[1])
    stage.sent(1)
    expiry: dict[PropertyId, PropertyValue] = {PropertyId.SESSION_EXPIRY_INTERVAL: then_s}
    stage.turn((1, encode_disconnect(5, 0, expiry)))
    assert (stage.sent(1), stage.output.closed) == (answer, [1])
    assert stage.metrics.connections_closed == 1


def test_options_are_replaced_and_counted_once() -> None:
    stage = Stage()
    stage.connect(1)
    stage.turn((1, SUBSCRIBE), (1, bytes.fromhex("8206 0002 0001 61 00")))
    assert stage.sent(1) == [b"\x90\x03\x00\x01\x01", b"\x90\x03\x00\x02\x00"]
    assert stage.metrics.subscriptions_now == 1
    stage.turn((1, publish("a", b"x", 7)))
    assert [packet[0] for packet in stage.sent(1)] == [0x40, 0x30]  # PUBACK, then QoS 0


def test_shutdown_ends_every_session() -> None:
    stage = Stage()
    stage.connect(1, version=5)
    stage.connect(2)
    stage.turn((2, SUBSCRIBE))
    assert stage.metrics.subscriptions_now == 1
    stage.sent(2)
    stage.clients.shut_down("end")
    assert (stage.sent(1), stage.sent(2)) == ([b"\xe0\x01\x8b"], [])
    assert stage.output.closed == [1, 2]
    assert stage.metrics.sessions_now == stage.metrics.subscriptions_now == 0


def test_log_lines_about_peers_are_bounded_by_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stage = Stage()
    for _ in range(30):
        stage.turn((1, b"\xc0\x00"), opened=[1])
    assert len(caplog.records) == 20
    stage.clock.advance(1000)
    stage.turn((1, b"\xc0\x00"), opened=[1])
    held_back, next_line = [record.getMessage() for record in caplog.records[20:]]
    assert held_back == "log lines of one kind held back count=10"
    assert next_line.startswith("the gateway refuses a connection")


@pytest.mark.parametrize(
    ("part", "frame"),
    [
        ("clients._subscribing.handle", SUBSCRIBE_V5),
        ("listener._publishing.publish", bytes.fromhex("3208 0001 61 0001 02 0100")),
        ("listener._exchanges.go_on", bytes.fromhex("6202 0001")),
    ],
    ids=["SUBSCRIBE", "PUBLISH", "PUBREL"],
)
def test_a_fault_of_the_gateway_ends_the_connection_whose_packet_it_was_alone(
    part: str, frame: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.clients.boundary = stage.boundary
    stage.turn((1, connect("hit", 5)), (2, connect("other", 5)), opened=[1, 2])
    stage.sent(1)
    stage.sent(2)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    owner: Any = stage
    *path, name = part.split(".")
    for one in path:
        owner = getattr(owner, one)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        stage.turn((1, frame), (2, b"\xc0\x00"))
    assert stage.sent(1) == [b"\xe0\x01\x80"]
    assert stage.output.closed == [1]
    assert stage.sent(2) == [b"\xd0\x00"]
    stage.turn((2, SUBSCRIBE_V5), closed=[(1, CloseReason.PEER)])
    assert stage.sent(2) == [bytes.fromhex("9004 0001 00 01")]
    record = caplog.records[0]
    assert (
        record.getMessage()
        == "the gateway failed to handle what a client sent; other clients are served"
    )
    assert record.exc_info is not None


def test_an_end_that_the_gateway_fails_at_ends_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.clients.boundary = stage.boundary
    stage.turn((1, connect("hit", 5)), (2, connect("other", 5)), opened=[1, 2])
    stage.sent(2)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(stage.clients._connections, "forget", fail)
    stage.turn((2, b"\xc0\x00"), closed=[(1, CloseReason.PEER)])
    assert stage.sent(2) == [b"\xd0\x00"]
    assert "the gateway failed to handle what a client sent" in caplog.text


def test_a_connection_that_the_gateway_fails_to_end_in_order_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.clients.boundary = stage.boundary
    stage.turn((1, connect("hit", 5)), (2, connect("other", 5)), opened=[1, 2])
    stage.sent(2)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(stage.clients, "_handle", fail)
        patch.setattr(stage.clients._connections, "end", fail)
        stage.turn((1, SUBSCRIBE_V5), (2, b"\xc0\x00"))
    assert stage.sent(2) == [b"\xd0\x00"]
    assert stage.output.aborted == [1]
    assert stage.connections[1] is None


@pytest.mark.parametrize("expiry_s", [0, 3600])
def test_a_take_over_begins_to_read_no_queue_anew(expiry_s: int) -> None:
    stage = Stage()
    for number in range(20):
        stage.log.create_topic(f"topic{number}", 8)
    connect = Connect(
        version=5,
        clean_start=not expiry_s,
        keep_alive_s=60,
        client_id="same",
        properties=Properties(session_expiry_interval_s=expiry_s),
    )
    subscribe = encode_subscribe(5, Subscribe(1, (SubscribeEntry("#", 1),)))
    stage.turn((1, encode_connect(connect)), opened=[1])
    stage.turn((1, subscribe))
    before = dict(stage.delivery._queues.by_handle)
    assert len(before) >= 160
    for number in (2, 3):
        stage.turn((number, encode_connect(connect)), opened=[number])
        stage.turn((number, subscribe))
        assert stage.delivery._queues.by_handle == before
        assert stage.delivery.positions().keys() == {queue.name for queue in before.values()}
    stage.turn(closed=[(3, CloseReason.PEER)])
    assert stage.delivery.positions() == {}
