"""Variable byte integers: one to four bytes, seven bits each, the least significant group first.

Owns: their codec. Must not touch: anything else. Frames are cut by the reactor and split by the
frames kernel, so only property lengths and subscription identifiers come here. Plain Python is
enough.
Spec: MQTT 5.0 section 1.5.5, MQTT 3.1.1 section 2.2.3.
"""

from __future__ import annotations

from typing import Final

from motelog.gateway.mqtt.errors import MalformedPacketError

VARINT_MAX: Final = 268_435_455


def decode_varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return (value, position after it) from ``data[begin:end]``.

    MalformedPacketError if it is cut, has five bytes or is not the shortest form.
    """
    value = 0
    for i in range(4):
        if begin + i >= end:
            raise MalformedPacketError("variable byte integer is cut", offset_bytes=begin)
        byte = data[begin + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if byte == 0 and i > 0:  # [MQTT-1.5.5-1]
                raise MalformedPacketError("variable byte integer is padded", offset_bytes=begin)
            return value, begin + i + 1
    raise MalformedPacketError("variable byte integer has five bytes", offset_bytes=begin)


def encode_varint(value: int) -> bytes:
    """Return the shortest encoding; ValueError outside 0..268,435,455."""
    if not 0 <= value <= VARINT_MAX:
        raise ValueError(f"{value} does not fit into a variable byte integer")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
