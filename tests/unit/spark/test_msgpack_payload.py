"""What a payload in MessagePack becomes, as real encoders write it, and a reason for each that is
malformed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from tests.support.msgpack_payloads import MSGPACK_FIELDS
from tests.support.payloads import rows_of

EMPTY = {field.name: None for field in MSGPACK_FIELDS}
GOOD = {"_malformed": None, "_payload": None}
TIME = dt.datetime(2026, 11, 21, 3, 0, 0, 250_000, tzinfo=dt.UTC)
READING: dict[str, Any] = {
    "s": "a\u00e9\U0001f600",
    "b": True,
    "i8": -128,
    "i16": 32767,
    "i32": -1,
    "i64": -(1 << 63),
    "f": 0.5,
    "d": -0.1,
    "m": Decimal("12.5"),
    "w": 18446744073709551615,
    "t": TIME,
    "day": dt.date(2026, 11, 21),
    "pos": {"lat": 1, "\u00e9": ""},
    "list": [1, None, 70000],
    "deep": [{"x": ["p", None], "y": 1}, None, {}],
    "raw": b"\xff\x00",
}
ROW = READING | {
    "m": Decimal("12.500"),
    "w": Decimal("18446744073709551615"),
    "pos": {"lat": 1.0, "\u00e9": ""},
    "deep": [{"x": ["p", None], "y": 1}, None, {"x": None, "y": None}],
}


def rows(payloads: list[bytes | None]) -> list[dict[str, Any]]:
    return rows_of(payloads, MSGPACK_FIELDS, "msgpack")


def test_each_type_takes_its_value_as_msgspec_writes_it() -> None:
    others = {"of no field": [{"s": 1e300, "x": b"\xff" * 300}], 17: None, "long": "x" * 70000}
    assert rows([msgspec.msgpack.encode(READING | others)]) == [ROW | GOOD]


def test_each_type_takes_its_value_as_msgpack_writes_it() -> None:
    msgpack = pytest.importorskip("msgpack", reason="needs msgpack, which [loadtest] brings")
    reading = READING | {"m": "12.5", "day": "2026-11-21"}
    assert rows([msgpack.packb(reading, datetime=True)]) == [ROW | GOOD]
    old = msgpack.packb({"raw": b"\xff\x00", "s": "a"}, use_bin_type=False)
    assert rows([old]) == [EMPTY | GOOD | {"raw": b"\xff\x00", "s": "a"}]


def test_times_are_extensions_text_or_milliseconds() -> None:
    times = [
        (b"\xd6\xff\x00\x00\x00\x01", dt.timedelta(seconds=1)),
        (
            b"\xd7\xff" + (1003 << 34 | 1).to_bytes(8, "big"),
            dt.timedelta(seconds=1, microseconds=1),
        ),
        (b"\xc7\x0c\xff\x3b\x9a\xc9\xff" + b"\xff" * 8, dt.timedelta(microseconds=-1)),
        (b"\xb41970-01-01T00:00:01Z", dt.timedelta(seconds=1)),
        (b"\xcd\x05\xdc", dt.timedelta(milliseconds=1500)),
        (b"\xff", dt.timedelta(milliseconds=-1)),
    ]
    found = rows([b"\x81\xa1t" + value for value, _ in times])
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert [row["t"] for row in found] == [epoch + time for _, time in times]


def test_infinities_and_what_is_no_number_are_numbers_here() -> None:
    found = rows([msgspec.msgpack.encode({"d": value, "f": value}) for value in (1e999, -1e999)])
    assert [(row["d"], row["f"]) for row in found] == [(1e999, 1e999), (-1e999, -1e999)]
    (row,) = rows([b"\x81\xa1d\xcb\x7f\xf8" + bytes(6)])
    assert row["d"] != row["d"]


def test_what_is_missing_or_nil_is_null() -> None:
    payloads: list[bytes | None] = [b"\x80", b"\x82\xa3pos\xc0\xa4list\xc0", b"\x81\xa3pos\x80"]
    found = rows(payloads)
    assert found[:2] == [EMPTY | GOOD] * 2
    assert found[2] == EMPTY | GOOD | {"pos": {"lat": None, "\u00e9": None}}


MALFORMED = [
    (b"", "not MessagePack: it ends too early, after 0 bytes"),
    (b"\x81\xa1s", "not MessagePack: it ends too early, after 3 bytes"),
    (b"\x81\xa1s\xd9\x05abc", "not MessagePack: it ends too early, after 8 bytes"),
    (b"\x80\x80", "not MessagePack at byte 1"),
    (b"\x81\xa1s\xc1", "not MessagePack at byte 3"),
    (b'{"s": 1}', "expected a map at byte 0"),
    (b"\xc0", "expected a map at byte 0"),
    (b"\x91\x80", "expected a map at byte 0"),
    (b"\x81\xa1s\xa1\xff", "text is not UTF-8 at byte 3"),
    (b"\x81\xa1s\xc4\x01a", "s: expected a string at byte 3"),
    (b"\x81\xa3raw\x01", "raw: expected bytes at byte 5"),
    (b"\x81\xa1d\xa11", "d: expected a number at byte 3"),
    (b"\x81\xa3i32\xcb" + bytes(8), "i32: expected a whole number at byte 5"),
    (b"\x81\xa2i8\xcc\x80", "i8: does not fit byte at byte 4"),
    (b"\x81\xa3i64\xcf\x80" + bytes(7), "i64: does not fit long at byte 5"),
    (b"\x81\xa1f\xcb\x47\xf0" + bytes(6), "f: does not fit float at byte 3"),
    (b"\x81\xa1m\xcb" + bytes(8), "m: expected a whole number, or a number as text at byte 3"),
    (b"\x81\xa1m\xa61.2345", "m: does not fit decimal(12,3) at byte 3"),
    (b"\x81\xa1b\x01", "b: expected true or false at byte 3"),
    (b"\x82\xa1s\xa0\xa1s\xa0", "s: occurs twice, again at byte 4"),
    (b"\x81\xa3pos\x81\xa3lat\xa1x", "pos.lat: expected a number at byte 10"),
    (
        b"\x81\xa1t\xd6\x05\x00\x00\x00\x01",
        "t: expected a timestamp, a time with its offset such as 2026-11-21T03:00:00Z, or"
        " milliseconds at byte 3",
    ),
    (b"\x81\xa1t\xc7\x0c\xff\0\0\0\0\x7f" + bytes(7), "t: does not fit timestamp at byte 3"),
    (b"\x81\xa1u" + b"\x91" * 70, "nested deeper than 64 at byte 66"),
    (b"\x81" + b"\x91" * 70, "nested deeper than 64 at byte 64"),
    (None, "the message has no payload that can be read"),
]


def test_a_malformed_payload_keeps_its_row_and_says_why() -> None:
    good = msgspec.msgpack.encode({"i32": 7, "list": [7], "deep": [{"x": ["7"]}], "s": "seven"})
    wrong = msgspec.msgpack.encode({"deep": [{"x": ["lost"]}], "list": [1], "s": "x", "i32": "?"})
    payloads = [good, wrong, *(payload for payload, _ in MALFORMED), good]
    found = rows(payloads)
    assert len(found) == len(payloads)
    for row, (payload, reason) in zip(found[2:-1], MALFORMED, strict=True):
        assert row == EMPTY | {"_malformed": reason, "_payload": payload}
    assert found[1] == EMPTY | {
        "_malformed": f"i32: expected a whole number at byte {wrong.index(b'?') - 1}",
        "_payload": wrong,
    }
    for row in (found[0], found[-1]):
        assert (row["i32"], row["list"], row["s"]) == (7, [7], "seven")


def test_a_claimed_length_is_never_believed() -> None:
    payloads = [
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa4list\xdd\xff\xff\xff\xff\x01",
        b"\x81\xa1s\xdb\xff\xff\xff\xff",
        b"\x81\xa1u\xc9\xff\xff\xff\xff\x01",
    ]
    assert all("ends too early" in row["_malformed"] for row in rows(list(payloads)))


def test_an_array_of_empty_maps_cannot_fill_memory() -> None:
    (row,) = rows([b"\x81\xa4deep\xdd\x00\x10\x00\x00" + b"\x80" * (1 << 20)])
    assert row["_malformed"].startswith("too many values, the rest from byte ")
