"""PINGREQ, DISCONNECT and the end of connections: sections 3.12, 3.14 and 4.13."""

from __future__ import annotations

from motelog.gateway.mqtt.disconnect import decode_disconnect
from motelog.gateway.mqtt.packet_types import ReasonCode
from tests.conformance.peers import PINGREQ, Gateway, publish_packet
from tests.conformance.statements import proves

PROTOCOL_ERROR = 0x82
#: Each ends the connection, for a reason of its own.
FAULTS = (
    "c1 00",
    "10 00",
    "36 07 0001 61 0001 00 68",
    "30 05 0000 00 6869",
    "30 06 0001 23 00 68",
    "30 08 0001 61 03 23ffff 68",
    "82 06 0000 00 0001 61",
    "f0 00",
    "40 01 00",
    "d0 00",
)


@proves(mqtt3="MQTT-3.12.4-1", mqtt5="MQTT-3.12.4-1")
def test_a_ping_is_answered(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    for count in (1, 3):
        peer.send(PINGREQ * count)
        assert {packet.first_byte for packet in peer.packets()} == {0xD0}
    peer.assert_open()


@proves(mqtt5="MQTT-3.14.2-1 MQTT-3.14.2-2 MQTT-3.14.4-2 MQTT-4.13.1-1 MQTT-4.13.2-1")
def test_faults_are_answered_with_codes_of_the_table(gateway: Gateway, version: int) -> None:
    for fault in FAULTS:
        peer = gateway.connect(version, "faulty")
        peer.send_hex(fault)
        (packet,) = peer.packets()
        # The codec knows the table, and that a server names no session expiry.
        disconnect = decode_disconnect(5, packet.first_byte, packet.body, from_server=True)
        assert disconnect.reason_code >= 0x80
        assert peer.is_closed


@proves(mqtt3="MQTT-4.8.0-1")
def test_violations_end_the_connection_without_a_word(gateway: Gateway, version: int) -> None:
    for fault in ("c1 00", "10 00", "36 06 0001 61 0001 68", "30 02 0000", "f0 00", "40 01 00"):
        peer = gateway.connect(version, "faulty")
        peer.send_hex(fault)
        assert peer.packets() == []
        assert peer.is_closed


@proves(mqtt5="MQTT-3.14.2-1")
def test_a_disconnect_with_a_code_that_is_not_the_clients_is_an_error(
    gateway: Gateway, version: int
) -> None:
    for code in (0x01, 0x7F, 0x8E, 0xFF):
        peer = gateway.connect(version)
        peer.send(bytes([0xE0, 1, code]))
        peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt5="MQTT-3.14.4-1 MQTT-3.14.4-2")
def test_nothing_is_sent_after_the_gateways_disconnect(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("end/#", qos=0)
    gateway.stage.turn(
        (peer.number, b"\xc1\x00"),
        (peer.number, PINGREQ),
        (publisher.number, publish_packet(version, "end/a")),
    )
    gateway.stage.turn((publisher.number, publish_packet(version, "end/a")))
    peer.assert_ended(ReasonCode.MALFORMED_PACKET)


@proves(mqtt3="MQTT-3.14.4-1 MQTT-3.14.4-2", mqtt5="MQTT-3.14.4-1")
def test_nothing_is_taken_after_a_clients_disconnect(gateway: Gateway, version: int) -> None:
    reader, peer = gateway.connect(version), gateway.connect(version)
    reader.subscribe("end/#", qos=0)
    peer.send(b"\xe0\x00" + publish_packet(version, "end/late") + PINGREQ)
    assert peer.is_closed
    assert peer.packets() == []
    assert reader.packets() == []
