"""CONNECT and CONNACK.

Owns: their encoding, and the return codes that MQTT 3.1 and 3.1.1 have instead of reason codes.
Must not touch: which clients may connect, and on which terms (``sessions.connect_rules``).
Spec: MQTT 5.0 sections 3.1 and 3.2, MQTT 3.1.1 sections 3.1 and 3.2.

    CONNECT:  name string | level u8 | flags u8 | keep alive u16 | properties (v5)
              | client id string | will: properties (v5), topic string, payload binary
              | user name string | password binary
    CONNACK:  session present u8 | reason code u8 | properties (v5)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from motelog.gateway.mqtt.errors import (
    ClientIdentifierError,
    MalformedPacketError,
    UnsupportedProtocolVersionError,
)
from motelog.gateway.mqtt.fields import FieldReader, encode_binary, encode_string
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connack,
    Connect,
    PacketType,
    Properties,
    PropertyId,
    PropertyValue,
    ReasonCode,
    Will,
)
from motelog.gateway.mqtt.packing import check_flags, packet
from motelog.gateway.mqtt.properties import WILL, length_and_properties, read_properties
from motelog.gateway.mqtt.topics import check_topic_name

# Protocol name and level, the begin of every legal CONNECT.
_VERSIONS: Final = {b"\x00\x06MQIsdp\x03": 3, b"\x00\x04MQTT\x04": 4, b"\x00\x04MQTT\x05": 5}
#: Size of the cache of parsed beginnings: the clients of a fleet send few different bytes before
#: the client identifier.
_HEADS_KEPT: Final = 256
#: Beginnings with longer properties are not cached. This is enough for all limits that a client can
#: ask for; longer ones are individual, such as a login.
_KEPT_PROPERTIES_BYTES_MAX: Final = 20
#: Version, flags, keep alive, properties.
_Head: TypeAlias = tuple[int, int, int, Properties]
_CONTROL: Final = re.compile("[\x01-\x1f\x7f-\x9f]")

_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER_NAME: Final = 0x80

# MQTT 3.1.1 table 3.1; a reason code that is not here has no return code.
_RETURN_CODES: Final[dict[int, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.UNSPECIFIED_ERROR: 3,
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: 3,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.SERVER_SHUTTING_DOWN: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 5,
}


def decode_connect(first_byte: int, body: bytes) -> Connect:
    """Return the CONNECT in a packet body (the part after the fixed header).

    Raises UnsupportedProtocolVersionError, MalformedPacketError, ProtocolViolationError,
    ClientIdentifierError or TopicNameError; ``claimed_version`` says in which version to answer.
    A will of QoS 2, a clean start of 0 and authentication properties are legal here.
    """
    reader = FieldReader(body)
    head_bytes = _head_bytes(body)
    if head_bytes:
        version, flags, keep_alive_s, properties = _known_head(body[:head_bytes])
        reader.position = head_bytes
    else:
        version, flags, keep_alive_s, properties = _read_head(reader, body)
    if version != 3:  # 3.1 does not use the bits beside the packet type
        check_flags(version, first_byte, 0)
    client_id = reader.string()  # [MQTT-3.1.3-3] [MQTT-3.1.3-4]
    will = _read_will(reader, version, flags) if flags & _WILL else None
    user_name = None
    # MQTT 3.1 section 3.1: there the remaining length takes precedence over the user name flag.
    if flags & _USER_NAME and (version != 3 or len(reader)):
        user_name = reader.string()  # [MQTT-3.1.3-12]
    password = None
    if flags & _PASSWORD and (version != 3 or len(reader)):
        password = reader.binary()
    reader.expect_end()
    is_clean = flags & _CLEAN_START > 0
    if not (client_id and client_id.isprintable()):
        _check_client_id(version, client_id, clean_start=is_clean)
    if user_name is not None and _has_control(user_name):
        raise MalformedPacketError("user name contains a control character")  # section 1.5.4
    return Connect(
        version, is_clean, keep_alive_s, client_id, will, user_name, password, properties
    )


def claimed_version(body: bytes) -> int:
    """Return the version in which to answer a CONNECT that ``decode_connect`` refused.

    Every level except 5 is answered as 3.1.1. A bridge sets bit 7 of its level and tries again
    without it, but only if the refusal has the form of 3.1.1. [MQTT-3.1.2-2 of 3.1.1]
    """
    return 5 if body[:7] == b"\x00\x04MQTT\x05" else 4


def encode_connect(connect: Connect) -> bytes:
    """Return the whole CONNECT packet."""
    flags = _CLEAN_START if connect.clean_start else 0
    tail = [encode_string(connect.client_id)]
    if connect.will is not None:
        will = connect.will
        flags |= _WILL | will.qos << 3 | (_WILL_RETAIN if will.retain else 0)
        if connect.version == 5:
            tail.append(length_and_properties(will.properties.as_dict()))
        tail += [encode_string(will.topic), encode_binary(will.payload)]
    if connect.user_name is not None:
        flags |= _USER_NAME
        tail.append(encode_string(connect.user_name))
    if connect.password is not None:
        flags |= _PASSWORD
        tail.append(encode_binary(connect.password))
    properties = b""
    if connect.version == 5:
        properties = length_and_properties(connect.properties.as_dict())
    return packet(
        PacketType.CONNECT,
        b"".join(
            (
                encode_string("MQIsdp" if connect.version == 3 else "MQTT"),
                bytes((connect.version, flags)),
                connect.keep_alive_s.to_bytes(2, "big"),
                properties,
                *tail,
            )
        ),
    )


def encode_connack(
    version: int,
    reason_code: int,
    session_present: bool = False,
    properties: Mapping[PropertyId, PropertyValue] | None = None,
) -> bytes:
    """Return the CONNACK packet in the client's version; only MQTT 5 gets properties.

    Empty when version 3 or 4 has no return code for the reason: then the connection is closed
    without a CONNACK [MQTT-3.2.2-6 of 3.1.1].
    """
    present = session_present and reason_code == ReasonCode.SUCCESS  # [MQTT-3.2.2-6]
    if version == 5:
        body = bytes((present, reason_code)) + length_and_properties(properties)
        return packet(PacketType.CONNACK, body)
    return_code = _RETURN_CODES.get(reason_code)
    if return_code is None:
        return b""
    # Version 3.1 has no session present flag: the byte is reserved.
    return packet(PacketType.CONNACK, bytes((present and version == 4, return_code)))


def decode_connack(version: int, body: bytes) -> Connack:
    """Return the CONNACK in a packet body; a version below 5 keeps its return code."""
    reader = FieldReader(body)
    acknowledge_flags, reason_code = reader.u8(), reader.u8()
    if acknowledge_flags > 1:  # [MQTT-3.2.2-1]
        raise MalformedPacketError("reserved acknowledge flags are set")
    properties = NO_PROPERTIES
    if version == 5:
        properties = read_properties(reader, PacketType.CONNACK, from_server=True)
    reader.expect_end()
    return Connack(reason_code, bool(acknowledge_flags), properties)


def _head_bytes(body: bytes) -> int:
    """Return the number of bytes before the client identifier if it is small; else 0.

    Also 0 if the packet has an unsupported version.
    """
    version = _VERSIONS.get(body[:7])
    if version == 4:
        return 10
    if version == 5 and len(body) > 10 and body[10] <= _KEPT_PROPERTIES_BYTES_MAX:
        return 11 + body[10]
    return 0


@lru_cache(_HEADS_KEPT)
def _known_head(head: bytes) -> _Head:
    return _read_head(FieldReader(head), head)


def _read_head(reader: FieldReader, body: bytes) -> _Head:
    """Read the part before the client identifier."""
    version = _read_version(reader, body)
    flags = reader.u8()
    _check_flags(version, flags)
    keep_alive_s = reader.u16()
    properties = read_properties(reader, PacketType.CONNECT) if version == 5 else NO_PROPERTIES
    return version, flags, keep_alive_s, properties


def _read_version(reader: FieldReader, body: bytes) -> int:
    opening = body[:7]
    version = _VERSIONS.get(opening)
    if version is None:
        opening = body[:9]
        version = _VERSIONS.get(opening)
    if version is None:  # [MQTT-3.1.2-1] [MQTT-3.1.2-2]
        name = reader.binary()
        raise UnsupportedProtocolVersionError(f"protocol {name[:16]!r} level {reader.u8()}")
    reader.position = len(opening)
    return version


def _check_flags(version: int, flags: int) -> None:
    if flags & 0x01 and version != 3:  # [MQTT-3.1.2-3]; 3.1 leaves the bit to the sender
        raise MalformedPacketError("reserved connect flag is set")
    qos = flags >> 3 & 3
    if qos == 3:  # [MQTT-3.1.2-12]
        raise MalformedPacketError("will QoS is 3")
    if not flags & _WILL and (qos or flags & _WILL_RETAIN):  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
        raise MalformedPacketError("will QoS or will retain without a will")
    if version != 5 and flags & _PASSWORD and not flags & _USER_NAME:  # [MQTT-3.1.2-22 of 3.1.1]
        raise MalformedPacketError("password without a user name")


def _read_will(reader: FieldReader, version: int, flags: int) -> Will:
    properties: Properties = NO_PROPERTIES
    if version == 5:
        properties = read_properties(reader, WILL)
    topic = reader.string()  # [MQTT-3.1.3-11]
    check_topic_name(topic)
    return Will(
        topic=topic,
        payload=reader.binary(),
        qos=flags >> 3 & 3,
        retain=bool(flags & _WILL_RETAIN),
        properties=properties,
    )


def _check_client_id(version: int, client_id: str, *, clean_start: bool) -> None:
    if not client_id and (version == 3 or (version == 4 and not clean_start)):
        # [MQTT-3.1.3-7] [MQTT-3.1.3-8] of 3.1.1; 3.1 has no empty client identifier at all.
        raise ClientIdentifierError("client identifier is empty")
    if _has_control(client_id):  # section 1.5.4: it goes into log lines and records
        raise ClientIdentifierError("client identifier contains a control character")


def _has_control(text: str) -> bool:
    # Nearly every text is printable; checking that costs a tenth of the search.
    return not text.isprintable() and _CONTROL.search(text) is not None
