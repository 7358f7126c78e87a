"""Variable byte integers: the table of section 1.5.5 and what is refused."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.errors import MalformedPacketError
from motelog.gateway.mqtt.varint import decode_varint, encode_varint

TABLE = {
    0: "00",
    127: "7f",
    128: "8001",
    16_383: "ff7f",
    16_384: "808001",
    2_097_151: "ffff7f",
    2_097_152: "80808001",
    268_435_455: "ffffff7f",
}


@pytest.mark.parametrize(("value", "encoded"), TABLE.items())
def test_limits_of_the_standards_table(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0, len(encoded) // 2) == (
        value,
        len(encoded) // 2,
    )


@pytest.mark.parametrize("encoded", ["", "80", "ffffff", "8000", "80808000", "8080808001"])
def test_cut_padded_or_long_one_is_malformed(encoded: str) -> None:
    data = b"\x07" + bytes.fromhex(encoded)
    with pytest.raises(MalformedPacketError) as caught:
        decode_varint(data, 1, len(data))
    assert caught.value.offset_bytes == 1


def test_end_is_respected() -> None:
    with pytest.raises(MalformedPacketError):
        decode_varint(b"\x80\x01", 0, 1)


@pytest.mark.parametrize("value", [-1, 268_435_456])
def test_value_outside_the_range_is_a_programming_error(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_varint(value)
