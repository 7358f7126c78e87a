"""The layout: what parses as a record, and what is said of anything else."""

from __future__ import annotations

import pytest

from motelog.core.records.append import QueueTail
from motelog.core.records.layout import Record, ScanStop, names_itself, parse, parse_in_log
from tests.support.stores import BORN_HOST, STORE_HOST, encoded, message


def one(base: int = 0, *, topic: bytes = b"T") -> bytearray:
    return bytearray(encoded(message(QueueTail(topic, 3, 7), properties=b"a\x01b\x02"), base=base))


def test_a_record_is_taken_apart() -> None:
    data = one(500)
    record = parse(memoryview(data), 0, len(data))
    assert isinstance(record, Record)
    assert record.is_intact
    assert record._replace(crc=0) == Record(
        len(data), 0, b"T", 3, 7, 500, 0, 0, 1_000, BORN_HOST, 2_000, STORE_HOST, 0, 0,
        b"a\x01b\x02", b"body",
    )  # fmt: skip
    data[88] ^= 1
    changed = parse(memoryview(data), 0, len(data))
    assert isinstance(changed, Record)
    assert not changed.is_intact


@pytest.mark.parametrize(
    ("at", "value", "stop"),
    [
        (0, b"\x00\x00\x00\x5b", ScanStop.BAD_SIZE),
        (0, b"\x00\x00\x01\x00", ScanStop.BAD_SIZE),
        (4, b"\x00", ScanStop.BAD_MAGIC),
        (12, b"\xff", ScanStop.BAD_LAYOUT),
        (20, b"\xff", ScanStop.BAD_LAYOUT),
        (39, b"\x30", ScanStop.BAD_LAYOUT),
        (84, b"\x80", ScanStop.BAD_LAYOUT),
        (87, b"\x05", ScanStop.BAD_LAYOUT),
        (92, b"\x00", ScanStop.BAD_LAYOUT),
        (92, b"\x80", ScanStop.BAD_LAYOUT),
        (94, b"\x80", ScanStop.BAD_LAYOUT),
    ],
)
def test_what_is_wrong_with_a_record_is_said(at: int, value: bytes, stop: ScanStop) -> None:
    data = one()
    data[at : at + len(value)] = value
    assert parse(memoryview(data), 0, len(data)) is stop


def test_a_record_that_is_cut_anywhere_is_none() -> None:
    data = one(topic=b"t" * 200)
    for end in range(len(data)):
        assert parse(memoryview(data), 0, end) is ScanStop.BAD_SIZE


def test_a_log_holds_records_of_their_own_place_and_one_blank_at_the_end() -> None:
    view = memoryview(one(500) + bytes.fromhex("0000000c cbd43194 00000000"))
    end = len(view)
    size = end - 12
    assert isinstance(parse_in_log(view, 0, end, 500), Record)
    assert parse_in_log(view, 0, end, 499) is ScanStop.BAD_OFFSET
    assert parse_in_log(view, size, end, 500) is ScanStop.BLANK
    assert parse_in_log(view, size, end - 1, 500) is ScanStop.BAD_SIZE
    assert parse_in_log(view, size, size + 7, 500) is ScanStop.BAD_SIZE
    assert parse_in_log(memoryview(bytes(8)), 0, 8, 0) is ScanStop.EMPTY


def test_a_record_names_itself_by_size_and_place() -> None:
    view = memoryview(one(500))
    assert names_itself(view, 0, len(view), 500)
    assert not names_itself(view, 0, len(view) - 1, 500)
    assert not names_itself(view, 0, len(view), 501)
    assert not names_itself(memoryview(bytes(92)), 0, 0, 0)
