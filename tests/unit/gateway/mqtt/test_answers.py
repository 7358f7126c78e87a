"""Acknowledgements, SUBACK, UNSUBACK and DISCONNECT: what differs between the versions."""

from __future__ import annotations

from functools import partial

import pytest

from motelog.gateway.mqtt.acks import PACKET_ID_AT, encode_ack
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.errors import MalformedPacketError, ProtocolViolationError
from motelog.gateway.mqtt.packet_types import PacketType, PropertyId, SubscribeEntry
from motelog.gateway.mqtt.subscribe import (
    FILTERS_MAX,
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
    encode_suback,
    encode_unsuback,
)

encode_puback = partial(encode_ack, PacketType.PUBACK)


def test_puback_is_short_when_it_can_be() -> None:
    assert encode_puback(3, 7) == encode_puback(5, 7) == b"\x40\x02\x00\x07"
    assert encode_puback(5, 7, 0x97) == b"\x40\x03\x00\x07\x97"
    assert encode_puback(5, 7, 0, {PropertyId.REASON_STRING: "x"}).hex() == "4008000700041f000178"
    assert encode_puback(5, 0x1234)[PACKET_ID_AT : PACKET_ID_AT + 2] == b"\x12\x34"


def test_version_4_has_no_negative_puback() -> None:
    assert encode_puback(4, 7, 0x10) == b"\x40\x02\x00\x07"
    with pytest.raises(ValueError, match="no acknowledgement"):
        encode_puback(4, 7, 0x97)


def test_pubrel_has_its_flags() -> None:
    assert encode_ack(PacketType.PUBREL, 4, 7) == b"\x62\x02\x00\x07"


def test_failures_of_a_suback_have_one_code_before_version_5() -> None:
    codes = [1, 0x87, 0x9E]
    assert encode_suback(4, 7, codes) == b"\x90\x05\x00\x07\x01\x80\x80"
    assert encode_suback(5, 7, codes) == b"\x90\x06\x00\x07\x00\x01\x87\x9e"


def test_unsuback_has_codes_in_version_5_alone() -> None:
    assert encode_unsuback(4, 7, [0]) == b"\xb0\x02\x00\x07"
    assert encode_unsuback(5, 7, [0, 0x11]) == b"\xb0\x05\x00\x07\x00\x00\x11"


def test_answers_without_their_codes_are_refused() -> None:
    with pytest.raises(ProtocolViolationError):
        decode_suback(4, b"\x00\x07")
    with pytest.raises(MalformedPacketError):
        decode_unsuback(4, b"\x00\x07\x00")
    with pytest.raises(MalformedPacketError):
        decode_unsuback(5, b"\x00\x07\x00")


def test_subscription_options_are_one_byte() -> None:
    assert SubscribeEntry("a", 2).options == 0x02
    assert SubscribeEntry("a", 1, no_local=True).options == 0x05
    assert SubscribeEntry("a", 0, retain_as_published=True, retain_handling=2).options == 0x28


def test_disconnect_before_version_5_is_empty() -> None:
    assert encode_disconnect(4, 0x8E) == b"\xe0\x00"
    assert encode_disconnect(5, 0x8E) == b"\xe0\x01\x8e"
    assert (
        encode_disconnect(5, 0x9D, {PropertyId.SERVER_REFERENCE: "h"}).hex() == "e0069d041c000168"
    )


def test_disconnect_codes_belong_to_a_side() -> None:
    assert decode_disconnect(5, 0xE0, b"\x8e", from_server=True).reason_code == 0x8E
    assert decode_disconnect(5, 0xE0, b"\x04").reason_code == 0x04
    with pytest.raises(ProtocolViolationError):
        decode_disconnect(5, 0xE0, b"\x8e")
    with pytest.raises(ProtocolViolationError):
        decode_disconnect(5, 0xE0, b"\x04", from_server=True)


def test_server_sends_no_session_expiry_in_disconnect() -> None:
    body = bytes.fromhex("00 05 11 00000001")
    assert decode_disconnect(5, 0xE0, body).properties.session_expiry_interval_s == 1
    with pytest.raises(ProtocolViolationError):
        decode_disconnect(5, 0xE0, body, from_server=True)  # [MQTT-3.14.2-2]


def test_flood_of_filters_is_refused() -> None:
    head = b"\x00\x01"
    assert len(decode_subscribe(4, 0x82, head + b"\0\x01a\0" * FILTERS_MAX).entries) == FILTERS_MAX
    with pytest.raises(ProtocolViolationError) as caught:
        decode_subscribe(4, 0x82, head + b"\0\x01a\0" * 200_000)
    assert caught.value.reason_code == 0x97
    with pytest.raises(ProtocolViolationError):
        decode_unsubscribe(4, 0xA2, head + b"\0\x01a" * 200_000)
