"""Bounded reading and writing of the field types of all MQTT packets.

Owns: integers, strings, binary data and pairs. Must not touch: the meaning of fields.
Invariants: no read goes past the body, and no length is used before its bytes are available.
Spec: MQTT 5.0 section 1.5.

    string, binary data:  length u16 | bytes
"""

from __future__ import annotations

from typing import Final

from motelog.gateway.mqtt.errors import MalformedPacketError
from motelog.gateway.mqtt.varint import decode_varint

STRING_BYTES_MAX: Final = 65535


class FieldReader:
    """Reads a packet body from front to back; every fault is a MalformedPacketError."""

    __slots__ = ("_body", "_end", "position")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._end = len(body)
        self.position = 0

    def __len__(self) -> int:
        """The remaining bytes."""
        return self._end - self.position

    def part(self, count: int) -> FieldReader:
        """Return a reader of the next ``count`` bytes, which this one skips."""
        part = FieldReader(self._body)
        part.position = self.position
        self.bytes_of(count)
        part._end = self.position
        return part

    def bytes_of(self, count: int) -> bytes:
        begin = self.position
        if count > self._end - begin:
            raise MalformedPacketError(
                f"{count} bytes expected, {self._end - begin} left", offset_bytes=begin
            )
        self.position = begin + count
        return self._body[begin : begin + count]

    def u8(self) -> int:
        begin = self.position
        if begin >= self._end:
            raise MalformedPacketError("a byte expected, none left", offset_bytes=begin)
        self.position = begin + 1
        return self._body[begin]

    def u16(self) -> int:
        begin = self.position
        if begin + 2 > self._end:
            self.bytes_of(2)  # raises what is missing
        self.position = begin + 2
        return self._body[begin] << 8 | self._body[begin + 1]

    def u32(self) -> int:
        return int.from_bytes(self.bytes_of(4), "big")

    def varint(self) -> int:
        value, self.position = decode_varint(self._body, self.position, self._end)
        return value

    def binary(self) -> bytes:
        return self.bytes_of(self.u16())

    def string(self) -> str:
        body, begin = self._body, self.position
        # Without calls for the parts: each CONNECT and each filter comes here.
        is_whole = self._end - begin >= 2
        stop = begin + 2 + (body[begin] << 8 | body[begin + 1]) if is_whole else 0
        if not is_whole or stop > self._end:
            self.binary()  # raises what is missing
        self.position = stop
        encoded = body[begin + 2 : stop]
        try:
            # Python's strict decoder refuses surrogates and overlong forms and keeps U+FEFF.
            text = encoded.decode()  # [MQTT-1.5.4-1] [MQTT-1.5.4-3]
        except UnicodeDecodeError as exc:
            raise MalformedPacketError(
                "string is not UTF-8", offset_bytes=begin + 2 + exc.start
            ) from exc
        if "\0" in text:  # [MQTT-1.5.4-2]
            raise MalformedPacketError(
                "string contains U+0000", offset_bytes=begin + 2 + encoded.index(0)
            )
        return text

    def rest(self) -> bytes:
        return self.bytes_of(len(self))

    def expect_end(self) -> None:
        if len(self):
            raise MalformedPacketError(
                f"{len(self)} bytes after the packet's end", offset_bytes=self.position
            )


def encode_binary(data: bytes) -> bytes:
    """Return ``data`` after its length; ValueError above 65,535 bytes."""
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes do not fit into a string or binary data")
    return len(data).to_bytes(2, "big") + data


def encode_string(text: str) -> bytes:
    """Return the text as UTF-8 after its length; ValueError if it has U+0000 or is too long."""
    if "\0" in text:
        raise ValueError("a string must not contain U+0000")
    return encode_binary(text.encode())
