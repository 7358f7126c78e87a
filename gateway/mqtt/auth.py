"""AUTH: the messages of an enhanced authentication.

Owns: its encoding. Must not touch: the meaning of the messages, when to send one.
Spec: MQTT 5.0 section 3.15.

    reason code u8 | properties; both may be omitted together: success without properties
"""

from __future__ import annotations

from typing import Final, NamedTuple

from motelog.gateway.mqtt.errors import ProtocolViolationError
from motelog.gateway.mqtt.fields import FieldReader
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    PacketType,
    PropertyId,
    PropertyValue,
    ReasonCode,
)
from motelog.gateway.mqtt.packing import check_flags, packet
from motelog.gateway.mqtt.properties import length_and_properties, read_properties

_CODES: Final = (
    ReasonCode.SUCCESS,
    ReasonCode.CONTINUE_AUTHENTICATION,
    ReasonCode.RE_AUTHENTICATE,
)


class Auth(NamedTuple):
    """``method`` is None if the packet names none."""

    reason_code: int
    method: str | None
    data: bytes


def decode_auth(version: int, first_byte: int, body: bytes) -> Auth:
    """Return the AUTH in a packet body; MalformedPacketError, ProtocolViolationError."""
    check_flags(version, first_byte, 0)  # [MQTT-3.15.1-1]
    reader = FieldReader(body)
    reason_code = reader.u8() if len(reader) else ReasonCode.SUCCESS.value
    if reason_code not in _CODES:  # [MQTT-3.15.2-1]
        raise ProtocolViolationError(f"reason code 0x{reason_code:02x} in an AUTH")
    properties = read_properties(reader, PacketType.AUTH) if len(reader) else NO_PROPERTIES
    reader.expect_end()
    return Auth(
        reason_code, properties.authentication_method, properties.authentication_data or b""
    )


def encode_auth(auth: Auth) -> bytes:
    """Return the AUTH packet, which names its method. [MQTT-4.12.0-5]"""
    assert auth.method is not None
    properties: dict[PropertyId, PropertyValue] = {
        PropertyId.AUTHENTICATION_METHOD: auth.method,
        PropertyId.AUTHENTICATION_DATA: auth.data,
    }
    return packet(PacketType.AUTH, bytes((auth.reason_code,)) + length_and_properties(properties))
