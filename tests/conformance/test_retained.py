"""Retained messages: section 3.3.1.3, and the options of SUBSCRIBE that concern them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Message, Peer
from tests.conformance.statements import proves


def replay(gateway: Gateway, version: int, *filters: str, qos: int = 1) -> list[Message]:
    """Return what a new subscriber is sent at once."""
    peer = gateway.connect(version)
    peer.subscribe(*filters, qos=qos)
    return peer.messages()


def retain(gateway: Gateway, version: int, topic: str, payload: bytes, qos: int = 1) -> Peer:
    publisher = gateway.connect(version, "retains")
    publisher.publish(topic, payload, qos=qos, retain=True)
    assert not publisher.is_closed
    return publisher


@pytest.mark.parametrize("qos", [0, 1])
@proves(mqtt3="MQTT-3.3.1-5 MQTT-3.3.1-6 MQTT-3.3.1-8", mqtt5="MQTT-3.3.1-5 MQTT-3.3.1-9")
def test_a_retained_message_comes_to_later_subscribers(
    gateway: Gateway, version: int, qos: int
) -> None:
    retain(gateway, version, "kept/a", b"value", qos)
    for topic_filter in ("kept/a", "kept/+", "#"):
        (message,) = replay(gateway, version, topic_filter)
        assert (message.topic, message.payload) == ("kept/a", b"value")
        assert (message.qos, message.retain, message.dup) == (qos, True, False)
    assert replay(gateway, version, "kept/b", "other/#") == []


@proves(mqtt3="MQTT-3.3.1-6 MQTT-3.3.1-5", mqtt5="MQTT-3.3.1-5 MQTT-3.3.1-9")
def test_each_topic_has_its_last_retained_message(gateway: Gateway, version: int) -> None:
    for topic, payload in (("kept/a", b"1"), ("kept/b", b"2"), ("kept/a", b"3")):
        retain(gateway, version, topic, payload)
    found = {message.topic: message.payload for message in replay(gateway, version, "kept/#")}
    assert found == {"kept/a": b"3", "kept/b": b"2"}


@proves(mqtt3="MQTT-3.3.1-7")
def test_a_retained_message_at_qos_0_discards_the_one_before(
    gateway: Gateway, version: int
) -> None:
    retain(gateway, version, "kept/a", b"old", 1)
    retain(gateway, version, "kept/a", b"new", 0)
    assert [message.payload for message in replay(gateway, version, "kept/a")] == [b"new"]


@proves(mqtt3="MQTT-3.3.1-9", mqtt5="MQTT-3.3.1-12")
def test_established_subscriptions_get_it_without_the_flag(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("kept/a")
    retain(gateway, version, "kept/a", b"value")
    assert [message.retain for message in peer.messages()] == [False]


@proves(mqtt5="MQTT-3.3.1-13")
def test_retain_as_published_passes_the_flag_on(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("kept/+", retain_as_published=True)
    publisher = retain(gateway, version, "kept/a", b"kept")
    publisher.publish("kept/a", b"not kept")
    assert [(m.payload, m.retain) for m in peer.messages()] == [
        (b"kept", True),
        (b"not kept", False),
    ]


@proves(mqtt3="MQTT-3.3.1-10 MQTT-3.3.1-11", mqtt5="MQTT-3.3.1-6 MQTT-3.3.1-7")
def test_an_empty_message_removes_what_is_retained(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("kept/#")
    for payload in (b"value", b"", b""):
        retain(gateway, version, "kept/a", payload)
    assert [(m.payload, m.retain) for m in peer.messages()] == [
        (b"value", False),
        (b"", False),
        (b"", False),
    ]
    assert replay(gateway, version, "kept/#") == []


@proves(mqtt3="MQTT-3.3.1-12", mqtt5="MQTT-3.3.1-8")
def test_a_message_without_the_flag_changes_nothing(gateway: Gateway, version: int) -> None:
    publisher = retain(gateway, version, "kept/a", b"value")
    publisher.publish("kept/a", b"other", qos=1)
    publisher.publish("kept/a", b"", qos=1)
    publisher.publish("kept/b", b"other", qos=1)
    found = [(m.topic, m.payload) for m in replay(gateway, version, "kept/#")]
    assert found == [("kept/a", b"value")]


@proves(mqtt3="MQTT-3.1.2-7")
def test_retained_messages_outlive_the_session(gateway: Gateway, version: int) -> None:
    publisher = retain(gateway, version, "kept/a", b"value")
    publisher.drop()
    gateway.connect(version, "retains").disconnect()
    gateway.pass_s(100_000)
    assert [message.payload for message in replay(gateway, version, "kept/a")] == [b"value"]


@proves(mqtt3="MQTT-3.8.4-3", mqtt5="MQTT-3.8.4-4 MQTT-3.3.1-9")
def test_a_repeated_subscription_gets_them_again(gateway: Gateway, version: int) -> None:
    retain(gateway, version, "kept/a", b"value")
    peer = gateway.connect(version)
    for _ in range(2):
        peer.subscribe("kept/+")
        assert [(m.payload, m.retain) for m in peer.messages()] == [(b"value", True)]


@proves(mqtt3="MQTT-3.3.1-8 MQTT-4.4.0-1", mqtt5="MQTT-3.3.1-9 MQTT-4.4.0-1")
def test_a_retained_message_that_comes_again_is_the_same(gateway: Gateway, version: int) -> None:
    for qos in (1, 2):
        retain(gateway, version, f"kept/{qos}", b"value", qos)
    peer = gateway.connect_persistent(version, "again")
    peer.subscribe("kept/+", qos=2)
    first = peer.messages()
    assert [message.retain for message in first] == [True, True]
    peer.drop()
    again = gateway.connect_persistent(version, "again").messages()
    assert again == [replace(message, dup=True) for message in first]


@proves(mqtt5="MQTT-3.3.1-13 MQTT-4.4.0-1")
def test_retain_as_published_holds_for_what_comes_again(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "again")
    peer.subscribe("kept/+", retain_as_published=True)
    retain(gateway, version, "kept/a", b"kept").publish("kept/a", b"not kept", qos=1)
    first = peer.messages()
    assert [message.retain for message in first] == [True, False]
    peer.drop()
    again = gateway.connect_persistent(version, "again").messages()
    assert again == [replace(message, dup=True) for message in first]


@proves(mqtt3="MQTT-3.3.1-6", mqtt5="MQTT-3.3.1-9 MQTT-3.3.4-9 MQTT-3.3.4-10 MQTT-4.9.0-2")
def test_retained_messages_keep_to_the_clients_window(version: int) -> None:
    gateway = Gateway(inflight_max=3)
    publisher = gateway.connect(version)
    for n in range(40):
        publisher.publish(f"kept/{n}", b"%d" % n, qos=1, retain=True)
    peer = gateway.connect(version)
    assert peer.subscribe("kept/#") == [1]
    publisher.publish("kept/live", b"40", qos=1)
    found = []
    while messages := peer.messages():
        assert len(messages) <= 3
        for message in messages:
            found.append(int(message.payload))
            assert message.retain == (message.topic != "kept/live")
            peer.answer(PacketType.PUBACK, message.packet_id)
    assert sorted(found) == list(range(41))


@proves(mqtt5="MQTT-3.3.1-10")
def test_retain_handling_1_is_for_new_subscriptions(gateway: Gateway, version: int) -> None:
    retain(gateway, version, "kept/a", b"value")
    peer = gateway.connect(version)
    peer.subscribe("kept/+", retain_handling=1)
    assert peer.payloads() == [b"value"]
    peer.subscribe("kept/+", retain_handling=1)
    assert peer.packets() == []
    peer.unsubscribe("kept/+")
    peer.subscribe("kept/+", retain_handling=1)
    assert peer.payloads() == [b"value"]


@proves(mqtt5="MQTT-3.3.1-11")
def test_retain_handling_2_is_for_none(gateway: Gateway, version: int) -> None:
    publisher = retain(gateway, version, "kept/a", b"value")
    peer = gateway.connect(version)
    peer.subscribe("kept/+", retain_handling=2)
    assert peer.packets() == []
    publisher.publish("kept/a", b"live", qos=1)
    assert peer.payloads() == [b"live"]


@proves(mqtt3="MQTT-3.8.4-6", mqtt5="MQTT-3.8.4-8")
def test_a_retained_message_comes_at_the_lower_qos(gateway: Gateway, version: int) -> None:
    for kept in (0, 1, 2):
        retain(gateway, version, "kept/a", b"value", kept)
        for granted in (0, 1, 2):
            (message,) = replay(gateway, version, "kept/a", qos=granted)
            assert message.qos == min(kept, granted)


@proves(mqtt5="MQTT-3.3.2-5 MQTT-3.3.2-6")
def test_retained_messages_expire(gateway: Gateway, version: int) -> None:
    publisher = gateway.connect(version)
    publisher.publish("kept/a", qos=1, retain=True, message_expiry_interval_s=10)
    publisher.publish("kept/b", qos=1, retain=True, message_expiry_interval_s=100)
    gateway.pass_s(20)
    (message,) = replay(gateway, version, "kept/#")
    assert message.topic == "kept/b"
    assert message.properties.message_expiry_interval_s == 80


@proves(mqtt5="MQTT-3.3.2-4 MQTT-3.3.2-15 MQTT-3.3.2-16 MQTT-3.3.2-17 MQTT-3.3.2-18 MQTT-3.3.2-20")
def test_retained_messages_have_their_properties(gateway: Gateway, version: int) -> None:
    sent: dict[str, Any] = {
        "payload_format_indicator": 1,
        "response_topic": "to/me",
        "correlation_data": b"\0\xff",
        "content_type": "text/plain",
        "user_properties": (("b", "1"), ("a", "2"), ("b", "0")),
    }
    gateway.connect(version).publish("kept/a", qos=1, retain=True, **sent)
    (message,) = replay(gateway, version, "kept/a")
    assert {name: getattr(message.properties, name) for name in sent} == sent
