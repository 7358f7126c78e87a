"""Text in packets: MQTT 3.1.1 section 1.5.3, MQTT 5.0 section 1.5."""

from __future__ import annotations

import pytest

from tests.conformance.peers import (
    Gateway,
    encode_name,
    publish_packet,
    raw_connect,
    subscribe_packet,
    unsubscribe_packet,
)
from tests.conformance.statements import proves

ILL_FORMED = [b"a\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"a\xe2\x82"]
MALFORMED = 0x81


@pytest.mark.parametrize("text", ILL_FORMED)
@proves(
    mqtt3="MQTT-1.4.0-1 MQTT-3.3.2-1 MQTT-3.8.3-1 MQTT-3.10.3-1",
    mqtt5="MQTT-1.5.4-1 MQTT-3.3.2-1 MQTT-3.8.3-1 MQTT-3.10.3-1",
)
def test_ill_formed_text_ends_the_connection(gateway: Gateway, version: int, text: bytes) -> None:
    for make in (publish_packet, subscribe_packet, unsubscribe_packet):
        peer = gateway.connect(version)
        peer.send(make(version, text))
        peer.assert_ended(MALFORMED)


@pytest.mark.parametrize("text", ILL_FORMED)
@proves(
    mqtt3="MQTT-1.4.0-1 MQTT-3.1.3-4 MQTT-3.1.3-10 MQTT-3.1.3-11",
    mqtt5="MQTT-1.5.4-1 MQTT-3.1.3-4 MQTT-3.1.3-11 MQTT-3.1.3-12",
)
def test_ill_formed_text_in_connect_is_refused(gateway: Gateway, version: int, text: bytes) -> None:
    identifier, field = encode_name("c"), encode_name(text)
    no_properties = b"\0" if version == 5 else b""
    for flags, payload in (
        (0x02, field),
        (0x06, identifier + no_properties + field + encode_name("will")),
        (0x82, identifier + field),
    ):
        peer = gateway.open(version)
        peer.send(raw_connect(version, flags, payload))
        peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-1.4.0-2 MQTT-4.7.3-2", mqtt5="MQTT-1.5.4-2 MQTT-4.7.3-2")
def test_a_zero_character_ends_the_connection(gateway: Gateway, version: int) -> None:
    for make in (publish_packet, subscribe_packet, unsubscribe_packet):
        peer = gateway.connect(version)
        peer.send(make(version, b"a\0b"))
        assert peer.is_closed
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x02, encode_name(b"a\0")))
    peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-1.4.0-3", mqtt5="MQTT-1.5.4-3")
def test_a_byte_order_mark_is_a_character_like_others(gateway: Gateway, version: int) -> None:
    exact, without = gateway.connect(version), gateway.connect(version)
    exact.subscribe("\ufeffmark/a\ufeff")
    without.subscribe("mark/a")
    gateway.connect(version).publish("\ufeffmark/a\ufeff")
    assert exact.message().topic == "\ufeffmark/a\ufeff"
    assert without.packets() == []


@proves(mqtt5="MQTT-1.5.5-1")
def test_a_length_with_more_bytes_than_it_needs_is_malformed(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    peer.send_hex("30 07 0001 61 8000 6869")
    peer.assert_ended(MALFORMED)


@proves(mqtt5="MQTT-1.5.5-1")
def test_lengths_that_are_sent_have_as_few_bytes_as_they_need(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    peer.subscribe("lengths", qos=0)
    publisher = gateway.connect(version)
    for size in (117, 118, 16_000, 17_000):
        publisher.publish("lengths", bytes(size))
        body = 2 + len("lengths") + 1 + size
        sent = peer.received()
        assert len(sent) - body == 1 + (1 if body < 128 else 2 if body < 16_384 else 3)


@pytest.mark.parametrize("text", [*ILL_FORMED, b"\0"])
@proves(mqtt5="MQTT-1.5.7-1 MQTT-3.3.2-17")
def test_a_pair_with_ill_formed_text_is_malformed(
    gateway: Gateway, version: int, text: bytes
) -> None:
    for name, value in ((text, b"value"), (b"name", text)):
        block = b"\x26" + encode_name(name) + encode_name(value)
        body = b"\x00\x01a" + bytes([len(block)]) + block
        peer = gateway.connect(version)
        peer.send(bytes([0x30, len(body)]) + body)
        peer.assert_ended(MALFORMED)
