"""Will messages: sections 3.1.2.5, 3.1.3.2 and 3.14.4."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.net.reactor_types import Fault
from motelog.gateway.mqtt.packet_types import Properties, Will
from tests.conformance.peers import Gateway, Peer
from tests.conformance.statements import proves


def will(
    payload: bytes = b"gone", *, qos: int = 1, retain: bool = False, **properties: Any
) -> Will:
    return Will("will/topic", payload, qos, retain, Properties(**properties))


def reader(gateway: Gateway, version: int, **options: Any) -> Peer:
    peer = gateway.connect(version)
    peer.subscribe("will/#", qos=2, **options)
    return peer


def protocol_error(peer: Peer) -> None:
    peer.send_hex("c1 00")


def keep_alive_passes(peer: Peer) -> None:
    peer.gateway.stage.turn(faults=[(peer.number, Fault.IDLE)])


def is_taken_over(peer: Peer) -> None:
    peer.gateway.connect(peer.version, "dies")


@pytest.mark.parametrize("end", [Peer.drop, protocol_error, keep_alive_passes, is_taken_over])
@proves(mqtt3="MQTT-3.1.2-8", mqtt5="MQTT-3.1.2-7 MQTT-3.1.2-8")
def test_a_will_is_published_when_the_connection_ends_without_disconnect(
    gateway: Gateway, version: int, end: Any
) -> None:
    listener = reader(gateway, version)
    peer = gateway.connect(version, "dies", will=will())
    assert listener.packets() == []
    end(peer)
    message = listener.message()
    assert (message.topic, message.payload, message.retain) == ("will/topic", b"gone", False)
    assert listener.packets() == []


@proves(
    mqtt3="MQTT-3.1.2-10 MQTT-3.14.4-3 MQTT-3.1.2-8",
    mqtt5="MQTT-3.1.2-10 MQTT-3.14.4-3 MQTT-3.1.2-8",
)
def test_a_disconnect_discards_the_will(gateway: Gateway, version: int) -> None:
    listener = reader(gateway, version)
    peer = gateway.connect(version, "leaves", will=will())
    peer.disconnect()
    gateway.pass_s(100)
    gateway.connect(version, "leaves").drop()
    assert listener.packets() == []


@proves(mqtt3="MQTT-3.1.2-10", mqtt5="MQTT-3.1.2-10")
def test_a_will_is_published_once(gateway: Gateway, version: int) -> None:
    listener = reader(gateway, version)
    gateway.connect(version, "dies", will=will(), clean_start=True).drop()
    assert len(listener.messages()) == 1
    gateway.connect(version, "dies").drop()
    gateway.pass_s(1000)
    assert listener.packets() == []


@proves(mqtt5="MQTT-3.1.2-8 MQTT-3.14.4-3")
def test_a_disconnect_with_another_code_publishes_the_will(gateway: Gateway, version: int) -> None:
    listener = reader(gateway, version)
    for reason_code in (0x04, 0x80):
        gateway.connect(version, "dies", will=will()).disconnect(reason_code)
        assert listener.payloads() == [b"gone"]


@proves(mqtt3="MQTT-3.1.2-12")
def test_without_a_will_nothing_is_published(gateway: Gateway, version: int) -> None:
    listener = gateway.connect(version)
    listener.subscribe("#")
    gateway.connect(version, "dies").drop()
    gateway.pass_s(10)
    assert listener.packets() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
@proves(mqtt3="MQTT-3.1.2-9 MQTT-3.1.2-14", mqtt5="MQTT-3.1.2-9 MQTT-3.1.2-12")
def test_a_will_has_the_qos_of_connect(gateway: Gateway, version: int, qos: int) -> None:
    listener = reader(gateway, version)
    gateway.connect(version, "dies", will=will(qos=qos)).drop()
    assert [message.qos for message in listener.messages()] == [qos]


@proves(mqtt3="MQTT-3.1.2-16", mqtt5="MQTT-3.1.2-14")
def test_a_will_without_retain_is_not_retained(gateway: Gateway, version: int) -> None:
    gateway.connect(version, "dies", will=will()).drop()
    late = reader(gateway, version)
    assert late.packets() == []
    gateway.connect(version, "dies", will=will()).drop()
    assert [message.retain for message in late.messages()] == [False]


@proves(mqtt3="MQTT-3.1.2-17", mqtt5="MQTT-3.1.2-15")
def test_a_will_with_retain_is_retained(gateway: Gateway, version: int) -> None:
    gateway.connect(version, "dies", will=will(retain=True)).drop()
    message = reader(gateway, version).message()
    assert (message.payload, message.retain) == (b"gone", True)


@proves(mqtt5="MQTT-3.1.2-8")
def test_a_will_waits_for_its_delay(gateway: Gateway, version: int) -> None:
    listener = reader(gateway, version)
    delayed = will(will_delay_interval_s=10)
    gateway.connect_persistent(version, "dies", will=delayed).drop()
    gateway.pass_s(9)
    assert listener.packets() == []
    gateway.pass_s(2)
    assert listener.payloads() == [b"gone"]


@proves(mqtt5="MQTT-3.1.2-8")
def test_a_will_comes_before_its_delay_when_the_session_ends(
    gateway: Gateway, version: int
) -> None:
    listener = reader(gateway, version)
    delayed = will(will_delay_interval_s=1000)
    gateway.connect(version, "clean", will=delayed).drop()
    assert listener.payloads() == [b"gone"]
    expiring = {"session_expiry_interval_s": 10}
    gateway.connect_persistent(version, "expires", will=delayed, **expiring).drop()
    gateway.pass_s(9)
    assert listener.packets() == []
    gateway.pass_s(2)
    assert listener.payloads() == [b"gone"]


@proves(mqtt5="MQTT-3.1.3-9 MQTT-3.1.2-8")
def test_a_new_connection_within_the_delay_cancels_the_will(gateway: Gateway, version: int) -> None:
    listener = reader(gateway, version)
    delayed = will(will_delay_interval_s=10)
    gateway.connect_persistent(version, "returns", will=delayed).drop()
    gateway.pass_s(5)
    gateway.connect_persistent(version, "returns")
    gateway.pass_s(20)
    assert listener.packets() == []


@proves(mqtt5="MQTT-3.1.3-10")
def test_a_will_has_its_properties(gateway: Gateway, version: int) -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "0"))
    listener = reader(gateway, version)
    sent = will(
        user_properties=pairs,
        content_type="text",
        response_topic="to/me",
        correlation_data=b"\0\xff",
        payload_format_indicator=1,
        message_expiry_interval_s=60,
    )
    gateway.connect(version, "dies", will=sent).drop()
    properties = listener.message().properties
    assert properties.user_properties == pairs
    assert properties == sent.properties


@proves(mqtt3="MQTT-3.1.3-1", mqtt5="MQTT-3.1.3-1")
def test_a_will_stands_between_identifier_and_user_name(gateway: Gateway, version: int) -> None:
    listener = reader(gateway, version)
    sent = will(b"will payload")
    gateway.connect(version, "id", will=sent, user_name="user", password=b"secret").drop()
    message = listener.message()
    assert (message.topic, message.payload) == ("will/topic", b"will payload")


@proves(mqtt5="MQTT-3.2.2-12 MQTT-3.2.2-13")
def test_wills_of_every_kind_are_taken(gateway: Gateway, version: int) -> None:
    for qos in (0, 1, 2):
        for retain in (False, True):
            peer = gateway.connect(version, "any", will=will(qos=qos, retain=retain))
            assert peer.connack.properties.maximum_qos is None
            assert peer.connack.properties.retain_available in (None, 1)
