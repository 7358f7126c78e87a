"""The property table: which property may stand where, how often, with which values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from motelog.gateway.mqtt.errors import MalformedPacketError, ProtocolViolationError
from motelog.gateway.mqtt.fields import FieldReader
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    PacketType,
    Properties,
    PropertyId,
    PropertyValue,
)
from motelog.gateway.mqtt.properties import (
    REPEATED_MAX,
    WILL,
    decode_properties,
    encode_properties,
    length_and_properties,
    read_properties,
    reason_string,
)

P = PacketType
MESSAGE = {P.PUBLISH, WILL}
ANSWERS = {P.CONNACK, P.PUBACK, P.PUBREC, P.PUBREL, P.PUBCOMP, P.SUBACK, P.UNSUBACK}
# Table 2-4, written down again: identifier -> a legal value and the packets that may have it.
TABLE: dict[PropertyId, tuple[PropertyValue, set[int]]] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: (1, MESSAGE),
    PropertyId.MESSAGE_EXPIRY_INTERVAL: (7, MESSAGE),
    PropertyId.CONTENT_TYPE: ("t", MESSAGE),
    PropertyId.RESPONSE_TOPIC: ("r", MESSAGE),
    PropertyId.CORRELATION_DATA: (b"\0", MESSAGE),
    PropertyId.SUBSCRIPTION_IDENTIFIER: ((9,), {P.PUBLISH, P.SUBSCRIBE}),
    PropertyId.SESSION_EXPIRY_INTERVAL: (1, {P.CONNECT, P.CONNACK, P.DISCONNECT}),
    PropertyId.ASSIGNED_CLIENT_IDENTIFIER: ("c", {P.CONNACK}),
    PropertyId.SERVER_KEEP_ALIVE: (1, {P.CONNACK}),
    PropertyId.AUTHENTICATION_METHOD: ("m", {P.CONNECT, P.CONNACK, P.AUTH}),
    PropertyId.AUTHENTICATION_DATA: (b"d", {P.CONNECT, P.CONNACK, P.AUTH}),
    PropertyId.REQUEST_PROBLEM_INFORMATION: (0, {P.CONNECT}),
    PropertyId.WILL_DELAY_INTERVAL: (1, {WILL}),
    PropertyId.REQUEST_RESPONSE_INFORMATION: (1, {P.CONNECT}),
    PropertyId.RESPONSE_INFORMATION: ("i", {P.CONNACK}),
    PropertyId.SERVER_REFERENCE: ("s", {P.CONNACK, P.DISCONNECT}),
    PropertyId.REASON_STRING: ("x", ANSWERS | {P.DISCONNECT, P.AUTH}),
    PropertyId.RECEIVE_MAXIMUM: (1, {P.CONNECT, P.CONNACK}),
    PropertyId.TOPIC_ALIAS_MAXIMUM: (0, {P.CONNECT, P.CONNACK}),
    PropertyId.TOPIC_ALIAS: (1, {P.PUBLISH}),
    PropertyId.MAXIMUM_QOS: (1, {P.CONNACK}),
    PropertyId.RETAIN_AVAILABLE: (0, {P.CONNACK}),
    PropertyId.USER_PROPERTY: ((("k", "v"),), {*P, WILL} - {P.PINGREQ, P.PINGRESP}),
    PropertyId.MAXIMUM_PACKET_SIZE: (1, {P.CONNECT, P.CONNACK}),
    PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE: (1, {P.CONNACK}),
    PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: (0, {P.CONNACK}),
    PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: (0, {P.CONNACK}),
}


def test_the_table_is_complete() -> None:
    assert TABLE.keys() == set(PropertyId)
    assert len(fields(Properties)) == len(PropertyId)


@pytest.mark.parametrize("property_id", PropertyId, ids=lambda one: str(one.name))
@pytest.mark.parametrize("packet_type", [WILL, *P], ids=lambda one: getattr(one, "name", "WILL"))
def test_property_stands_only_where_table_2_4_allows(
    property_id: PropertyId, packet_type: int
) -> None:
    value, allowed = TABLE[property_id]
    values = {property_id: value}
    if property_id == PropertyId.AUTHENTICATION_DATA and packet_type in allowed:
        values[PropertyId.AUTHENTICATION_METHOD] = "m"
    block = encode_properties(values)
    if packet_type in allowed:
        found = decode_properties(block, packet_type, from_server=True)
        assert found.as_dict() == values
    else:
        with pytest.raises(MalformedPacketError):
            decode_properties(block, packet_type, from_server=True)


@pytest.mark.parametrize("property_id", PropertyId, ids=lambda one: str(one.name))
def test_only_user_properties_and_identifiers_of_a_publish_repeat(property_id: PropertyId) -> None:
    value, allowed = TABLE[property_id]
    packet_type = P.PUBLISH if P.PUBLISH in allowed else min(allowed)
    block = encode_properties({property_id: value}) * 2
    if property_id in (PropertyId.USER_PROPERTY, PropertyId.SUBSCRIPTION_IDENTIFIER):
        assert isinstance(value, tuple)
        found = decode_properties(block, packet_type, from_server=True)
        assert found.as_dict() == {property_id: value * 2}
    else:
        with pytest.raises(ProtocolViolationError):
            decode_properties(block, packet_type, from_server=True)


@pytest.mark.parametrize(
    ("block", "packet_type", "reason_code"),
    [
        ("01 02", P.PUBLISH, 0x82),
        ("08 0001 2b", P.PUBLISH, 0x82),
        ("08 0000", P.PUBLISH, 0x82),
        ("08 0000", WILL, 0x82),
        ("08 0003 612f23", WILL, 0x82),
        ("0b 00", P.SUBSCRIBE, 0x82),
        ("0b 01", P.PUBLISH, 0x82),
        ("23 0000", P.PUBLISH, 0x94),
        ("24 02", P.CONNACK, 0x82),
        ("21 0000", P.CONNECT, 0x82),
        ("16 0000", P.CONNECT, 0x82),
        ("02 000000", P.PUBLISH, 0x81),
        ("03 0002 61", P.PUBLISH, 0x81),
        ("26 0001 61", P.PUBLISH, 0x81),
        ("03 0001 ff", P.PUBLISH, 0x81),
        ("8100 01", P.PUBLISH, 0x81),
        ("ffffffff7f", P.PUBLISH, 0x81),
        ("04", P.PUBLISH, 0x81),
    ],
)
def test_illegal_value_has_its_reason_code(block: str, packet_type: int, reason_code: int) -> None:
    with pytest.raises((MalformedPacketError, ProtocolViolationError)) as caught:
        decode_properties(bytes.fromhex(block), packet_type)
    assert caught.value.reason_code == reason_code


def test_no_properties_cost_no_object() -> None:
    assert decode_properties(None, P.PUBLISH) is NO_PROPERTIES
    assert decode_properties(b"", P.PUBLISH) is NO_PROPERTIES
    assert read_properties(FieldReader(b"\0"), P.PUBLISH) is NO_PROPERTIES


def test_order_of_user_properties_is_kept() -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "1"))
    block = encode_properties({PropertyId.USER_PROPERTY: pairs})
    assert decode_properties(block, P.PUBLISH).user_properties == pairs  # [MQTT-3.3.2-18]


def test_block_ends_where_its_length_says() -> None:
    reader = FieldReader(b"\xff" + length_and_properties({PropertyId.TOPIC_ALIAS: 5}) + b"rest")
    reader.u8()
    assert read_properties(reader, P.PUBLISH).topic_alias == 5
    assert reader.rest() == b"rest"


def test_offset_of_a_fault_counts_from_the_body() -> None:
    reader = FieldReader(b"\0\0\0" + b"\x02\x7f\x00")
    reader.bytes_of(3)
    with pytest.raises(MalformedPacketError) as caught:
        read_properties(reader, P.PUBLISH)
    assert caught.value.offset_bytes == 4


@pytest.mark.parametrize(
    ("property_id", "value"),
    [
        (PropertyId.RECEIVE_MAXIMUM, 65536),
        (PropertyId.MAXIMUM_QOS, -1),
        (PropertyId.MESSAGE_EXPIRY_INTERVAL, 2**32),
        (PropertyId.CONTENT_TYPE, b"bytes"),
        (PropertyId.CORRELATION_DATA, 5),
        (PropertyId.USER_PROPERTY, (("a",),)),
        (PropertyId.USER_PROPERTY, 5),
        (PropertyId.SUBSCRIPTION_IDENTIFIER, (268_435_456,)),
    ],
)
def test_value_of_the_wrong_kind_is_a_programming_error(
    property_id: PropertyId, value: Any
) -> None:
    with pytest.raises(ValueError, match=r"cannot be|does not fit"):
        encode_properties({property_id: value})


def test_flood_of_user_properties_is_refused() -> None:
    one = bytes.fromhex("26 0000 0000")
    assert len(decode_properties(one * REPEATED_MAX, P.PUBLISH).user_properties) == REPEATED_MAX
    with pytest.raises(ProtocolViolationError) as caught:
        decode_properties(one * 200_000, P.PUBLISH)
    assert caught.value.reason_code == 0x97


def test_a_reason_of_any_text_can_be_told() -> None:
    block = encode_properties(reason_string("why\0" * 1000))
    assert decode_properties(block, P.PUBACK).reason_string == ("why\ufffd" * 1000)[:1000]
