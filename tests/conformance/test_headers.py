"""Fixed headers and packet identifiers: chapter 2 of both standards."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import (
    PINGREQ,
    Gateway,
    connect_packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)
from tests.conformance.statements import proves

MALFORMED = 0x81


@proves(mqtt3="MQTT-2.2.2-1", mqtt5="MQTT-2.1.3-1")
def test_answers_have_the_flags_of_the_table(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(
        connect_packet(version)
        + subscribe_packet(version, "a")
        + unsubscribe_packet(version, "a")
        + publish_packet(version, "a", qos=1, packet_id=2)
        + PINGREQ
    )
    first_bytes = [packet.first_byte for packet in peer.packets()]
    assert sorted(first_bytes) == [0x20, 0x40, 0x90, 0xB0, 0xD0]


@pytest.mark.parametrize(
    "packet",
    ["41 02 0001", "60 02 0001", "63 02 0001", "c1 00", "d1 00", "e1 00", "51 02 0001"],
)
@proves(mqtt3="MQTT-2.2.2-2 MQTT-4.8.0-1", mqtt5="MQTT-2.1.3-1 MQTT-4.13.1-1")
def test_other_flags_end_the_connection(gateway: Gateway, version: int, packet: str) -> None:
    peer = gateway.connect(version)
    peer.send_hex(packet)
    assert peer.is_closed


@proves(mqtt3="MQTT-3.6.1-1", mqtt5="MQTT-3.6.1-1")
def test_pubrel_with_other_flags_is_malformed(gateway: Gateway, version: int) -> None:
    for flags in (0, 1, 3, 4, 8, 15):
        peer = gateway.connect(version)
        peer.send(bytes([0x60 | flags, 2, 0, 1]))
        peer.assert_ended(MALFORMED)


@proves(mqtt3="MQTT-3.8.1-1", mqtt5="MQTT-3.8.1-1")
def test_subscribe_with_other_flags_is_malformed(gateway: Gateway, version: int) -> None:
    for flags in (0, 1, 3, 4, 8, 15):
        peer = gateway.connect(version)
        peer.send(subscribe_packet(version, "a", flags=flags))
        peer.assert_ended(MALFORMED)


@proves(mqtt3="MQTT-3.10.1-1", mqtt5="MQTT-3.10.1-1")
def test_unsubscribe_with_other_flags_is_malformed(gateway: Gateway, version: int) -> None:
    for flags in (0, 1, 3, 4, 8, 15):
        peer = gateway.connect(version)
        peer.send(unsubscribe_packet(version, "a", flags=flags))
        peer.assert_ended(MALFORMED)


@proves(mqtt3="MQTT-3.14.1-1", mqtt5="MQTT-3.14.1-1")
def test_disconnect_with_other_flags_is_malformed(gateway: Gateway, version: int) -> None:
    for flags in (1, 2, 4, 8, 15):
        peer = gateway.connect(version)
        peer.send(bytes([0xE0 | flags, 0]))
        peer.assert_ended(MALFORMED)


@proves(mqtt5="MQTT-3.15.1-1")
def test_auth_with_other_flags_is_malformed(gateway: Gateway, version: int) -> None:
    for flags in (1, 2, 4, 8, 15):
        peer = gateway.connect(version)
        peer.send(bytes([0xF0 | flags, 0]))
        peer.assert_ended(MALFORMED)


@proves(mqtt3="MQTT-2.3.1-1", mqtt5="MQTT-2.2.1-3")
def test_packet_identifier_0_ends_the_connection(gateway: Gateway, version: int) -> None:
    for packet in (
        publish_packet(version, "a", qos=1, packet_id=0),
        subscribe_packet(version, "a", packet_id=0),
        unsubscribe_packet(version, "a", packet_id=0),
    ):
        peer = gateway.connect(version)
        peer.send(packet)
        assert peer.is_closed


@proves(mqtt3="MQTT-2.3.1-4 MQTT-4.3.2-1", mqtt5="MQTT-2.2.1-4 MQTT-4.3.2-1 MQTT-4.3.2-2")
def test_packet_identifiers_in_flight_differ_and_are_not_0(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("ids/#")
    seen: set[int] = set()
    for n in range(300):
        publisher.publish(f"ids/{n % 3}", qos=1)
        message = peer.message()
        assert (message.qos, message.dup) == (1, False)
        assert message.packet_id not in seen | {0}
        seen.add(message.packet_id)
        if n % 10:
            peer.answer(PacketType.PUBACK, message.packet_id)
            seen.remove(message.packet_id)


@proves(mqtt3="MQTT-2.3.1-5", mqtt5="MQTT-2.2.1-2")
def test_a_message_at_qos_0_has_no_packet_identifier(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("none", qos=1)
    gateway.connect(version).publish("none", b"hi", qos=0)
    assert peer.packet().body == b"\x00\x04none" + (b"\0" if version == 5 else b"") + b"hi"


@pytest.mark.parametrize("packet_id", [1, 256, 65535])
@proves(
    mqtt3="MQTT-2.3.1-6 MQTT-4.3.2-2 MQTT-3.3.4-1",
    mqtt5="MQTT-2.2.1-5 MQTT-4.3.2-4 MQTT-3.3.4-1 MQTT-3.4.2-1",
)
def test_puback_has_the_packet_identifier_of_its_publish(
    gateway: Gateway, version: int, packet_id: int
) -> None:
    peer = gateway.connect(version)
    peer.publish("a", qos=1, packet_id=packet_id)
    ack = peer.read_ack(PacketType.PUBACK)
    assert (ack.packet_id, ack.reason_code) == (packet_id, 0)
    peer.publish("a", qos=0)
    assert peer.packets() == []


@pytest.mark.parametrize("packet_id", [1, 256, 65535])
@proves(
    mqtt3="MQTT-2.3.1-7 MQTT-3.8.4-1 MQTT-3.8.4-2 MQTT-3.10.4-4",
    mqtt5="MQTT-2.2.1-6 MQTT-3.8.4-1 MQTT-3.8.4-2 MQTT-3.10.4-4 MQTT-3.10.4-5",
)
def test_suback_and_unsuback_have_the_packet_identifier_of_their_request(
    gateway: Gateway, version: int, packet_id: int
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, "a", packet_id=packet_id))
    assert peer.read_suback().packet_id == packet_id
    peer.send(unsubscribe_packet(version, "a", packet_id=packet_id))
    assert peer.read_unsuback().packet_id == packet_id


@proves(mqtt5="MQTT-2.2.2-1")
def test_a_packet_without_properties_says_so(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, "a") + unsubscribe_packet(version, "a"))
    suback, unsuback = peer.packets()
    assert suback.body == b"\x00\x01\x00\x01"
    assert unsuback.body == b"\x00\x01\x00\x00"


@proves(mqtt5="MQTT-2.2.2-1")
def test_a_packet_without_a_property_length_is_malformed(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send_hex("30 03 0001 61")
    peer.assert_ended(MALFORMED)
