"""PUBLISH without RETAIN and its properties: sections 3.3, 4.3 and 4.5."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.errors import BrokerError
from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, encode_name, publish_packet
from tests.conformance.statements import proves

MALFORMED, PROTOCOL_ERROR, TOPIC_NAME_INVALID = 0x81, 0x82, 0x90
TOPIC_ALIAS_INVALID = 0x94
PUBACK_CODES = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}


@proves(mqtt3="MQTT-3.3.1-2 MQTT-4.3.1-1", mqtt5="MQTT-3.3.1-2 MQTT-4.3.1-1")
def test_a_message_at_qos_0_goes_out_once_without_dup(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("q0")
    publisher.publish("q0", b"zero", qos=0)
    (message,) = peer.messages()
    assert (message.qos, message.dup, message.payload) == (0, False, b"zero")


@proves(mqtt3="MQTT-3.3.1-2 MQTT-4.8.0-1", mqtt5="MQTT-3.3.1-2 MQTT-4.13.1-1")
def test_dup_at_qos_0_is_malformed(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.put("q0", qos=0, dup=True)
    peer.assert_ended(MALFORMED)


@proves(mqtt3="MQTT-3.3.1-3", mqtt5="MQTT-3.3.1-3")
def test_dup_is_not_passed_on(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("dup")
    publisher.publish("dup", b"again", qos=1, dup=True)
    (message,) = peer.messages()
    assert (message.qos, message.dup) == (1, False)


@proves(mqtt3="MQTT-3.3.1-4", mqtt5="MQTT-3.3.1-4 MQTT-4.13.1-1")
def test_qos_3_ends_the_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send(publish_packet(version, "a", qos=3, packet_id=1))
    peer.assert_ended(MALFORMED)


@proves(mqtt3="MQTT-3.3.2-1", mqtt5="MQTT-3.3.2-1")
def test_the_topic_name_comes_first(gateway: Gateway, version: int) -> None:
    for body in (b"", b"\0", b"\0\x05ab", b"\xff\xffab"):
        peer = gateway.connect(version)
        peer.send(bytes([0x30, len(body)]) + body)
        peer.assert_ended(MALFORMED)
    peer = gateway.connect(version)
    peer.subscribe("first/ü")
    gateway.connect(version).publish("first/ü", b"x")
    assert peer.packet().body.startswith(encode_name("first/ü"))


@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "a#b"])
@proves(mqtt3="MQTT-3.3.2-2 MQTT-4.7.1-1", mqtt5="MQTT-3.3.2-2 MQTT-4.7.0-1")
def test_wildcards_in_a_topic_name_end_the_connection_or_are_refused(
    gateway: Gateway, version: int, topic: str
) -> None:
    reader = gateway.connect(version)
    reader.subscribe("#")
    peer = gateway.connect(version)
    peer.send(publish_packet(version, topic))
    peer.assert_ended(TOPIC_NAME_INVALID)
    assert reader.packets() == []


@proves(mqtt3="MQTT-3.3.2-3", mqtt5="MQTT-3.3.2-3")
def test_a_subscriber_gets_the_name_that_was_published(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("m/+/x", "deep/#")
    for topic in ("m/1/x", "m//x", "m/1/y", "deep", "deep/a/b", "other"):
        publisher.publish(topic)
    assert [m.topic for m in peer.messages()] == ["m/1/x", "m//x", "deep", "deep/a/b"]


@proves(mqtt3="MQTT-3.3.5-2")
def test_a_publish_that_is_not_allowed_ends_the_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send(publish_packet(version, "$SYS/mine", qos=1, packet_id=1))
    peer.assert_ended(TOPIC_NAME_INVALID)


@proves(mqtt5="MQTT-3.4.2-1")
def test_refusals_have_codes_of_pubacks_table(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.publish("$SYS/mine", qos=1)
    gateway.stage.log.error = BrokerError(1, "no")
    peer.publish("a", qos=1)
    for _ in range(2):
        ack = peer.read_ack(PacketType.PUBACK)
        assert ack.reason_code >= 0x80
        assert ack.reason_code in PUBACK_CODES
    peer.assert_open()


@proves(mqtt3="MQTT-4.8.0-2")
def test_a_message_that_cannot_be_stored_ends_the_connection(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    gateway.stage.log.error = BrokerError(1, "no")
    peer.publish("a", qos=1)
    assert peer.packets() == []
    assert peer.is_closed


@proves(mqtt3="MQTT-4.3.2-2", mqtt5="MQTT-4.3.2-5")
def test_after_puback_the_identifier_begins_a_new_message(gateway: Gateway, version: int) -> None:
    reader, peer = gateway.connect(version), gateway.connect(version)
    reader.subscribe("again", qos=0)
    for payload, dup in ((b"1", False), (b"2", True), (b"3", False)):
        peer.publish("again", payload, qos=1, packet_id=9, dup=dup)
        assert peer.read_ack(PacketType.PUBACK).packet_id == 9
    assert reader.payloads() == [b"1", b"2", b"3"]


@proves(mqtt3="MQTT-4.5.0-1", mqtt5="MQTT-4.5.0-1")
def test_a_message_comes_to_all_who_match_and_to_no_other(gateway: Gateway, version: int) -> None:
    names = ("to/a", "to/+", "#", "to/b", "to/a/#", "other/+")
    peers = {name: gateway.connect(version) for name in names}
    for name, peer in peers.items():
        peer.subscribe(name)
    gateway.connect(version).publish("to/a", b"m", qos=1)
    got = [name for name, peer in peers.items() if peer.payloads() == [b"m"]]
    assert got == ["to/a", "to/+", "#", "to/a/#"]


@proves(mqtt3="MQTT-4.5.0-1", mqtt5="MQTT-4.5.0-1")
def test_a_message_from_before_the_subscription_does_not_come(
    gateway: Gateway, version: int
) -> None:
    publisher, peer = gateway.connect(version), gateway.connect(version)
    publisher.publish("before/a", b"before", qos=1)
    peer.subscribe("before/#")
    publisher.publish("before/a", b"after", qos=1)
    assert peer.payloads() == [b"after"]


@proves(mqtt3="MQTT-3.3.5-1", mqtt5="MQTT-3.3.4-2")
def test_overlapping_subscriptions_give_the_highest_qos(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    for topic_filter, qos in (("over/#", 0), ("over/lap", 1), ("+/lap", 0)):
        peer.subscribe(topic_filter, qos=qos)
    gateway.connect(version).publish("over/lap", b"m", qos=1)
    assert [message.qos for message in peer.messages()] == [1]


@proves(mqtt3="MQTT-3.8.4-6", mqtt5="MQTT-3.8.4-8")
def test_a_message_comes_at_the_lower_qos(gateway: Gateway, version: int) -> None:
    publisher = gateway.connect(version)
    for granted in (0, 1):
        peer = gateway.connect(version)
        assert peer.subscribe("low/er", qos=granted) == [granted]
        for published in (0, 1):
            publisher.publish("low/er", qos=published)
            assert peer.message().qos == min(granted, published)


# --- properties ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1])
@proves(mqtt5="MQTT-3.3.2-4")
def test_the_payload_format_reaches_subscribers(gateway: Gateway, version: int, value: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("p")
    gateway.connect(version).publish("p", payload_format_indicator=value)
    assert peer.message().properties.payload_format_indicator == value


@proves(mqtt5="MQTT-3.3.2-15 MQTT-3.3.2-16 MQTT-3.3.2-20")
def test_what_a_request_carries_reaches_subscribers(gateway: Gateway, version: int) -> None:
    sent: dict[str, Any] = {
        "response_topic": "to/me/ü",
        "correlation_data": bytes(range(256)),
        "content_type": "text/ü",
    }
    peers = [gateway.connect(version) for _ in range(3)]
    for peer in peers:
        peer.subscribe("p", qos=peer.number % 2)
    gateway.connect(version).publish("p", qos=1, **sent)
    for peer in peers:
        properties = peer.message().properties
        assert {name: getattr(properties, name) for name in sent} == sent


@proves(mqtt5="MQTT-3.3.2-17 MQTT-3.3.2-18")
def test_user_properties_reach_subscribers_in_their_order(gateway: Gateway, version: int) -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("ü", "\ufeff"), ("b", "0"))
    peer = gateway.connect(version)
    peer.subscribe("p")
    gateway.connect(version).publish("p", user_properties=pairs)
    assert peer.message().properties.user_properties == pairs


@pytest.mark.parametrize("property_id", [0x08, 0x03])
@proves(mqtt5="MQTT-3.3.2-13 MQTT-3.3.2-19")
def test_a_response_topic_or_content_type_that_is_no_text_is_malformed(
    gateway: Gateway, version: int, property_id: int
) -> None:
    for text in (b"\xff", b"\xed\xa0\x80", b"\0"):
        block = bytes([property_id]) + encode_name(text)
        body = encode_name("a") + bytes([len(block)]) + block
        peer = gateway.connect(version)
        peer.send(bytes([0x30, len(body)]) + body)
        peer.assert_ended(MALFORMED)


@pytest.mark.parametrize("topic", ["#", "+", "a/+", "a/#"])
@proves(mqtt5="MQTT-3.3.2-14")
def test_a_response_topic_with_wildcards_ends_the_connection(
    gateway: Gateway, version: int, topic: str
) -> None:
    peer = gateway.connect(version)
    peer.publish("a", response_topic=topic)
    peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt5="MQTT-3.3.2-5")
def test_an_expired_message_is_not_delivered(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, receive_maximum=1)
    peer.subscribe("p")
    publisher = gateway.connect(version)
    for payload, expiry_s in ((b"1", 100), (b"2", 10), (b"3", 100)):
        publisher.publish("p", payload, qos=1, message_expiry_interval_s=expiry_s)
    first = peer.message()
    gateway.pass_s(11)
    peer.answer(PacketType.PUBACK, first.packet_id)
    assert peer.payloads() == [b"3"]


@proves(mqtt5="MQTT-3.3.2-6")
def test_a_message_has_the_rest_of_its_expiry(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, receive_maximum=1)
    peer.subscribe("p")
    publisher = gateway.connect(version)
    for _ in range(2):
        publisher.publish("p", qos=1, message_expiry_interval_s=100)
    first = peer.message()
    assert first.properties.message_expiry_interval_s == 100
    gateway.pass_s(30)
    peer.answer(PacketType.PUBACK, first.packet_id)
    assert peer.message().properties.message_expiry_interval_s == 70


@proves(mqtt5="MQTT-3.3.4-6")
def test_a_subscription_identifier_from_a_publisher_ends_the_connection(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    peer.send_hex("30 07 0001 61 020b01 68")
    peer.assert_ended(PROTOCOL_ERROR)


# --- topic aliases towards the gateway ---------------------------------------------------------


@proves(mqtt5="MQTT-3.3.2-7")
def test_a_topic_alias_ends_with_its_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, "aliases")
    peer.publish("alias/a", topic_alias=1)
    peer.disconnect()
    peer = gateway.connect(version, "aliases")
    peer.publish("", topic_alias=1)
    peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt5="MQTT-3.3.2-8")
def test_topic_alias_0_ends_the_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send_hex("30 08 0001 61 03 230000 68")
    peer.assert_ended(TOPIC_ALIAS_INVALID)


@proves(mqtt5="MQTT-3.3.2-9 MQTT-3.2.2-17")
def test_a_topic_alias_above_the_maximum_ends_the_connection(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    peer.publish("a", topic_alias=(peer.connack.properties.topic_alias_maximum or 0) + 1)
    peer.assert_ended(TOPIC_ALIAS_INVALID)


@proves(mqtt5="MQTT-3.2.2-18")
def test_without_topic_aliases_any_ends_the_connection(version: int) -> None:
    peer = Gateway(topic_alias_max=0).connect(version)
    assert not peer.connack.properties.topic_alias_maximum
    peer.publish("a", topic_alias=1)
    peer.assert_ended(TOPIC_ALIAS_INVALID)


@proves(mqtt5="MQTT-3.3.2-12")
def test_all_topic_aliases_up_to_the_maximum_are_taken(gateway: Gateway, version: int) -> None:
    reader, peer = gateway.connect(version), gateway.connect(version)
    reader.subscribe("alias/+", qos=0)
    maximum = peer.connack.properties.topic_alias_maximum
    assert maximum
    names = [f"alias/{n}" for n in range(1, maximum + 1)]
    for alias, name in enumerate(names, start=1):
        peer.publish(name, topic_alias=alias)
    for alias in range(maximum, 0, -1):
        peer.publish("", topic_alias=alias)
    peer.publish("alias/new", topic_alias=1)
    peer.publish("", topic_alias=1)
    topics = [message.topic for message in reader.messages()]
    assert topics == [*names, *reversed(names), "alias/new", "alias/new"]
