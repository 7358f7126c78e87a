"""SUBSCRIBE, UNSUBSCRIBE and their answers: sections 3.8 to 3.11."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_types import PacketType, Unsubscribe
from motelog.gateway.mqtt.subscribe import encode_unsubscribe
from tests.conformance.peers import (
    Gateway,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)
from tests.conformance.statements import proves

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
SUBACK_CODES = {0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}


@proves(mqtt3="MQTT-3.8.3-3 MQTT-4.8.0-1", mqtt5="MQTT-3.8.3-2 MQTT-4.13.1-1")
def test_subscribe_without_a_filter_ends_the_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version))
    peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt3="MQTT-3.8.3-3", mqtt5="MQTT-3.8.3-2")
def test_subscribe_without_options_is_malformed(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send_hex("8206 0001 00 000161" if version == 5 else "8205 0001 000161")
    peer.assert_ended(MALFORMED)


@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x40, 0x80, 0xFD])
@proves(mqtt3="MQTT-3.8.3-4 MQTT-4.8.0-1")
def test_reserved_bits_beside_the_qos_end_the_connection(
    gateway: Gateway, version: int, options: int
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, "a", options=options))
    assert peer.is_closed
    assert peer.packets() == []


@pytest.mark.parametrize("options", [0x40, 0x80, 0xC1])
@proves(mqtt5="MQTT-3.8.3-5")
def test_reserved_subscription_options_are_malformed(
    gateway: Gateway, version: int, options: int
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, "a", options=options))
    peer.assert_ended(MALFORMED)


@proves(mqtt5="MQTT-3.8.3-3")
def test_no_local_keeps_a_clients_own_messages_from_it(gateway: Gateway, version: int) -> None:
    peer, other = gateway.connect(version, "local"), gateway.connect(version, "other")
    peer.subscribe("local/a", no_local=True)
    peer.subscribe("local/b")
    for topic in ("local/a", "local/b"):
        peer.publish(topic, b"own")
        other.publish(topic, b"other's")
    got = [(message.topic, message.payload) for message in peer.messages()]
    assert got == [("local/a", b"other's"), ("local/b", b"own"), ("local/b", b"other's")]


@proves(mqtt5="MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription_ends_the_connection(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, "$share/group/a", options=0x04))
    peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt3="MQTT-3.8.4-3", mqtt5="MQTT-3.8.4-3")
def test_a_filter_that_is_subscribed_again_is_replaced(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    for qos in (0, 1, 0):
        assert peer.subscribe("replace/+", qos=qos) == [qos]
        publisher.publish("replace/a", qos=1)
        assert [message.qos for message in peer.messages()] == [qos]
    peer.unsubscribe("replace/+")
    publisher.publish("replace/a", qos=1)
    assert peer.packets() == []


@proves(mqtt3="MQTT-3.8.4-3", mqtt5="MQTT-3.8.4-4")
def test_no_message_is_lost_while_a_subscription_is_replaced(
    gateway: Gateway, version: int
) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("gap/#")
    for n in range(20):
        gateway.stage.turn(
            (publisher.number, publish_packet(version, "gap/a", b"%d" % n)),
            (peer.number, subscribe_packet(version, "gap/#")),
        )
    packets = [packet for packet in peer.packets() if packet.type == PacketType.PUBLISH]
    assert [int(packet.body[-2:].strip(b"\0a")) for packet in packets] == list(range(20))


@proves(
    mqtt3="MQTT-3.8.4-4 MQTT-3.8.4-5 MQTT-3.9.3-1",
    mqtt5="MQTT-3.8.4-5 MQTT-3.8.4-6 MQTT-3.8.4-7 MQTT-3.9.3-1",
)
def test_several_filters_have_one_suback_with_a_code_for_each(version: int) -> None:
    gateway = Gateway(topic_bytes_max=20)
    peer, publisher = gateway.connect(version), gateway.connect(version)
    codes = peer.subscribe("many/a", "x" * 21, "many/b", "many/a", qos=1)
    assert codes == [1, 0x8F if version == 5 else 0x80, 1, 1]
    assert peer.packets() == []
    for topic in ("many/a", "many/b"):
        publisher.publish(topic)
    assert [message.topic for message in peer.messages()] == ["many/a", "many/b"]


@proves(mqtt3="MQTT-3.8.4-4", mqtt5="MQTT-3.8.4-5")
def test_the_last_of_equal_filters_counts(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    entries = b"\0\x03t/a\x01" + b"\0\x03t/a\x00"
    body = b"\0\x01" + (b"\0" if version == 5 else b"") + entries
    peer.send(bytes([0x82, len(body)]) + body)
    assert peer.read_suback().reason_codes == (1, 0)
    gateway.connect(version).publish("t/a", qos=1)
    assert [message.qos for message in peer.messages()] == [0]


@proves(mqtt3="MQTT-3.9.3-2", mqtt5="MQTT-3.9.3-2")
def test_suback_has_codes_of_its_table(version: int) -> None:
    gateway = Gateway(topic_bytes_max=20, subscriptions_max=2)
    peer = gateway.connect(version)
    filters = ("a", "x" * 21, "$own/secret", "$share/group/a", "b", "c")
    codes = {code for one in filters for qos in (0, 1, 2) for code in peer.subscribe(one, qos=qos)}
    assert any(code >= 0x80 for code in codes)
    assert codes <= ({0, 1, 2, 0x80} if version == 4 else SUBACK_CODES)


@proves(mqtt5="MQTT-3.2.2-10")
def test_every_qos_may_be_asked_for(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    for qos in (0, 1, 2):
        assert peer.subscribe("any/qos", qos=qos)[0] <= qos


# --- UNSUBSCRIBE -------------------------------------------------------------------------------


@proves(mqtt3="MQTT-3.10.3-2 MQTT-4.8.0-1", mqtt5="MQTT-3.10.3-2 MQTT-4.13.1-1")
def test_unsubscribe_without_a_filter_ends_the_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.send(unsubscribe_packet(version))
    peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt3="MQTT-3.10.4-1 MQTT-3.10.4-2", mqtt5="MQTT-3.10.4-1 MQTT-3.10.4-2")
def test_unsubscribe_removes_the_same_filter_and_no_other(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("same/a", "same/+", "SAME/a")
    for other in ("same/A", "same/#", "same/a/", "/same/a", "+/a"):
        peer.unsubscribe(other)
    publisher.publish("same/a", b"1")
    peer.unsubscribe("same/+")
    publisher.publish("same/a", b"2")
    publisher.publish("same/b", b"3")
    peer.unsubscribe("same/a")
    publisher.publish("same/a", b"4")
    publisher.publish("SAME/a", b"5")
    assert peer.payloads() == [b"1", b"2", b"5"]


@proves(mqtt3="MQTT-3.10.4-3", mqtt5="MQTT-3.10.4-3")
def test_unsubscribe_leaves_what_was_sent_to_be_acknowledged(
    gateway: Gateway, version: int
) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("flight")
    publisher.publish("flight", b"sent", qos=1)
    message = peer.message()
    peer.unsubscribe("flight")
    publisher.publish("flight", b"late", qos=1)
    peer.answer(PacketType.PUBACK, message.packet_id)
    assert peer.packets() == []
    peer.assert_open()


@proves(mqtt3="MQTT-3.10.4-5", mqtt5="MQTT-3.10.4-5")
def test_unsuback_comes_where_nothing_is_removed(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    packet = Unsubscribe(77, ("never/subscribed",))
    peer.send(encode_unsubscribe(version, packet))
    assert peer.read_unsuback().packet_id == 77


@proves(mqtt3="MQTT-3.10.4-6", mqtt5="MQTT-3.10.4-6 MQTT-3.11.3-1 MQTT-3.11.3-2")
def test_several_filters_have_one_unsuback(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("several/a", "several/b", "several/c")
    codes = peer.unsubscribe("several/a", "none", "several/c", "several/a")
    assert codes == ([0, 0x11, 0, 0x11] if version == 5 else [])
    assert peer.packets() == []
    for name in ("a", "b", "c"):
        publisher.publish(f"several/{name}")
    assert [message.topic for message in peer.messages()] == ["several/b"]
