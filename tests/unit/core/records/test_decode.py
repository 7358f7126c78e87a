"""Decode: the fields of records, and bodies as their producers sent them."""

from __future__ import annotations

import zlib

import pytest

from motelog.core.errors import RecordError
from motelog.core.records.append import QueueTail
from motelog.core.records.decode import (
    decode,
    decode_brief,
    decode_messages,
    decode_values,
    inflate,
)
from tests.support.stores import encoded, message


def test_decode_refuses_bytes_that_end_inside_a_record() -> None:
    tail = QueueTail(b"T", 0, 0)
    data = encoded(message(tail), message(tail))
    with pytest.raises(RecordError) as caught:
        decode(data[:-1])
    assert caught.value.offset_bytes == 96
    assert len(decode(data[:-1], 1)) == 1


def test_decode_checks_the_crc_when_asked() -> None:
    data = bytearray(encoded(message(QueueTail(b"T", 0, 0), b"body")))
    data[90] ^= 1
    assert decode(data)[0][13] != b"body"
    with pytest.raises(RecordError, match="CRC"):
        decode(data, verify=True)


def test_brief_decoding_finds_the_last_value_that_is_not_empty() -> None:
    tail = QueueTail(b"T", 0, 4)
    text = b"a\x01first\x02ab\x01no\x02a\x01second\x02a\x01\x02"
    data = encoded(message(tail, b"B", properties=text), message(tail, properties=b"a\x01open"))
    assert decode_brief(data, b"a") == [
        (4, b"second", b"T", text, b"B", 0, 2_000, len(data) - 102),
        (5, b"open", b"T", b"a\x01open", b"body", 0, 2_000, 102),
    ]
    assert [brief[1] for brief in decode_brief(data, b"b")] == [None, None]


def test_values_are_those_of_the_named_properties() -> None:
    tail = QueueTail(b"T", 0, 4)
    text = b"a\x01first\x02ab\x01no\x02a\x01second\x02a\x01\x02\xc3\xa4\x01\xff\x02c\x01\x02"
    data = encoded(message(tail, b"B", properties=text), message(tail, properties=b"b\x01open"))
    assert decode_values(data, ("a", "b", "c", "\u00e4", "a\x01first")) == [
        (4, len(data) - 102, {"a": "second", "\u00e4": "\ufffd"}),
        (5, 102, {"b": "open"}),
    ]
    assert [values for _, _, values in decode_values(data, ())] == [{}, {}]
    with pytest.raises(RecordError):
        decode_values(data[:-1], ("a",))


def test_compressed_bodies_are_inflated_up_to_a_limit() -> None:
    tail = QueueTail(b"T", 0, 0)
    data = encoded(message(tail, zlib.compress(b"z" * 1000), sys_flag=0x1))
    assert decode_messages(data)[0].body == b"z" * 1000
    assert decode_messages(data, body_bytes_max=1000)[0].body == b"z" * 1000
    (large,) = decode_messages(data, body_bytes_max=999)
    assert (large.body, large.is_compressed) == (zlib.compress(b"z" * 1000), True)


def test_a_body_that_does_not_inflate_comes_as_it_is_stored_and_the_next_ones_too() -> None:
    tail = QueueTail(b"T", 0, 0)
    packed = zlib.compress(b"fine")
    data = encoded(
        message(tail, b"no zlib", sys_flag=0x1),
        message(tail, packed[:-1], sys_flag=0x1),
        message(tail, b"\x04\x22\x4d\x18lz4", sys_flag=0x1 | 0x100),
        message(tail, b"\x28\xb5\x2f\xfdzstd", sys_flag=0x1 | 0x200),
        message(tail, b"", sys_flag=0x1),
        message(tail, packed, sys_flag=0x1 | 0x300),
        message(tail, b"plain"),
    )
    messages = decode_messages(data)
    assert [m.body for m in messages[:3]] == [b"no zlib", packed[:-1], b"\x04\x22\x4d\x18lz4"]
    assert [m.is_compressed for m in messages] == [True, True, True, True, True, False, False]
    assert [m.body for m in messages[5:]] == [b"fine", b"plain"]
    assert [m.sys_flag for m in messages[4:]] == [0x1, 0x300, 0x0]


def test_inflating_stops_at_the_limit() -> None:
    packed = zlib.compress(bytes(100_000_000))
    assert inflate(packed, 1000) is None
    assert inflate(zlib.compress(b"x" * 1000), 1000) == b"x" * 1000
    assert inflate(zlib.compress(b""), 1) == b""
    assert inflate(b"", 1) is None
