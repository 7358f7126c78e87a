"""PUBACK, PUBREC, PUBREL and PUBCOMP, which have the same form.

Owns: their encoding. Must not touch: inflight windows. The frames kernel splits those without
properties itself; this module decodes the others.
Spec: MQTT 5.0 sections 3.4 to 3.7.

    packet id u16 | v5: reason code u8 (omitted if 0) | properties (omitted if empty)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from motelog.gateway.mqtt.errors import MalformedPacketError, ProtocolViolationError
from motelog.gateway.mqtt.fields import FieldReader
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Ack,
    PacketType,
    PropertyId,
    PropertyValue,
    ReasonCode,
)
from motelog.gateway.mqtt.packing import check_flags, packet
from motelog.gateway.mqtt.properties import length_and_properties, read_properties

PACKET_ID_AT: Final = 2  # position of the packet identifier in an acknowledgement

_RECEIVED: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED: Final = frozenset({0x00, 0x92})
REASON_CODES: Final = {
    PacketType.PUBACK: _RECEIVED,  # [MQTT-3.4.2-1]
    PacketType.PUBREC: _RECEIVED,  # [MQTT-3.5.2-1]
    PacketType.PUBREL: _RELEASED,  # [MQTT-3.6.2-1]
    PacketType.PUBCOMP: _RELEASED,  # [MQTT-3.7.2-1]
}


def decode_ack(version: int, first_byte: int, body: bytes) -> Ack:
    """Return the acknowledgement in a packet body.

    Raises MalformedPacketError or ProtocolViolationError.
    """
    packet_type = PacketType(first_byte >> 4)
    check_flags(version, first_byte, 2 if packet_type == PacketType.PUBREL else 0)
    if len(body) < 2 or (version != 5 and len(body) > 2):
        raise MalformedPacketError(f"acknowledgement of {len(body)} bytes")
    reader = FieldReader(body)
    packet_id = reader.u16()
    if packet_id == 0:  # [MQTT-2.2.1-3]
        raise ProtocolViolationError("packet identifier is 0")
    reason_code = reader.u8() if len(reader) else ReasonCode.SUCCESS.value
    if reason_code not in REASON_CODES[packet_type]:
        raise ProtocolViolationError(f"reason code 0x{reason_code:02x} in an acknowledgement")
    properties = NO_PROPERTIES
    if len(reader):
        properties = read_properties(reader, packet_type)
    reader.expect_end()
    return Ack(packet_id, reason_code, properties)


def encode_ack(
    packet_type: PacketType,
    version: int,
    packet_id: int,
    reason_code: int = ReasonCode.SUCCESS,
    properties: Mapping[PropertyId, PropertyValue] | None = None,
) -> bytes:
    """Return the acknowledgement packet, its identifier at PACKET_ID_AT.

    Before MQTT 5 all are positive: ValueError for a reason code of 0x80 and above.
    """
    body = packet_id.to_bytes(2, "big")
    if version == 5:
        if reason_code or properties:
            body += bytes((reason_code,))
        if properties:
            body += length_and_properties(properties)
    elif reason_code >= 0x80:
        raise ValueError(f"MQTT 3 has no acknowledgement with reason code 0x{reason_code:02x}")
    return packet(packet_type, body, 2 if packet_type == PacketType.PUBREL else 0)
