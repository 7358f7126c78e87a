"""Differential test: amqtt's MQTT 3.1.1 codec reads what we write, and we read what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from amqtt.adapters import BufferReader
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.frames import encode_publish, split
from motelog.gateway.mqtt.packet_types import (
    Connect,
    PacketType,
    Subscribe,
    SubscriptionAck,
    Unsubscribe,
)
from tests.support.mqtt import batch, decode_packet, encode_packet
from tests.support.mqtt_strategies import (
    PACKET_IDS,
    TOPIC_NAMES,
    connects,
    subacks,
    subscribes,
    unsubscribes,
)

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run amqtt's codec, which is async by form alone: with the bytes at hand it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise AssertionError("amqtt waited for more bytes")


def read(packet_class: Any, packet: bytes) -> Any:
    async def decode() -> Any:
        reader = BufferReader(packet)
        header = await MQTTFixedHeader.from_stream(reader)
        return await packet_class.from_stream(reader, fixed_header=header)

    return finish(decode())


@settings(max_examples=100)
@given(connect=connects(st.just(4)))
def test_connect(connect: Connect) -> None:
    packet = encode_connect(connect)
    theirs = read(ConnectPacket, packet)
    assert theirs.proto_name == "MQTT"
    assert theirs.proto_level == 4
    assert theirs.clean_session_flag == connect.clean_start
    assert theirs.keep_alive == connect.keep_alive_s
    if connect.client_id:  # amqtt makes one up
        assert theirs.client_id == connect.client_id
    assert bool(theirs.will_flag) == (connect.will is not None)
    if connect.will is not None:
        assert theirs.will_topic == connect.will.topic
        assert bytes(theirs.will_message) == connect.will.payload
        assert theirs.will_qos == connect.will.qos
        assert theirs.will_retain_flag == connect.will.retain
    assert theirs.username == connect.user_name
    if connect.client_id and connect.password is None:  # amqtt takes a password for text
        assert decode_packet(4, bytes(theirs.to_bytes())) == connect


@settings(max_examples=100)
@given(
    topic=TOPIC_NAMES,
    payload=st.binary(max_size=300),
    packet_id=PACKET_IDS,
    qos=st.integers(0, 2),
    dup=st.booleans(),
    retain=st.booleans(),
)
def test_publish(
    topic: str, payload: bytes, packet_id: int, qos: int, dup: bool, retain: bool
) -> None:
    dup = dup and qos > 0
    ours, at = encode_publish(topic.encode(), payload, 0x30 | dup << 3 | qos << 1 | retain, 4, None)
    if at:
        ours = ours[:at] + packet_id.to_bytes(2, "big") + ours[at + 2 :]
    theirs = read(PublishPacket, ours)
    assert theirs.topic_name == topic
    assert bytes(theirs.data or b"") == payload
    assert (theirs.qos, bool(theirs.dup_flag), bool(theirs.retain_flag)) == (qos, dup, retain)
    assert (theirs.packet_id or 0) == (packet_id if qos else 0)
    built = PublishPacket.build(topic, payload, packet_id if qos else None, dup, qos, retain)
    data, index = batch([(3, 4, bytes(built.to_bytes())), (3, 4, ours)])
    expected = (3, ours[0], topic.encode(), payload, packet_id if qos else 0, None)
    assert split(data, index) == [expected, expected]


@settings(max_examples=100)
@given(subscribe=subscribes(4))
def test_subscribe(subscribe: Subscribe) -> None:
    theirs = read(SubscribePacket, encode_packet(4, PacketType.SUBSCRIBE, subscribe))
    assert theirs.variable_header.packet_id == subscribe.packet_id
    wanted = [(entry.topic_filter, entry.qos) for entry in subscribe.entries]
    assert theirs.payload.topics == wanted
    built = SubscribePacket.build(wanted, subscribe.packet_id)
    assert decode_packet(4, bytes(built.to_bytes())) == subscribe


@settings(max_examples=100)
@given(unsubscribe=unsubscribes(4))
def test_unsubscribe(unsubscribe: Unsubscribe) -> None:
    theirs = read(UnsubscribePacket, encode_packet(4, PacketType.UNSUBSCRIBE, unsubscribe))
    assert tuple(theirs.payload.topics) == unsubscribe.topic_filters
    built = UnsubscribePacket.build(list(unsubscribe.topic_filters), unsubscribe.packet_id)
    assert decode_packet(4, bytes(built.to_bytes())) == unsubscribe


@settings(max_examples=50)
@given(suback=subacks(4))
def test_suback(suback: SubscriptionAck) -> None:
    theirs = read(SubackPacket, encode_packet(4, PacketType.SUBACK, suback))
    assert tuple(theirs.payload.return_codes) == suback.reason_codes
    built = SubackPacket.build(suback.packet_id, list(suback.reason_codes))
    assert decode_packet(4, bytes(built.to_bytes())) == suback


def test_amqtt_needs_no_event_loop() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
