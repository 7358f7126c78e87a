"""QoS 2 both ways: sections 3.5 to 3.7 and 4.3.3."""

from __future__ import annotations

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Message, Peer
from tests.conformance.statements import proves

PUBREC, PUBREL, PUBCOMP = PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
PUBREC_CODES = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
NOT_FOUND, PROTOCOL_ERROR = 0x92, 0x82


def receiver(gateway: Gateway, version: int, client_id: str = "gets") -> Peer:
    peer = gateway.connect_persistent(version, client_id)
    peer.subscribe("two/#", qos=2)
    return peer


def is_acknowledged(peer: Peer, packet_type: PacketType, packet_id: int) -> bool:
    ack = peer.read_ack(packet_type)
    return (ack.packet_id, ack.reason_code) == (packet_id, 0)


def complete(peer: Peer, message: Message) -> None:
    """Take a message at QoS 2 to its end."""
    peer.answer(PUBREC, message.packet_id)
    assert is_acknowledged(peer, PUBREL, message.packet_id)
    peer.answer(PUBCOMP, message.packet_id)


# --- towards the gateway -----------------------------------------------------------------------


@proves(
    mqtt3="MQTT-4.3.3-2 MQTT-2.3.1-6 MQTT-3.3.4-1",
    mqtt5=(
        "MQTT-4.3.3-8 MQTT-4.3.3-11 MQTT-2.2.1-5 MQTT-3.3.4-1 MQTT-3.5.2-1 MQTT-3.7.2-1"
        " MQTT-3.2.2-9"
    ),
)
def test_a_publish_at_qos_2_is_acknowledged_in_two_steps(gateway: Gateway, version: int) -> None:
    reader, peer = gateway.connect(version), gateway.connect(version)
    assert peer.connack.properties.maximum_qos is None
    reader.subscribe("two/a", qos=0)
    for packet_id in (1, 300, 65535):
        peer.put("two/a", b"%d" % packet_id, qos=2, packet_id=packet_id)
        assert is_acknowledged(peer, PUBREC, packet_id)
        peer.answer(PUBREL, packet_id)
        assert is_acknowledged(peer, PUBCOMP, packet_id)
    assert reader.payloads() == [b"1", b"300", b"65535"]


@proves(mqtt3="MQTT-4.3.3-2", mqtt5="MQTT-4.3.3-10")
def test_a_repeated_publish_is_not_delivered_again(gateway: Gateway, version: int) -> None:
    reader, peer = gateway.connect(version), gateway.connect(version)
    reader.subscribe("two/a", qos=0)
    for dup in (False, True, True):
        peer.put("two/a", b"once", qos=2, packet_id=7, dup=dup)
        assert is_acknowledged(peer, PUBREC, 7)
    peer.answer(PUBREL, 7)
    assert is_acknowledged(peer, PUBCOMP, 7)
    assert reader.payloads() == [b"once"]


@proves(mqtt3="MQTT-4.3.3-2", mqtt5="MQTT-4.3.3-10")
def test_a_publish_that_is_repeated_over_a_new_connection_is_not_delivered_again(
    gateway: Gateway, version: int
) -> None:
    reader, peer = gateway.connect(version), gateway.connect_persistent(version, "puts")
    reader.subscribe("two/a", qos=0)
    peer.put("two/a", b"once", qos=2, packet_id=7)
    peer.drop()
    peer = gateway.connect_persistent(version, "puts")
    peer.put("two/a", b"once", qos=2, packet_id=7, dup=True)
    assert is_acknowledged(peer, PUBREC, 7)
    peer.answer(PUBREL, 7)
    assert is_acknowledged(peer, PUBCOMP, 7)
    assert reader.payloads() == [b"once"]


@proves(mqtt3="MQTT-4.3.3-2", mqtt5="MQTT-4.3.3-12")
def test_after_pubcomp_the_identifier_begins_a_new_message(gateway: Gateway, version: int) -> None:
    reader, peer = gateway.connect(version), gateway.connect(version)
    reader.subscribe("two/a", qos=0)
    for payload, dup in ((b"1", False), (b"2", True), (b"3", False)):
        peer.put("two/a", payload, qos=2, packet_id=7, dup=dup)
        assert is_acknowledged(peer, PUBREC, 7)
        peer.answer(PUBREL, 7)
        assert is_acknowledged(peer, PUBCOMP, 7)
    assert reader.payloads() == [b"1", b"2", b"3"]


@proves(mqtt5="MQTT-4.3.3-9 MQTT-3.5.2-1 MQTT-3.5.2-2")
def test_after_a_refusal_the_identifier_begins_a_new_message(
    gateway: Gateway, version: int
) -> None:
    reader = gateway.connect(version)
    peer = gateway.connect(version, maximum_packet_bytes=60)
    reader.subscribe("two/a", qos=0)
    peer.put("$SYS/refused", qos=2, packet_id=7)
    packet = peer.packet()
    assert packet.type == PUBREC
    assert packet.bytes_count <= 60
    assert packet.body[:2] == b"\0\x07"
    assert packet.body[2] >= 0x80
    assert packet.body[2] in PUBREC_CODES
    peer.put("two/a", b"new", qos=2, packet_id=7, dup=True)
    assert is_acknowledged(peer, PUBREC, 7)
    assert reader.payloads() == [b"new"]


