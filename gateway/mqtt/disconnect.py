"""DISCONNECT, and the packets without a body.

Owns: their encoding. Must not touch: when to send one.
Spec: MQTT 5.0 sections 3.12 to 3.14.

    DISCONNECT:  reason code u8 (may be omitted if 0) | properties (may be omitted if empty)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from motelog.gateway.mqtt.errors import ProtocolViolationError
from motelog.gateway.mqtt.fields import FieldReader
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Disconnect,
    PacketType,
    PropertyId,
    PropertyValue,
    ReasonCode,
)
from motelog.gateway.mqtt.packing import check_flags, packet
from motelog.gateway.mqtt.properties import length_and_properties, read_properties

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"

# Table 3-13: the reason codes that a client may send, and those that a server may send.
_FROM_CLIENT: Final = frozenset(
    {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)
_FROM_SERVER: Final = frozenset(
    {0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)} | (_FROM_CLIENT - {0x04})
)


def decode_disconnect(
    version: int, first_byte: int, body: bytes, *, from_server: bool = False
) -> Disconnect:
    """Return the DISCONNECT in a packet body.

    Raises MalformedPacketError or ProtocolViolationError.
    """
    check_flags(version, first_byte, 0)  # [MQTT-3.14.1-1]
    reader = FieldReader(body)
    if version != 5:
        reader.expect_end()
        return Disconnect()
    reason_code = reader.u8() if len(reader) else ReasonCode.NORMAL_DISCONNECTION.value
    if reason_code not in (_FROM_SERVER if from_server else _FROM_CLIENT):  # [MQTT-3.14.2-1]
        raise ProtocolViolationError(f"reason code 0x{reason_code:02x} in a DISCONNECT")
    properties = NO_PROPERTIES
    if len(reader):
        properties = read_properties(reader, PacketType.DISCONNECT, from_server=from_server)
    reader.expect_end()
    if from_server and properties.session_expiry_interval_s is not None:  # [MQTT-3.14.2-2]
        raise ProtocolViolationError("a server's DISCONNECT has a session expiry interval")
    return Disconnect(reason_code, properties)


def encode_disconnect(
    version: int,
    reason_code: int = ReasonCode.NORMAL_DISCONNECTION,
    properties: Mapping[PropertyId, PropertyValue] | None = None,
) -> bytes:
    """Return the DISCONNECT packet; before MQTT 5 it is empty and only clients may send it."""
    if version != 5 or (reason_code == 0 and not properties):
        return packet(PacketType.DISCONNECT, b"")
    body = bytes((reason_code,))
    if properties:
        body += length_and_properties(properties)
    return packet(PacketType.DISCONNECT, body)
