"""The client's Maximum Packet Size, and what it may say besides codes: MQTT 5.0."""

from __future__ import annotations

from motelog.core.errors import BrokerError
from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Peer, connect_packet
from tests.conformance.statements import proves


def limited(gateway: Gateway, size: int) -> Peer:
    return gateway.connect(5, "limited", maximum_packet_bytes=size)


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
        for client_id in ("", "a" * 300):
            peer = gateway.open(version)
            peer.send(connect_packet(version, client_id, maximum_packet_bytes=size))
            packets = peer.packets()
            assert all(packet.bytes_count <= size for packet in packets)
            assert packets or peer.is_closed


@proves(mqtt5="MQTT-3.4.2-2")
def test_puback_keeps_to_the_clients_maximum(gateway: Gateway, version: int) -> None:
    peer = limited(gateway, 60)
    gateway.stage.log.error = BrokerError(1, "a long story about what is wrong with the log " * 9)
    peer.publish("a", qos=1, packet_id=7)
    packet = peer.packet()
    assert packet.type == PacketType.PUBACK
    assert packet.bytes_count <= 60
    assert packet.body[:3] == b"\x00\x07\x83"


@proves(mqtt5="MQTT-3.1.2-24 MQTT-3.9.2-1")
def test_suback_keeps_to_the_clients_maximum(gateway: Gateway, version: int) -> None:
    peer = limited(gateway, 40)
    filters = [f"size/{n}" for n in range(60)]
    assert peer.subscribe(*filters[:3], "$SYS/refused") == [1, 1, 1, 0x87]
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


@proves(mqtt5="MQTT-3.1.2-24 MQTT-3.14.2-3")
def test_disconnect_keeps_to_the_clients_maximum(gateway: Gateway, version: int) -> None:
    for size in (40, 60, 1000):
        peer = limited(gateway, size)
        peer.send(connect_packet(version, "b" * 200))
        (packet,) = peer.packets()
        assert packet.first_byte == 0xE0
        assert packet.bytes_count <= size
        assert packet.body[0] == 0x82


@proves(mqtt5="MQTT-3.1.2-29")
def test_without_problem_information_only_codes_are_sent(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, request_problem_information=0)
    assert peer.subscribe("a", "$SYS/refused") == [1, 0x87]
    peer.send_subscribe("$SYS/refused", "x" * 2000)
    assert peer.read_suback().properties.reason_string is None
    peer.send_unsubscribe("never")
    assert peer.read_unsuback().properties.reason_string is None
    peer.publish("$SYS/refused", qos=1)
    ack = peer.read_ack(PacketType.PUBACK)
    assert ack.reason_code >= 0x80
    assert ack.properties.reason_string is None
    assert ack.properties.user_properties == ()