@proves(mqtt5="MQTT-3.7.2-1 MQTT-3.7.2-2 MQTT-4.3.3-11")
def test_a_pubrel_for_nothing_is_answered_with_its_code(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, maximum_packet_bytes=60)
    peer.answer(PUBREL, 99)
    packet = peer.packet()
    assert packet.type == PUBCOMP
    assert packet.bytes_count <= 60
    assert packet.body[:3] == bytes([0, 99, NOT_FOUND])
    peer.assert_open()


@proves(mqtt3="MQTT-4.3.3-2")
def test_a_pubrel_for_nothing_is_answered(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.answer(PUBREL, 99)
    assert is_acknowledged(peer, PUBCOMP, 99)


@proves(mqtt5="MQTT-4.3.3-13")
def test_the_acknowledgements_go_on_where_the_message_has_expired(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect(version)
    peer.put("two/a", qos=2, packet_id=7, message_expiry_interval_s=1)
    assert is_acknowledged(peer, PUBREC, 7)
    gateway.pass_s(10)
    peer.put("two/a", qos=2, packet_id=7, message_expiry_interval_s=1, dup=True)
    assert is_acknowledged(peer, PUBREC, 7)
    peer.answer(PUBREL, 7)
    assert is_acknowledged(peer, PUBCOMP, 7)


# --- towards subscribers -----------------------------------------------------------------------


@proves(
    mqtt3="MQTT-4.3.3-1 MQTT-2.2.2-1 MQTT-2.3.1-6 MQTT-2.3.1-4",
    mqtt5=(
        "MQTT-4.3.3-1 MQTT-4.3.3-2 MQTT-4.3.3-4 MQTT-2.1.3-1 MQTT-2.2.1-4 MQTT-2.2.1-5 MQTT-3.6.2-1"
    ),
)
def test_a_message_at_qos_2_is_sent_and_released(gateway: Gateway, version: int) -> None:
    peer, publisher = receiver(gateway, version), gateway.connect(version)
    for n in range(3):
        publisher.publish("two/a", b"%d" % n, qos=2)
    messages = peer.messages()
    assert [(m.payload, m.qos, m.dup) for m in messages] == [
        (b"%d" % n, 2, False) for n in range(3)
    ]
    packet_ids = {message.packet_id for message in messages}
    assert len(packet_ids - {0}) == 3
    for message in messages:
        peer.answer(PUBREC, message.packet_id)
        packet = peer.packet()
        assert packet.first_byte == 0x62
        assert packet.body == message.packet_id.to_bytes(2, "big")
        peer.answer(PUBCOMP, message.packet_id)
    assert peer.packets() == []
    peer.assert_open()


@proves(
    mqtt3="MQTT-4.3.3-1 MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-2.3.1-4",
    mqtt5="MQTT-4.3.3-3 MQTT-4.4.0-1 MQTT-3.3.1-1",
)
def test_until_pubrec_the_publish_comes_again(gateway: Gateway, version: int) -> None:
    peer = receiver(gateway, version)
    gateway.connect(version).publish("two/a", b"m", qos=2)
    first = peer.message()
    for _ in range(2):
        peer.drop()
        peer = gateway.connect_persistent(version, "gets")
        again = peer.message()
        assert (again.packet_id, again.payload) == (first.packet_id, b"m")
        assert (again.qos, again.dup) == (2, True)
        assert peer.packets() == []
    complete(peer, first)


@proves(
    mqtt3="MQTT-4.3.3-1 MQTT-4.4.0-1",
    mqtt5="MQTT-4.3.3-5 MQTT-4.3.3-6 MQTT-4.4.0-1",
)
def test_after_pubrec_only_the_pubrel_comes_again(gateway: Gateway, version: int) -> None:
    peer = receiver(gateway, version)
    gateway.connect(version).publish("two/a", b"m", qos=2)
    packet_id = peer.message().packet_id
    peer.answer(PUBREC, packet_id)
    assert is_acknowledged(peer, PUBREL, packet_id)
    for _ in range(2):
        peer.drop()
        peer = gateway.connect_persistent(version, "gets")
        assert is_acknowledged(peer, PUBREL, packet_id)
        assert peer.packets() == []
    peer.answer(PUBCOMP, packet_id)
    peer.drop()
    assert gateway.connect_persistent(version, "gets").packets() == []


@proves(mqtt5="MQTT-4.4.0-2 MQTT-4.3.3-4")
def test_a_refusal_ends_the_exchange(gateway: Gateway, version: int) -> None:
    peer = receiver(gateway, version)
    gateway.connect(version).publish("two/a", b"m", qos=2)
    peer.answer(PUBREC, peer.message().packet_id, 0x80)
    assert peer.packets() == []
    peer.drop()
    assert gateway.connect_persistent(version, "gets").packets() == []


@proves(mqtt3="MQTT-4.8.0-1", mqtt5="MQTT-4.13.1-1")
def test_the_acknowledgement_of_another_qos_ends_the_connection(
    gateway: Gateway, version: int
) -> None:
    publisher = gateway.connect(version)
    for qos, other in ((1, PUBREC), (2, PacketType.PUBACK)):
        peer = receiver(gateway, version)
        publisher.publish("two/a", b"m", qos=qos)
        peer.answer(other, peer.message().packet_id)
        peer.assert_ended(PROTOCOL_ERROR)
        gateway.connect(version, "gets").drop()


@proves(mqtt5="MQTT-4.3.3-7")
def test_a_message_that_was_sent_does_not_expire(gateway: Gateway, version: int) -> None:
    peer = receiver(gateway, version)
    gateway.connect(version).publish("two/a", b"m", qos=2, message_expiry_interval_s=5)
    first = peer.message()
    peer.drop()
    gateway.pass_s(20)
    again = gateway.connect_persistent(version, "gets").message()
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"m", True)


@proves(mqtt5="MQTT-3.6.2-1 MQTT-3.6.2-2")
def test_a_pubrec_for_nothing_is_answered_with_its_code(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, maximum_packet_bytes=60)
    peer.answer(PUBREC, 99)
    packet = peer.packet()
    assert packet.first_byte == 0x62
    assert packet.bytes_count <= 60
    assert packet.body[:3] == bytes([0, 99, NOT_FOUND])


@proves(mqtt5="MQTT-3.3.4-9 MQTT-4.9.0-2")
def test_the_quota_holds_until_pubcomp(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, receive_maximum=1)
    peer.subscribe("two/#", qos=2)
    publisher = gateway.connect(version)
    for payload in (b"1", b"2", b"3"):
        publisher.publish("two/a", payload, qos=2)
    first = peer.message()
    peer.answer(PUBREC, first.packet_id)
    assert is_acknowledged(peer, PUBREL, first.packet_id)
    assert peer.packets() == []
    peer.answer(PUBCOMP, first.packet_id)
    second = peer.message()
    assert second.payload == b"2"
    peer.answer(PUBREC, second.packet_id, 0x80)
    assert peer.payloads() == [b"3"]


@proves(mqtt3="MQTT-4.6.0-6 MQTT-4.6.0-3", mqtt5="MQTT-4.6.0-5 MQTT-4.6.0-6 MQTT-4.6.0-3")
def test_messages_at_qos_2_come_in_order(gateway: Gateway, version: int) -> None:
    peer, publisher = receiver(gateway, version), gateway.connect(version)
    for n in range(30):
        publisher.put("two/a", b"%d" % n, qos=2, packet_id=n + 1)
    pubrecs = [publisher.read_ack(PUBREC).packet_id for _ in range(30)]
    assert pubrecs == list(range(1, 31))
    for packet_id in pubrecs:
        publisher.answer(PUBREL, packet_id)
    messages = peer.messages()
    assert [int(message.payload) for message in messages] == list(range(30))
    for message in messages:
        peer.answer(PUBREC, message.packet_id)
    released = [peer.read_ack(PUBREL).packet_id for _ in messages]
    assert released == [message.packet_id for message in messages]


@proves(mqtt3="MQTT-4.6.0-1 MQTT-4.6.0-4", mqtt5="MQTT-4.6.0-1 MQTT-4.6.0-4")
def test_repetitions_come_in_the_order_of_the_first_time(gateway: Gateway, version: int) -> None:
    peer, publisher = receiver(gateway, version), gateway.connect(version)
    for n in range(6):
        publisher.publish("two/a", b"%d" % n, qos=1 + n % 2)
    first = [message.packet_id for message in peer.messages()]
    peer.drop()
    again = gateway.connect_persistent(version, "gets").messages()
    assert [message.packet_id for message in again] == first


@proves(
    mqtt3="MQTT-3.8.4-5 MQTT-3.8.4-6 MQTT-3.3.5-1",
    mqtt5="MQTT-3.8.4-7 MQTT-3.8.4-8 MQTT-3.3.4-2",
)
def test_qos_2_is_granted_and_kept(gateway: Gateway, version: int) -> None:
    publisher = gateway.connect(version)
    for granted in (0, 1, 2):
        peer = gateway.connect(version)
        assert peer.subscribe("two/+", qos=granted) == [granted]
        for published in (0, 1, 2):
            publisher.publish("two/a", qos=published)
            assert peer.message().qos == min(granted, published)
    peer.subscribe("two/a", qos=0)
    publisher.publish("two/a", qos=2)
    assert [message.qos for message in peer.messages()] == [2]


@proves(mqtt3="MQTT-3.10.4-3", mqtt5="MQTT-3.10.4-3")
def test_an_exchange_goes_on_behind_unsubscribe(gateway: Gateway, version: int) -> None:
    peer = receiver(gateway, version)
    gateway.connect(version).publish("two/a", b"m", qos=2)
    message = peer.message()
    peer.unsubscribe("two/#")
    complete(peer, message)
