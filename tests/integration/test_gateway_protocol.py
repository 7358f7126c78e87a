"""The gateway over real sockets: what the standard lets a server say, and hostile bytes."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from motelog.gateway.mqtt.packet_types import (
    Properties,
    PropertyId,
    Subscribe,
    SubscribeEntry,
)
from motelog.gateway.mqtt.properties import encode_properties
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.testing import MotelogProcess
from tests.support.mqtt_wire import Wire, published, varint


@pytest.fixture
def wire(motelog_stack: MotelogProcess) -> Wire:
    return Wire(motelog_stack.mqtt)


def connected(motelog: MotelogProcess, client_id: str = "", version: int = 4) -> Wire:
    wire = Wire(motelog.mqtt)
    assert wire.connect(client_id, version=version).reason_code == 0
    return wire


def test_ping_is_answered(motelog_stack: MotelogProcess) -> None:
    with connected(motelog_stack) as wire:
        wire.send(b"\xc0\x00")
        assert wire.packet() == (0xD0, b"")


def test_connack_tells_what_is_not_offered(wire: Wire) -> None:
    with wire:
        asked = Properties(session_expiry_interval_s=3600)
        connack = wire.connect("", version=5, clean_start=False, properties=asked)
        granted = connack.properties
        assert connack.session_present is False
        assert granted.assigned_client_id
        assert granted.session_expiry_interval_s is None  # as asked
        assert granted.maximum_qos is None
        assert granted.retain_available is None
        assert granted.shared_subscription_available is None
        assert granted.subscription_identifier_available is None


@pytest.mark.parametrize(
    ("connect", "answer"),
    [
        ("100c 00044d5154540400003c0000", "20020002"),  # 3.1.1, clean session 0, empty id
        ("100d 00044d5154540602003c000161", "20020001"),  # protocol level 6
        ("100d 00044d5154548402003c000161", "20020001"),  # a bridge: it falls back to level 4
        ("100e 00064d5149736470030200 3c0000", "20020002"),  # 3.1 with an empty client id
    ],
)
def test_connect_that_cannot_be_served_is_refused(wire: Wire, connect: str, answer: str) -> None:
    with wire:
        wire.send(bytes.fromhex(connect))
        first_byte, body = wire.packet()
        assert bytes([first_byte, len(body)]) + body == bytes.fromhex(answer)
        assert wire.closed()


@pytest.mark.parametrize(
    "first",
    [
        "c000",  # PINGREQ before CONNECT
        "3006000174 6869 00",  # PUBLISH before CONNECT
        "100d 00044d5154540403003c000161",  # reserved flag set
        "10ffffff7f",  # claims 256 MiB
        "10ffffffff7f",  # five length bytes
        "16030100c8010000c4",  # TLS on the plain port
        "474554202f20485454502f312e310d0a0d0a" + "20" * 80,  # HTTP
    ],
)
def test_garbage_before_connect_closes_that_connection_alone(
    motelog_stack: MotelogProcess, wire: Wire, first: str
) -> None:
    with connected(motelog_stack) as other, wire:
        wire.send(bytes.fromhex(first))
        assert wire.closed()
        other.send(b"\xc0\x00")
        assert other.packet() == (0xD0, b"")


@pytest.mark.parametrize(
    ("packet", "reason_code"),
    [
        ("36 08 000161 0001 00 6869", 0x81),  # QoS 3
        ("32 08 000161 0000 00 6869", 0x82),  # packet identifier 0
        ("30 06 000123 00 6869", 0x90),  # wildcard in a topic name
        ("30 06 0001ff 00 6869", 0x81),  # topic is not UTF-8
        ("30 05 0000 00 6869", 0x82),  # neither topic nor alias
        ("30 08 000161 03 230021 68", 0x94),  # alias above the maximum
        ("30 08 0000 03 230001 68 69", 0x82),  # alias that was never set
        ("82 09 0001 02 0b00 0001 61 00", 0x82),  # subscription identifier 0
        ("80 07 0001 00 0001 61 00", 0x81),  # SUBSCRIBE with wrong flags
        ("10 0e 00044d5154540502003c00000161", 0x82),  # second CONNECT
        ("f0 00", 0x82),  # AUTH
        ("40 01 00", 0x81),  # short PUBACK
    ],
)
def test_version_5_hears_why_its_connection_ends(
    motelog_stack: MotelogProcess, packet: str, reason_code: int
) -> None:
    with connected(motelog_stack, version=5) as wire:
        wire.send(bytes.fromhex(packet))
        first_byte, body = wire.packet()
        assert (hex(first_byte), hex(body[0])) == ("0xe0", hex(reason_code))
        assert wire.closed()


@pytest.mark.parametrize(
    ("topic_filter", "version", "code"),
    [
        ("$share/g/a", 5, 0),
        ("$share/g/a", 4, 0),
        ("$share/g/$SYS/a", 5, 0x87),
        ("$own/#", 5, 0x87),
        ("a/#", 5, 0),
        ("a" * 1025, 5, 0x8F),
    ],
)
def test_suback_has_the_code_of_each_filter(
    motelog_stack: MotelogProcess, topic_filter: str, version: int, code: int
) -> None:
    with connected(motelog_stack, version=version) as wire:
        assert wire.subscribe(topic_filter, 1) == (code or 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscription_is_granted_as_asked(motelog_stack: MotelogProcess, qos: int) -> None:
    with connected(motelog_stack) as wire:
        assert wire.subscribe("a/b", qos) == qos


@pytest.mark.parametrize("topic", ["$SYS/x", "t" * 1025])
def test_refused_topic_name_is_answered_and_not_stored(
    motelog_stack: MotelogProcess, topic: str
) -> None:
    with (
        connected(motelog_stack, version=5) as reader,
        connected(motelog_stack, version=5) as wire,
    ):
        # Without the retained messages that others have left behind.
        everything = SubscribeEntry("#", 0, retain_handling=2)
        reader.send(encode_subscribe(5, Subscribe(1, (everything,))))
        assert reader.packet() == (0x90, b"\x00\x01\x00\x00")
        wire.publish(topic, b"x", packet_id=7)
        assert wire.packet()[1][:3] == b"\x00\x07\x90"
        wire.publish("after/refusal", b"y", packet_id=8)
        assert wire.packet() == (0x40, b"\x00\x08")
        assert published(*reader.packet()) == ("after/refusal", 0, b"\x00y")


def test_packet_above_the_maximum_is_refused_unread(motelog_stack: MotelogProcess) -> None:
    with connected(motelog_stack, version=5) as wire:
        wire.send(b"\x30" + varint(2_000_000) + b"\x00\x01a\x00" + bytes(1000))
        assert wire.packet()[1][0] == 0x95


def test_second_connection_takes_the_client_identifier_over(motelog_stack: MotelogProcess) -> None:
    with (
        connected(motelog_stack, "twin", version=5) as first,
        connected(motelog_stack, "twin", version=5) as second,
    ):
        first_byte, body = first.packet()
        assert (first_byte, body[0]) == (0xE0, 0x8E)
        assert first.closed()
        second.send(b"\xc0\x00")
        assert second.packet() == (0xD0, b"")


def test_silent_client_is_closed_after_one_and_a_half_keep_alives(
    motelog_stack: MotelogProcess,
) -> None:
    with Wire(motelog_stack.mqtt) as wire:
        wire.connect("silent", version=5, keep_alive_s=1)
        first_byte, body = wire.packet()
        assert (first_byte, body[0]) == (0xE0, 0x8D)
        assert b"keep alive" in body


def test_topic_alias_stands_for_its_topic(motelog_stack: MotelogProcess) -> None:
    with connected(motelog_stack) as reader, connected(motelog_stack, version=5) as wire:
        reader.subscribe("alias/#")
        alias = encode_properties({PropertyId.TOPIC_ALIAS: 3})
        wire.publish("alias/one", b"1", block=alias)
        wire.publish("", b"2", block=alias)
        wire.publish("alias/two", b"3", block=alias)
        wire.publish("", b"4", block=alias)
        got = [published(*reader.packet()) for _ in range(4)]
        assert got == [
            ("alias/one", 0, b"1"),
            ("alias/one", 0, b"2"),
            ("alias/two", 0, b"3"),
            ("alias/two", 0, b"4"),
        ]


def test_version_5_properties_reach_version_5_receivers(motelog_stack: MotelogProcess) -> None:
    block = encode_properties(
        {
            PropertyId.PAYLOAD_FORMAT_INDICATOR: 1,
            PropertyId.CONTENT_TYPE: "text/plain",
            PropertyId.RESPONSE_TOPIC: "answers/1",
            PropertyId.CORRELATION_DATA: b"\x00\x01\x02",
            PropertyId.USER_PROPERTY: (("a", "\x01\x02"), ("a", "ü")),
        }
    )
    with (
        connected(motelog_stack, version=5) as reader,
        connected(motelog_stack) as old_reader,
        connected(motelog_stack, version=5) as wire,
    ):
        reader.subscribe("props/#")
        old_reader.subscribe("props/#")
        wire.publish("props/x", b"hi", block=block)
        assert published(*reader.packet())[2] == varint(len(block)) + block + b"hi"
        assert published(*old_reader.packet()) == ("props/x", 0, b"hi")


def test_no_local_keeps_own_messages_away(motelog_stack: MotelogProcess) -> None:
    with connected(motelog_stack, "self", version=5) as wire:
        wire.subscribe("nolocal/#", no_local=True)
        wire.publish("nolocal/a", b"mine")
        with connected(motelog_stack, "other", version=5) as other:
            other.publish("nolocal/a", b"theirs")
            assert published(*wire.packet())[2] == b"\x00theirs"


def test_packets_behind_connect_in_one_segment_are_served(motelog_stack: MotelogProcess) -> None:
    with connected(motelog_stack) as reader, Wire(motelog_stack.mqtt) as wire:
        reader.subscribe("eager/#")
        wire.send(
            bytes.fromhex("100e 00044d5154540402003c00026565")
            + bytes.fromhex("320f 00076561676572 2f61 0001")
            + b"1234"
            + bytes.fromhex("c000 e000")
        )
        assert wire.packet() == (0x20, b"\x00\x00")
        assert wire.packet() == (0x40, b"\x00\x01")
        assert wire.packet() == (0xD0, b"")
        assert wire.closed()
        assert published(*reader.packet()) == ("eager/a", 0, b"1234")


def test_large_publish_behind_connect_in_one_segment_is_served(
    motelog_stack: MotelogProcess,
) -> None:
    with connected(motelog_stack) as reader, Wire(motelog_stack.mqtt) as wire:
        reader.subscribe("eagerly/#")
        payload = bytes(20_000)
        body = b"\x00\x09eagerly/a" + b"\x00\x01" + payload
        wire.send(
            bytes.fromhex("100e 00044d5154540402003c00026568") + b"\x32" + varint(len(body)) + body
        )
        assert wire.packet() == (0x20, b"\x00\x00")
        assert wire.packet() == (0x40, b"\x00\x01")
        assert published(*reader.packet()) == ("eagerly/a", 0, payload)


def test_receive_maximum_bounds_what_is_in_flight_and_nothing_is_lost(
    motelog_stack: MotelogProcess,
) -> None:
    with Wire(motelog_stack.mqtt) as reader, connected(motelog_stack) as wire:
        reader.connect("narrow", version=5, properties=Properties(receive_maximum=2))
        reader.subscribe("window/#", 1)
        for number in range(1, 51):
            wire.publish("window/a", b"%d" % number, packet_id=number)
            wire.packet()
        got: list[int] = []
        for _ in range(25):
            pair = [published(*reader.packet()) for _ in range(2)]
            reader.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                reader.packet()
            reader.socket.settimeout(10)
            got += [int(rest[1:]) for _, _, rest in pair]
            for _, packet_id, _ in pair:
                reader.send(b"\x40\x02" + packet_id.to_bytes(2, "big"))
        assert got == list(range(1, 51))


def test_slow_reader_gets_every_qos_1_message_in_order(motelog_stack: MotelogProcess) -> None:
    count, payload_bytes = 400, 20_000  # 8 MB, far above the output marks
    with (
        Wire(motelog_stack.mqtt, receive_buffer_bytes=4096) as reader,
        connected(motelog_stack) as wire,
    ):
        reader.connect("slow")
        reader.subscribe("slow/#", 1)
        for number in range(1, count + 1):
            wire.publish("slow/a", b"%06d" % number + bytes(payload_bytes), packet_id=number)
            wire.packet()
        got: list[int] = []
        while len(got) < count:
            _, packet_id, rest = published(*reader.packet())
            got.append(int(rest[:6]))
            reader.send(b"\x40\x02" + packet_id.to_bytes(2, "big"))
        assert got == list(range(1, count + 1))


def test_slow_reader_of_qos_0_loses_messages_that_are_counted(
    motelog_stack: MotelogProcess,
) -> None:
    with (
        Wire(motelog_stack.mqtt, receive_buffer_bytes=4096) as reader,
        connected(motelog_stack) as wire,
    ):
        reader.connect("slow0")
        reader.subscribe("slow0/#", 0)
        for number in range(1, 401):
            wire.publish("slow0/a", bytes(20_000), packet_id=number)
            wire.packet()
        host, port = motelog_stack.admin
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    counted = [line for line in lines if 'messages_dropped_total{reason="slow"}' in line]
    assert float(counted[0].split()[-1]) > 0


def test_peer_that_resets_in_the_middle_of_a_packet_harms_nobody(
    motelog_stack: MotelogProcess,
) -> None:
    with connected(motelog_stack) as other:
        wire = connected(motelog_stack)
        wire.send(b"\x30" + varint(1000) + b"\x00\x01a")
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wire.socket.close()
        other.send(b"\xc0\x00")
        assert other.packet() == (0xD0, b"")
