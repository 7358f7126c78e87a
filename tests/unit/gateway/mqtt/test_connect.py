"""CONNACK's codes in each version, and in which version a refused CONNECT is answered."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.connect import (
    _known_head,
    claimed_version,
    decode_connect,
    encode_connack,
    encode_connect,
)
from motelog.gateway.mqtt.errors import MalformedPacketError, UnsupportedProtocolVersionError
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connect,
    Properties,
    PropertyId,
    ReasonCode,
)
from tests.support.mqtt import body_of


@pytest.mark.parametrize(
    ("reason_code", "return_code"),
    [
        (ReasonCode.SUCCESS, 0),
        (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (ReasonCode.SERVER_BUSY, 3),
        (ReasonCode.QUOTA_EXCEEDED, 3),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode.NOT_AUTHORIZED, 5),
        (ReasonCode.BANNED, 5),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_reason_code_becomes_a_return_code_before_version_5(
    version: int, reason_code: int, return_code: int
) -> None:
    assert encode_connack(version, reason_code) == bytes((0x20, 2, 0, return_code))


@pytest.mark.parametrize("reason_code", [0x81, 0x82, 0x90, 0x95, 0x99, 0x9A, 0x9B])
def test_reason_without_return_code_is_answered_by_closing(reason_code: int) -> None:
    assert encode_connack(4, reason_code) == b""
    assert encode_connack(5, reason_code) == bytes((0x20, 3, 0, reason_code, 0))


def test_session_present_is_said_only_with_success_and_after_3_1() -> None:
    assert encode_connack(3, 0, session_present=True) == b"\x20\x02\x00\x00"
    assert encode_connack(4, 0, session_present=True) == b"\x20\x02\x01\x00"
    assert encode_connack(4, 0x87, session_present=True) == b"\x20\x02\x00\x05"
    assert encode_connack(5, 0x87, session_present=True) == b"\x20\x03\x00\x87\x00"


def test_properties_are_sent_to_version_5_alone() -> None:
    properties = {PropertyId.MAXIMUM_QOS: 1}
    assert encode_connack(4, 0, properties=properties) == b"\x20\x02\x00\x00"
    assert encode_connack(5, 0, properties=properties) == b"\x20\x05\x00\x00\x02\x24\x01"


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("0004 4d515454 05 02", 5),
        ("0004 4d515454 06 02", 4),
        ("0004 4d515454 84 02", 4),  # a bridge
        ("0006 4d5149736470 83 02", 4),
        ("0004 4d515454 04 02", 4),
        ("0004 4d515454 03 02", 4),
        ("0004 4d515454", 4),
        ("0006 4d5149736470 03", 4),
        ("0004 4d515455 05", 4),
        ("", 4),
    ],
)
def test_refused_connect_is_answered_in_the_version_it_claims(body: str, version: int) -> None:
    assert claimed_version(bytes.fromhex(body)) == version


def test_unsupported_version_names_what_was_asked() -> None:
    body = body_of(encode_connect(Connect(5, True, 0, "c"))).replace(b"MQTT\x05", b"MQTT\x09")
    with pytest.raises(UnsupportedProtocolVersionError, match="level 9"):
        decode_connect(0x10, body)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_clients_that_ask_for_the_same_have_their_own_names(version: int) -> None:
    properties = Properties(receive_maximum=7) if version == 5 else NO_PROPERTIES
    for name in ("a", "b", "a"):
        packet = Connect(
            version, True, 60, name, user_name=f"user of {name}", properties=properties
        )
        assert decode_connect(0x10, body_of(encode_connect(packet))) == packet


def test_what_a_client_alone_says_is_not_kept() -> None:
    long = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=u,r=nonce")
    short = Properties(receive_maximum=7)
    decode_connect(0x10, body_of(encode_connect(Connect(5, True, 77, "c", properties=short))))
    before = _known_head.cache_info()
    for properties, kept in ((long, 0), (short, 1)):
        packet = Connect(5, True, 77, "c", properties=properties)
        assert decode_connect(0x10, body_of(encode_connect(packet))) == packet
        now = _known_head.cache_info()
        assert (now.currsize, now.hits - before.hits) == (before.currsize, kept)


def test_a_faulty_head_is_refused_each_time() -> None:
    body = body_of(encode_connect(Connect(4, True, 60, "c")))
    reserved = body[:7] + b"\x03" + body[8:]
    for _ in range(2):
        with pytest.raises(MalformedPacketError, match="reserved connect flag"):
            decode_connect(0x10, reserved)
