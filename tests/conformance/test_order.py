"""Order and flow control: sections 4.6 and 4.9, and Receive Maximum."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import (
    PINGREQ,
    Gateway,
    Peer,
    decode_message,
    publish_packet,
    subscribe_packet,
)
from tests.conformance.statements import proves

RECEIVE_MAXIMUM_EXCEEDED = 0x93


def numbers(peer: Peer) -> list[int]:
    """Acknowledge whatever comes until nothing comes any more; return the payloads."""
    found = []
    while messages := peer.messages():
        for message in messages:
            found.append(int(message.payload))
            if message.qos == 1:
                peer.answer(PacketType.PUBACK, message.packet_id)
    return found


@proves(mqtt3="MQTT-4.6.0-5 MQTT-4.6.0-6", mqtt5="MQTT-4.6.0-5 MQTT-4.6.0-6")
def test_messages_of_a_topic_come_in_order(gateway: Gateway, version: int) -> None:
    peers = [gateway.connect(version) for _ in range(3)]
    for peer, topic_filter in zip(peers, ("order/a", "order/+", "#"), strict=True):
        peer.subscribe(topic_filter)
    publisher = gateway.connect(version)
    for qos in (0, 1):
        for n in range(50):
            publisher.publish("order/a", b"%d" % n, qos=qos)
        for peer in peers:
            assert numbers(peer) == list(range(50))


@proves(mqtt3="MQTT-4.6.0-6", mqtt5="MQTT-4.6.0-5 MQTT-4.6.0-6")
def test_a_receiver_that_falls_behind_gets_them_in_order(version: int) -> None:
    gateway = Gateway(inflight_max=3)
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe("order/#")
    for n in range(100):
        publisher.publish("order/a", b"%d" % n, qos=1)
    assert numbers(peer) == list(range(100))


@proves(
    mqtt3="MQTT-3.1.2-5 MQTT-4.6.0-6 MQTT-4.4.0-1",
    mqtt5="MQTT-3.1.2-23 MQTT-4.6.0-5 MQTT-4.6.0-6 MQTT-4.4.0-1",
)
def test_sessions_that_return_get_all_in_order_and_once(version: int) -> None:
    gateway = Gateway(inflight_max=4)
    filters = {"one": "order/a", "two": "order/#", "three": "+/a"}
    for client_id, topic_filter in filters.items():
        peer = gateway.connect_persistent(version, client_id)
        peer.subscribe(topic_filter, qos=2)
        peer.drop()
    publisher = gateway.connect(version)
    for n in range(60):
        publisher.publish("order/a", b"%d" % n, qos=1 + n % 2)
        publisher.publish("order", b"aside", qos=0)
    got: dict[str, list[int]] = {client_id: [] for client_id in filters}
    # Each takes five messages over each connection, and is cut off while more are on their way.
    for _ in range(13):
        for client_id, taken in got.items():
            peer = gateway.connect_persistent(version, client_id)
            taken += take(peer, 5)
            peer.drop()
    for taken in got.values():
        assert [n for n in taken if n % 2 == 0] == list(range(0, 60, 2))
        assert [n for n in taken if n % 2 == 1] == list(range(1, 60, 2))


def take(peer: Peer, count: int) -> list[int]:
    """See the first messages above QoS 0 through, and leave those behind them without an answer."""
    found: list[int] = []
    peer.gateway.deliver()
    while len(found) < count and (packets := peer.packets()):
        for packet in packets:
            if packet.type == PacketType.PUBLISH and packet.first_byte & 6 and len(found) < count:
                message = decode_message(peer.version, packet)
                found.append(int(message.payload))
                if message.qos == 1:
                    peer.answer(PacketType.PUBACK, message.packet_id)
                else:
                    peer.answer(PacketType.PUBREC, message.packet_id)
                    peer.answer(PacketType.PUBCOMP, message.packet_id)
        peer.gateway.deliver()
    return found


@proves(mqtt3="MQTT-4.6.0-2", mqtt5="MQTT-4.6.0-2")
def test_pubacks_come_in_the_order_of_the_publishes(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    packet_ids = [9, 1, 65535, 2, 300, 8]
    peer.send(
        b"".join(publish_packet(version, f"o/{n % 3}", qos=1, packet_id=n) for n in packet_ids)
    )
    answers = [int.from_bytes(packet.body[:2], "big") for packet in peer.packets()]
    assert answers == packet_ids


@proves(mqtt5="MQTT-3.3.4-9 MQTT-4.9.0-1 MQTT-4.9.0-2 MQTT-4.3.2-3")
def test_no_more_than_receive_maximum_is_unacknowledged(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version, receive_maximum=2), gateway.connect(version)
    peer.subscribe("quota")
    for n in range(5):
        publisher.publish("quota", b"%d" % n, qos=1)
    first, second = peer.messages()
    peer.answer(PacketType.PUBACK, second.packet_id)
    (third,) = peer.messages()
    peer.answer(PacketType.PUBACK, first.packet_id)
    peer.answer(PacketType.PUBACK, third.packet_id)
    assert peer.payloads() == [b"3", b"4"]


@pytest.mark.parametrize("is_subscribed", [True, False])
@proves(mqtt5="MQTT-3.3.4-9 MQTT-4.9.0-1")
def test_what_is_sent_again_counts_for_the_receive_maximum_of_the_new_connection(
    gateway: Gateway, version: int, is_subscribed: bool
) -> None:
    peer = gateway.connect_persistent(version, "again", receive_maximum=10)
    peer.subscribe("quota")
    publisher = gateway.connect(version)
    for n in range(6):
        publisher.publish("quota", b"%d" % n, qos=1)
    assert len(peer.messages()) == 6
    if not is_subscribed:
        peer.unsubscribe("quota")
    peer.drop()
    peer = gateway.connect_persistent(version, "again", receive_maximum=2)
    publisher.publish("quota", b"6", qos=1)
    sent = []
    while part := peer.messages():
        assert len(part) <= 2
        sent += [message.payload for message in part]
        for message in part:
            peer.answer(PacketType.PUBACK, message.packet_id)
        gateway.deliver()
    assert sent == [b"%d" % n for n in range(6 + is_subscribed)]


@proves(mqtt5="MQTT-3.3.4-10 MQTT-4.9.0-3")
def test_other_packets_are_answered_while_the_quota_is_0(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version, receive_maximum=1), gateway.connect(version)
    peer.subscribe("quota/+")
    for _ in range(3):
        publisher.publish("quota/1", qos=1)
    assert len(peer.messages()) == 1
    peer.send(PINGREQ + subscribe_packet(version, "other", options=0))
    assert [packet.first_byte for packet in peer.packets()] == [0xD0, 0x90]
    publisher.publish("quota/0", b"free", qos=0)
    publisher.publish("other", b"free", qos=0)
    peer.publish("up", qos=1)
    packets = peer.packets()
    assert 0x40 in [packet.first_byte for packet in packets]
    assert b"free" in [packet.body[-4:] for packet in packets]
    assert not [packet for packet in packets if packet.first_byte & 0xF6 == 0x32]


@proves(mqtt5="MQTT-3.3.4-7")
def test_more_publishes_than_receive_maximum_end_the_connection(version: int) -> None:
    gateway = Gateway(receive_maximum=2)
    gateway.stage.log.settles_at_once = False
    peer = gateway.connect(version)
    assert peer.connack.properties.receive_maximum == 2
    for packet_id in (1, 2):
        peer.publish("a", qos=1, packet_id=packet_id)
    peer.assert_open()
    peer.publish("a", qos=1, packet_id=3)
    peer.assert_ended(RECEIVE_MAXIMUM_EXCEEDED)


@proves(mqtt5="MQTT-4.4.0-2")
def test_a_refusal_acknowledges_the_message(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version, receive_maximum=1), gateway.connect(version)
    peer.subscribe("refused")
    for payload in (b"1", b"2"):
        publisher.publish("refused", payload, qos=1)
    peer.answer(PacketType.PUBACK, peer.message().packet_id, 0x80)
    assert peer.payloads() == [b"2"]
