"""CONNECT and CONNACK without state of earlier connections: sections 3.1 and 3.2."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.scram import ITERATIONS_MIN, METHOD, make_verifier
from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.auth import Auth, decode_auth, encode_auth
from motelog.gateway.mqtt.packet_types import Connack
from tests.conformance.peers import (
    PINGREQ,
    Gateway,
    Peer,
    connect_packet,
    encode_name,
    publish_packet,
    raw_connect,
    subscribe_packet,
)
from tests.conformance.statements import proves
from tests.support.scram_client import ScramClient

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
VERIFIER = make_verifier(b"s", iterations=ITERATIONS_MIN)
CLIENT, USER, PASSWORD = encode_name("client"), encode_name("user"), encode_name("password")
CONNACK_CODES = {
    0x00,
    *range(0x80, 0x8B),
    0x8C,
    0x90,
    0x95,
    0x97,
    0x99,
    0x9A,
    0x9B,
    0x9C,
    0x9D,
    0x9F,
}


def will(version: int, topic: str = "will/topic") -> bytes:
    return (b"\0" if version == 5 else b"") + encode_name(topic) + encode_name("gone")


def refusal(peer: Peer, data: bytes) -> Connack:
    """Send a CONNECT that is refused with a CONNACK, and return that."""
    peer.send(data)
    connack = peer.read_connack()
    assert connack.reason_code != 0
    assert peer.packets() == []
    assert peer.is_closed
    return connack


@pytest.mark.parametrize(
    "first", ["c000", "e000", "3003000161", "82060001000161 00", "40020001", "20020000"]
)
@proves(mqtt3="MQTT-3.1.0-1", mqtt5="MQTT-3.1.0-1 MQTT-3.14.0-1")
def test_another_first_packet_is_answered_with_nothing_but_the_end(
    gateway: Gateway, version: int, first: str
) -> None:
    peer = gateway.open(version)
    peer.send_hex(first)
    assert peer.is_closed
    assert peer.packets() == []


@proves(
    mqtt3="MQTT-3.1.0-2 MQTT-4.8.0-1",
    mqtt5="MQTT-3.1.0-2 MQTT-3.2.0-2 MQTT-4.13.1-1 MQTT-4.13.2-1",
)
def test_a_second_connect_ends_the_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, "twice")
    peer.send(connect_packet(version, "twice"))
    peer.assert_ended(PROTOCOL_ERROR)


@pytest.mark.parametrize("name", [b"mqtt", b"MQTTX", b"MQIsdp", b"", b"MQ\xffT"])
@proves(mqtt3="MQTT-3.1.2-1", mqtt5="MQTT-3.1.2-1")
def test_another_protocol_name_is_not_served(gateway: Gateway, version: int, name: bytes) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x02, CLIENT, name=name) + PINGREQ)
    assert peer.is_closed
    # In which version could such a peer be answered? Not with 0, and with one packet at most.
    packets = peer.packets()
    assert [packet.first_byte for packet in packets] in ([], [0x20])
    assert all(packet.body[:2] in (b"\0\x01", b"\0\x84") for packet in packets)


@pytest.mark.parametrize("level", [1, 2, 6, 0x83, 0x84, 0xFF])
@proves(mqtt3="MQTT-3.1.2-2")
def test_another_protocol_level_is_answered_with_its_return_code(
    gateway: Gateway, version: int, level: int
) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x02, CLIENT, level=level))
    assert [packet.body for packet in peer.packets()] == [b"\0\x01"]
    assert peer.is_closed


@proves(mqtt5="MQTT-3.1.2-2")
def test_another_protocol_version_is_not_served(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x02, CLIENT, level=6) + PINGREQ)
    assert peer.is_closed
    # The level is unknown, and so is the form of the answer: that of MQTT 5 or of those before.
    assert [packet.body for packet in peer.packets()] in ([b"\0\x84\0"], [b"\0\x01"])


@proves(mqtt3="MQTT-3.1.2-3 MQTT-3.1.4-1 MQTT-3.2.2-6", mqtt5="MQTT-3.1.2-3 MQTT-3.1.4-1")
def test_the_reserved_connect_flag_is_refused(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x03, CLIENT))
    peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-9", mqtt5="MQTT-3.1.2-9")
def test_a_will_flag_without_a_will_is_refused(gateway: Gateway, version: int) -> None:
    whole = will(version)
    for will_bytes in (b"", whole[:1], whole[: -len(encode_name("gone"))], whole[:-1]):
        peer = gateway.open(version)
        peer.send(raw_connect(version, 0x06, CLIENT + will_bytes))
        peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-11 MQTT-3.1.2-13", mqtt5="MQTT-3.1.2-11")
def test_a_will_qos_without_a_will_is_refused(gateway: Gateway, version: int) -> None:
    for qos in (1, 2, 3):
        peer = gateway.open(version)
        peer.send(raw_connect(version, 0x02 | qos << 3, CLIENT))
        peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-11 MQTT-3.1.2-15", mqtt5="MQTT-3.1.2-13")
def test_will_retain_without_a_will_is_refused(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x22, CLIENT))
    peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-11")
def test_a_will_without_its_flag_is_refused(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x02, CLIENT + will(version)))
    peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-14", mqtt5="MQTT-3.1.2-12")
def test_a_will_qos_of_3_is_refused(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x1E, CLIENT + will(version)))
    peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-18 MQTT-3.1.2-20", mqtt5="MQTT-3.1.2-16 MQTT-3.1.2-18")
def test_a_user_name_or_password_without_its_flag_is_refused(
    gateway: Gateway, version: int
) -> None:
    for flags, payload in ((0x02, USER), (0x02, USER + PASSWORD), (0x82, USER + PASSWORD)):
        peer = gateway.open(version)
        peer.send(raw_connect(version, flags, CLIENT + payload))
        peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-19 MQTT-3.1.2-21", mqtt5="MQTT-3.1.2-17 MQTT-3.1.2-19")
def test_a_flag_without_its_user_name_or_password_is_refused(
    gateway: Gateway, version: int
) -> None:
    for flags, payload in ((0x82, b""), (0xC2, USER), (0xC2, USER + PASSWORD[:-1])):
        peer = gateway.open(version)
        peer.send(raw_connect(version, flags, CLIENT + payload))
        peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.2-22")
def test_a_password_flag_without_the_user_name_flag_is_refused(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0x42, CLIENT + PASSWORD))
    peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.3-1", mqtt5="MQTT-3.1.3-1")
def test_the_payload_is_read_in_its_order(version: int) -> None:
    rule = TopicRule(filter="in/#", queue_topic="{user_name}")
    gateway = Gateway(topic_map=(rule,))
    peer = gateway.open(version)
    peer.send(raw_connect(version, 0xC2, CLIENT + USER + PASSWORD))
    assert peer.read_connack().reason_code == 0
    peer.publish("in/order")
    assert gateway.publishers("user") == ["client"]


@proves(mqtt3="MQTT-3.1.3-2", mqtt5="MQTT-3.1.3-2")
def test_state_belongs_to_a_client_identifier(gateway: Gateway, version: int) -> None:
    first, other = gateway.connect(version, "one"), gateway.connect(version, "One")
    first.subscribe("state/1")
    other.subscribe("state/2")
    gateway.connect(version).publish("state/1")
    assert first.message().topic == "state/1"
    assert other.packets() == []
    other.assert_open()


@proves(mqtt3="MQTT-3.1.3-3", mqtt5="MQTT-3.1.3-3")
def test_a_payload_without_a_client_identifier_is_refused(gateway: Gateway, version: int) -> None:
    for payload in (b"", b"\0", b"\0\x05ab"):
        peer = gateway.open(version)
        peer.send(raw_connect(version, 0x02, payload))
        peer.assert_refused(MALFORMED)


@proves(mqtt3="MQTT-3.1.3-5 MQTT-3.1.4-4", mqtt5="MQTT-3.1.3-5 MQTT-3.1.4-5")
def test_identifiers_of_letters_and_digits_are_allowed(gateway: Gateway, version: int) -> None:
    characters = string.digits + string.ascii_lowercase + string.ascii_uppercase
    for client_id in ("0", "Z", characters[:23], characters[23:46], characters[46:]):
        assert gateway.connect(version, client_id).connack.reason_code == 0


@proves(mqtt3="MQTT-3.1.3-6", mqtt5="MQTT-3.1.3-6 MQTT-3.1.3-7 MQTT-3.2.2-16")
def test_an_empty_identifier_is_replaced_by_a_unique_one(gateway: Gateway, version: int) -> None:
    peers = [gateway.connect(version, "") for _ in range(3)]
    for peer in peers:
        peer.publish("whose", b"mine")
        peer.assert_open()
    used = gateway.publishers("whose")
    assert len(set(used)) == 3
    assert all(used)
    if version == 5:
        assert sorted(used) == sorted(p.connack.properties.assigned_client_id or "" for p in peers)


@proves(mqtt3="MQTT-3.1.3-7 MQTT-3.1.3-8")
def test_an_empty_identifier_without_clean_session_is_refused(
    gateway: Gateway, version: int
) -> None:
    connack = refusal(gateway.open(version), connect_packet(version, "", clean_start=False))
    assert (connack.reason_code, connack.session_present) == (2, False)


@proves(
    mqtt3="MQTT-3.1.3-9 MQTT-3.2.2-4 MQTT-3.2.2-5",
    mqtt5="MQTT-3.1.3-8 MQTT-3.2.2-6 MQTT-3.2.2-7 MQTT-4.13.2-1 MQTT-3.1.4-2",
)
def test_a_rejected_identifier_is_answered_and_the_connection_ends(version: int) -> None:
    gateway = Gateway(client_id_bytes_max=23)
    for client_id in ("a" * 24, "line\nbreak"):
        connack = refusal(gateway.open(version), connect_packet(version, client_id))
        assert connack.reason_code == (0x85 if version == 5 else 2)
        assert not connack.session_present


@proves(mqtt3="MQTT-3.1.4-1 MQTT-3.2.2-6 MQTT-4.8.0-1", mqtt5="MQTT-3.1.4-1 MQTT-4.13.1-1")
def test_a_connect_that_does_not_conform_is_not_served(gateway: Gateway, version: int) -> None:
    whole = connect_packet(version, "client")
    bodies = [whole[2:end] for end in (3, 8, 10, 12, len(whole) - 1)] + [whole[2:] + b"\0"]
    for body in bodies:
        peer = gateway.open(version)
        peer.send(bytes([0x10, len(body)]) + body)
        assert peer.is_closed
        assert not any(packet.body[:2] == b"\0\0" for packet in peer.packets())


@proves(mqtt3="MQTT-3.1.4-2", mqtt5="MQTT-3.1.4-3 MQTT-4.13.2-1")
def test_a_new_connection_ends_the_one_with_its_identifier(gateway: Gateway, version: int) -> None:
    for new_version in (version, 9 - version):
        old = gateway.connect(version, f"same-{new_version}")
        gateway.connect(new_version, f"same-{new_version}").assert_open()
        old.assert_ended(0x8E)


@proves(mqtt3="MQTT-3.1.4-5", mqtt5="MQTT-3.1.4-6")
def test_nothing_behind_a_rejected_connect_is_processed(version: int) -> None:
    gateway = Gateway(client_id_bytes_max=23)
    reader = gateway.connect(version)
    reader.subscribe("#")
    for rejected in (connect_packet(version, "a" * 24), raw_connect(version, 0x03, CLIENT)):
        peer = gateway.open(version)
        peer.send(rejected + publish_packet(version, "too/late") + PINGREQ)
        assert all(packet.first_byte == 0x20 for packet in peer.packets())
    assert reader.packets() == []


@proves(mqtt3="MQTT-3.2.0-1", mqtt5="MQTT-3.2.0-1")
def test_connack_comes_before_all_else(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send(
        connect_packet(version)
        + subscribe_packet(version, "a")
        + publish_packet(version, "a", qos=1, packet_id=3)
        + PINGREQ
    )
    packets = peer.packets()
    assert packets[0].first_byte == 0x20
    assert sorted(packet.first_byte for packet in packets[1:]) == [0x32, 0x40, 0x90, 0xD0]


@proves(mqtt5="MQTT-3.2.2-1")
def test_the_reserved_acknowledge_flags_are_0(gateway: Gateway, version: int) -> None:
    for data in (connect_packet(version), raw_connect(version, 0x03, CLIENT)):
        peer = gateway.open(version)
        peer.send(data)
        assert peer.packet().body[0] & 0xFE == 0


@proves(
    mqtt3="MQTT-3.2.2-1 MQTT-3.2.2-3 MQTT-3.1.4-3",
    mqtt5="MQTT-3.2.2-2 MQTT-3.1.4-4",
)
def test_a_new_session_is_not_present(gateway: Gateway, version: int) -> None:
    assert not gateway.connect(version, "new").connack.session_present
    assert not gateway.connect(version, "new").connack.session_present


@proves(mqtt5="MQTT-3.2.2-8")
def test_refusals_have_codes_of_their_table(version: int) -> None:
    gateway = Gateway(client_id_bytes_max=23)
    for data in (
        connect_packet(version, "a" * 24),
        connect_packet(version, "a", authentication_method="none"),
        raw_connect(version, 0x03, CLIENT),
        raw_connect(version, 0x06, CLIENT + will(version, "wild/#")),
    ):
        assert refusal(gateway.open(version), data).reason_code in CONNACK_CODES


@proves(mqtt5="MQTT-3.1.2-28")
def test_response_information_comes_to_those_alone_who_ask(version: int) -> None:
    gateway = Gateway(response_information="reply/{client_id}")
    peers = [gateway.connect(version), gateway.connect(version, request_response_information=0)]
    for peer in peers:
        assert peer.connack.properties.response_information is None
    asks = gateway.connect(version, "meter", request_response_information=1)
    assert asks.connack.properties.response_information == "reply/meter"


@proves(mqtt5="MQTT-3.2.2-22")
def test_the_clients_keep_alive_holds_unless_connack_says_otherwise(version: int) -> None:
    gateway = Gateway(keep_alive_max_s=100)
    for asked_s, held_s in ((1, 1), (100, 100), (101, 100), (0, 100)):
        peer = gateway.connect(version, keep_alive_s=asked_s)
        told_s = peer.connack.properties.server_keep_alive_s
        assert (asked_s if told_s is None else told_s) == held_s
        _, idle_s_max = gateway.stage.output.limits[peer.number]
        assert 1.5 * held_s <= idle_s_max < 1.5 * held_s + 1


@proves(mqtt5="MQTT-4.12.0-1 MQTT-4.12.0-4 MQTT-3.1.4-2")
def test_an_authentication_method_is_refused(gateway: Gateway, version: int) -> None:
    data = connect_packet(version, "a", authentication_method="SCRAM-SHA-1")
    connack = refusal(gateway.open(version), data)
    assert connack.reason_code == 0x8C
    assert connack.properties.authentication_method is None


@proves(mqtt5="MQTT-4.12.0-2 MQTT-4.12.0-5 MQTT-3.15.2-1")
def test_each_packet_of_an_authentication_names_its_method(tmp_path: Path, version: int) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"alice:{VERIFIER.text}\n")
    gateway = Gateway(access=AccessConfig(password_file=str(path)))
    peer, client = gateway.open(version), ScramClient("alice", "s")
    peer.send(
        connect_packet(version, "a", authentication_method=METHOD, authentication_data=client.first)
    )

    def answered(code: int) -> bytes:
        [packet] = peer.packets()
        auth = decode_auth(version, packet.first_byte, packet.body)
        assert (auth.reason_code, auth.method) == (code, METHOD)
        return auth.data

    peer.send(encode_auth(Auth(0x18, METHOD, client.answer(answered(0x18)))))
    told = peer.read_connack()
    assert told.reason_code == 0
    assert told.properties.authentication_method == METHOD
    again = ScramClient("alice", "s", "again")
    peer.send(encode_auth(Auth(0x19, METHOD, again.first)))
    peer.send(encode_auth(Auth(0x18, METHOD, again.answer(answered(0x18)))))
    assert answered(0x00) == again.signature


@proves(mqtt5="MQTT-4.12.0-6")
def test_without_a_method_there_is_no_authentication(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, user_name="user", password=b"password")
    assert peer.connack.properties.authentication_method is None
    assert peer.packets() == []


@pytest.mark.parametrize("auth", ["f0 00", "f0 02 19 00", "f0 05 18 03 150000"])
@proves(mqtt5="MQTT-4.12.0-7 MQTT-4.12.1-2 MQTT-4.13.1-1")
def test_auth_without_a_method_ends_the_connection(
    gateway: Gateway, version: int, auth: str
) -> None:
    peer = gateway.connect(version)
    peer.send_hex(auth)
    peer.assert_ended(PROTOCOL_ERROR)


@proves(mqtt3="MQTT-7.0.0-2")
def test_the_plainest_client_is_served(gateway: Gateway, version: int) -> None:
    peer = gateway.open(version)
    peer.send_hex("100d 00044d5154540402003c 000161")
    peer.send_hex("8206 0001 000174 00")
    peer.send_hex("3005 000174 6869")
    assert peer.received().hex(" ") == "20 02 00 00 90 03 00 01 00 30 05 00 01 74 68 69"
