"""The fixed header before a packet body, and the identifier in it.

Owns: first byte and remaining length, filling in an identifier. Must not touch: bodies.
Spec: MQTT 5.0 section 2.1.

    packet:  type << 4 | flags | remaining length varint | body
"""

from __future__ import annotations

from motelog.gateway.mqtt.errors import MalformedPacketError
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.mqtt.varint import encode_varint


def packet(packet_type: PacketType, body: bytes, flags: int = 0) -> bytes:
    """Return the whole packet; ValueError if the body is longer than MQTT allows."""
    first_byte = packet_type << 4 | flags
    if len(body) < 128:  # most bodies: their length takes one byte
        return bytes((first_byte, len(body))) + body
    return bytes((first_byte,)) + encode_varint(len(body)) + body


def check_flags(version: int, first_byte: int, expected: int) -> None:
    """Raise MalformedPacketError unless the reserved bits are as ``expected`` [MQTT-2.1.3-1].

    Only MQTT 3.1 lets a client set DUP when it repeats a PUBREL, SUBSCRIBE or UNSUBSCRIBE.
    """
    flags = first_byte & 0x0F
    if flags != expected and not (version == 3 and expected == 2 and flags == 0x0A):
        raise MalformedPacketError(f"reserved flags are {flags:04b}, must be {expected:04b}")


def numbered(packet: bytes, number_at: int, packet_id: int) -> bytes:
    """Return a packet with its packet identifier, which belongs at byte ``number_at``."""
    return packet[:number_at] + packet_id.to_bytes(2, "big") + packet[number_at + 2 :]
