"""Shared subscriptions: MQTT 5.0 section 4.8.2."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Peer, subscribe_packet
from tests.conformance.statements import proves

TOPIC_FILTER_INVALID = 0x8F


def members(gateway: Gateway, version: int, *, qos: int = 1) -> list[Peer]:
    peers = [gateway.connect_persistent(version, f"member-{n}") for n in range(3)]
    for peer in peers:
        assert peer.subscribe("$share/group/job/+", qos=qos) == [qos]
    return peers


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/", "$share//a", "$share/g", "$share/g/", "$share/g+/a", "$share/#/a", "$share/g#/a"],
)
@proves(mqtt5="MQTT-4.8.2-1 MQTT-4.8.2-2")
def test_an_incomplete_shared_filter_ends_the_connection(
    gateway: Gateway, version: int, topic_filter: str
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, topic_filter))
    peer.assert_ended(TOPIC_FILTER_INVALID)


@proves(mqtt5="MQTT-4.8.2-1 MQTT-4.8.2-2")
def test_each_message_comes_to_one_of_a_group(gateway: Gateway, version: int) -> None:
    peers, other = members(gateway, version), gateway.connect(version)
    other.subscribe("$share/other/job/+", "job/#")
    publisher = gateway.connect(version)
    for n in range(12):
        publisher.publish("job/a", b"%d" % n, qos=1)
    got = sorted(int(payload) for peer in peers for payload in peer.payloads())
    assert got == list(range(12))
    # A session gets a copy for its shared subscription, and one for its own.
    assert sorted(map(int, other.payloads())) == sorted([*range(12)] * 2)


@proves(mqtt5="MQTT-4.8.2-3")
def test_members_get_messages_at_the_qos_granted(gateway: Gateway, version: int) -> None:
    publisher = gateway.connect(version)
    for granted in (0, 1, 2):
        peer = gateway.connect(version)
        assert peer.subscribe(f"$share/group-{granted}/q", qos=granted) == [granted]
        for published in (0, 1, 2):
            publisher.publish("q", qos=published)
            assert peer.message().qos == min(granted, published)


@proves(mqtt5="MQTT-4.8.2-4")
def test_a_message_at_qos_2_is_completed_with_its_member(gateway: Gateway, version: int) -> None:
    peers = members(gateway, version, qos=2)
    gateway.connect(version).publish("job/a", b"m", qos=2)
    ((taker, packet_id),) = [(p, message.packet_id) for p in peers for message in p.messages()]
    taker.answer(PacketType.PUBREC, packet_id)
    assert taker.read_ack(PacketType.PUBREL).packet_id == packet_id
    taker.drop()
    again = gateway.connect_persistent(version, f"member-{peers.index(taker)}")
    assert again.read_ack(PacketType.PUBREL).packet_id == packet_id
    again.answer(PacketType.PUBCOMP, packet_id)
    assert [peer.packets() for peer in (*peers, again)] == [[]] * 4


@proves(mqtt5="MQTT-4.8.2-5")
def test_a_message_at_qos_2_ends_with_its_members_session(gateway: Gateway, version: int) -> None:
    peers = members(gateway, version, qos=2)
    gateway.connect(version).publish("job/a", b"m", qos=2)
    (taker,) = [peer for peer in peers if peer.messages()]
    taker.disconnect(session_expiry_interval_s=0)
    gateway.pass_s(5)
    assert [peer.packets() for peer in peers] == [[]] * 3


@proves(mqtt5="MQTT-4.8.2-6")
def test_a_refused_message_goes_to_no_other_member(gateway: Gateway, version: int) -> None:
    for qos, packet_type in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
        peers = members(gateway, version, qos=qos)
        gateway.connect(version).publish("job/a", b"m", qos=qos)
        ((taker, packet_id),) = [(p, message.packet_id) for p in peers for message in p.messages()]
        taker.answer(packet_type, packet_id, 0x80)
        taker.drop()
        gateway.pass_s(5)
        assert [peer.packets() for peer in peers] == [[]] * 3


@pytest.mark.parametrize("identifier", [None, 5])
@proves(mqtt3="MQTT-3.3.1-1", mqtt5="MQTT-3.3.1-1 MQTT-3.3.1-3")
def test_a_message_that_comes_again_to_its_member_says_so(
    gateway: Gateway, version: int, identifier: int | None
) -> None:
    identifier = identifier if version == 5 else None
    publisher = gateway.connect(version)
    member = gateway.connect_persistent(version, "member")
    member.subscribe("$share/g/t", qos=1, identifier=identifier)
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t", payload, 1)
    first = member.messages()
    member.answer(PacketType.PUBACK, first[0].packet_id)
    for _ in range(2):
        member.drop()
        member = gateway.connect_persistent(version, "member")
        gateway.deliver()
        again = member.messages()
        assert [(m.payload, m.packet_id, m.dup) for m in again] == [
            (m.payload, m.packet_id, True) for m in first[1:]
        ]
    for message in again:
        member.answer(PacketType.PUBACK, message.packet_id)
    publisher.publish("t", b"4", 1)
    assert not member.message().dup


@proves(mqtt3="MQTT-3.3.1-3", mqtt5="MQTT-3.3.1-3")
def test_a_message_that_goes_to_another_member_or_a_new_session_is_no_repetition(
    gateway: Gateway, version: int
) -> None:
    publisher = gateway.connect(version)
    member = gateway.connect_persistent(version, "member")
    member.subscribe("$share/g/t", qos=1)
    publisher.publish("t", b"1", 1)
    packet_id = member.message().packet_id
    other = gateway.connect_persistent(version, "other")
    other.subscribe("$share/g/t", qos=1)
    member.drop()
    gateway.deliver()
    assert other.message().dup is False
    gateway.connect(version, "member").drop()
    member = gateway.connect_persistent(version, "member")
    member.subscribe("$share/g/t", qos=1)
    other.drop()
    gateway.deliver()
    message = member.message()
    assert (message.payload, message.packet_id, message.dup) == (b"1", packet_id, False)
