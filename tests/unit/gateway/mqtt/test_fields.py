"""Fields of a packet body: bounds, UTF-8, and where a fault was found."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.errors import MalformedPacketError
from motelog.gateway.mqtt.fields import FieldReader, encode_binary, encode_string


def test_fields_are_read_in_order() -> None:
    reader = FieldReader(bytes.fromhex("01 0203 04050607 8001 0001 61 0002 00ff 00"))
    assert (reader.u8(), reader.u16(), reader.u32(), reader.varint()) == (1, 0x203, 0x4050607, 128)
    assert (reader.string(), reader.binary(), reader.rest()) == ("a", b"\x00\xff", b"\x00")
    reader.expect_end()


@pytest.mark.parametrize(
    ("text", "offset_bytes"),
    [("ff", 2), ("61 c0af", 3), ("61 eda080", 3), ("61 f4908080", 3), ("61 00", 3), ("61 e282", 3)],
    ids=["not UTF-8", "overlong", "surrogate", "too high", "U+0000", "cut"],
)
def test_string_that_is_not_legal_text_is_malformed(text: str, offset_bytes: int) -> None:
    encoded = encode_binary(bytes.fromhex(text))
    with pytest.raises(MalformedPacketError) as caught:
        FieldReader(encoded).string()
    assert caught.value.reason_code == 0x81
    assert caught.value.offset_bytes == offset_bytes


def test_claimed_length_is_not_believed() -> None:
    reader = FieldReader(b"\xff\xff" + bytes(10))
    with pytest.raises(MalformedPacketError, match="65535 bytes expected, 10 left"):
        reader.binary()


def test_part_ends_where_it_was_said_to() -> None:
    reader = FieldReader(b"\x01\x02\x03\x04")
    part = reader.part(2)
    assert part.u8() == 1
    with pytest.raises(MalformedPacketError) as caught:
        part.u16()
    assert caught.value.offset_bytes == 1
    assert reader.rest() == b"\x03\x04"
    with pytest.raises(MalformedPacketError):
        reader.part(1)


def test_text_that_cannot_be_written_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encode_string("x" * 65536)
    with pytest.raises(ValueError, match=r"U\+0000"):
        encode_string("a\0")
