"""The client's Maximum Packet Size, and what it may say besides codes: MQTT 5.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import (
    Gateway,
    Packet,
    Peer,
    connect_packet,
    publish_packet,
    subscribe_packet,
)
from tests.conformance.statements import proves
from tests.support.mqtt import decode_packet
from tests.support.mqtt_wire import varint

TOO_LONG = "a" * 300
#: What is refused, each with a reason.
REFUSED = {
    PacketType.PUBACK: publish_packet(5, "$SYS/refused", qos=1, packet_id=7),
    PacketType.PUBREC: publish_packet(5, "$SYS/refused", qos=2, packet_id=7),
    PacketType.SUBACK: subscribe_packet(5, "$own/refused", packet_id=7),
    PacketType.DISCONNECT: subscribe_packet(5, "$share/group/a", options=0x04),
}


def limited(gateway: Gateway, size: int) -> Peer:
    return gateway.connect(5, "limited", maximum_packet_bytes=size)


def reason_of(packet: Packet) -> str | None:
    """Return the Reason String of an answer."""
    reason: str | None = decode(packet).properties.reason_string
    return reason


def decode(packet: Packet) -> Any:
    header = bytes([packet.first_byte]) + varint(len(packet.body))
    return decode_packet(5, header + packet.body)


def assert_left_out_where_it_does_not_fit(answer: Callable[[int], Packet]) -> None:
    """Check the Reason String of an answer; ``answer`` makes it for a Maximum Packet Size."""
    whole = answer(65_535)
    assert reason_of(whole)
    assert answer(whole.bytes_count) == whole
    less = answer(whole.bytes_count - 1)
    assert less.type == whole.type
    assert reason_of(less) is None
    assert less.bytes_count < whole.bytes_count


def assert_says_why_where_that_fits(
    gateway: Gateway, version: int, packet_type: PacketType
) -> None:
    def refusal(size: int) -> Packet:
        peer = gateway.connect(version, "sized", maximum_packet_bytes=size)
        peer.send(REFUSED[packet_type])
        packet = peer.packet()
        assert packet.type == packet_type
        return packet

    assert_left_out_where_it_does_not_fit(refusal)


@proves(mqtt5="MQTT-3.1.2-24 MQTT-3.1.2-25")
def test_a_message_that_is_too_large_counts_as_delivered(gateway: Gateway, version: int) -> None:
    peer, publisher = limited(gateway, 100), gateway.connect(version)
    assert peer.version == version
    peer.subscribe("size", qos=2)
    for n in range(300):
        publisher.publish("size", b"x" * (n // 3), qos=n % 3)
        for packet in peer.packets():
            assert packet.bytes_count <= 100
            if packet.first_byte & 6:
                answer = (PacketType.PUBACK, PacketType.PUBREC)[packet.first_byte >> 2 & 1]
                peer.answer(answer, int.from_bytes(packet.body[6:8], "big"), 0x80)
    publisher.publish("size", b"fits", qos=1)
    assert peer.payloads() == [b"fits"]


@proves(mqtt5="MQTT-3.1.2-24 MQTT-3.2.2-19")
def test_connack_keeps_to_the_clients_maximum(gateway: Gateway, version: int) -> None:
    for size in (2, 8, 20, 24, 40, 60):
        for client_id in ("", TOO_LONG):
            peer = gateway.open(version)
            peer.send(connect_packet(version, client_id, maximum_packet_bytes=size))
            packets = peer.packets()
            assert all(packet.bytes_count <= size for packet in packets)
            assert packets or peer.is_closed


@proves(mqtt5="MQTT-3.2.2-19")
def test_a_connack_that_refuses_says_why_where_that_fits(gateway: Gateway, version: int) -> None:
    def refusal(size: int) -> Packet:
        peer = gateway.open(version)
        peer.send(connect_packet(version, TOO_LONG, maximum_packet_bytes=size))
        return peer.packet()

    assert_left_out_where_it_does_not_fit(refusal)


@proves(mqtt5="MQTT-3.4.2-2")
def test_a_puback_that_refuses_says_why_where_that_fits(gateway: Gateway, version: int) -> None:
    assert_says_why_where_that_fits(gateway, version, PacketType.PUBACK)


@proves(mqtt5="MQTT-3.5.2-2")
def test_a_pubrec_that_refuses_says_why_where_that_fits(gateway: Gateway, version: int) -> None:
    assert_says_why_where_that_fits(gateway, version, PacketType.PUBREC)


@proves(mqtt5="MQTT-3.9.2-1")
def test_a_suback_that_refuses_says_why_where_that_fits(gateway: Gateway, version: int) -> None:
    assert_says_why_where_that_fits(gateway, version, PacketType.SUBACK)


@proves(mqtt5="MQTT-3.14.2-3")
def test_a_disconnect_says_why_where_that_fits(gateway: Gateway, version: int) -> None:
    assert_says_why_where_that_fits(gateway, version, PacketType.DISCONNECT)


@proves(mqtt5="MQTT-3.1.2-24 MQTT-3.9.2-1")
def test_suback_keeps_to_the_clients_maximum(gateway: Gateway, version: int) -> None:
    peer = limited(gateway, 40)
    filters = [f"size/{n}" for n in range(60)]
    assert peer.subscribe(*filters[:3], "$own/refused") == [1, 1, 1, 0x87]
    peer.send_subscribe(*filters)
    assert all(packet.bytes_count <= 40 for packet in peer.packets())
    assert peer.is_closed


@proves(mqtt5="MQTT-3.1.2-24 MQTT-3.11.2-1")
def test_unsuback_keeps_to_the_clients_maximum(gateway: Gateway, version: int) -> None:
    peer = limited(gateway, 40)
    filters = [f"size/{n}" for n in range(60)]
    assert peer.unsubscribe(*filters[:3]) == [0x11] * 3
    peer.send_unsubscribe(*filters)
    assert all(packet.bytes_count <= 40 for packet in peer.packets())
    assert peer.is_closed


@pytest.mark.parametrize("packet_type", REFUSED, ids=lambda packet_type: packet_type.name)
@proves(mqtt5="MQTT-3.1.2-29")
def test_without_problem_information_only_codes_are_sent(
    gateway: Gateway, version: int, packet_type: PacketType
) -> None:
    peer = gateway.connect(version, request_problem_information=0)
    peer.send(REFUSED[packet_type])
    packet = peer.packet()
    assert packet.type == packet_type
    if packet_type is not PacketType.DISCONNECT:
        assert reason_of(packet) is None
        assert decode(packet).properties.user_properties == ()
