"""Scan: which records of a log are trusted, and the units that they make."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from motelog.core.message import tags_code
from motelog.core.records import _scan, _scan_py
from motelog.core.records.append import QueueTail, encode_blank
from motelog.core.records.layout import MAGIC_BLANK, ScanStop
from motelog.core.records.scan import collect, find_record, scan, zeros_from
from tests.support.stores import encoded, message, unit


def test_scan_tells_blank_empty_and_full_apart() -> None:
    tail = QueueTail(b"T", 0, 0)
    data = bytearray(encoded(message(tail), message(tail)))
    assert scan(data, 0, 192, 0, 9)[1:] == (192, ScanStop.END)
    assert scan(data, 0, 192, 0, 1)[1:] == (96, ScanStop.COUNT)
    data += bytes(32)
    assert scan(data, 0, 224, 0, 9)[1:] == (192, ScanStop.EMPTY)
    encode_blank(data, 192, 224)
    assert data[192:200] == struct.pack(">II", 32, MAGIC_BLANK)
    assert scan(data, 0, 224, 0, 9)[1:] == (192, ScanStop.BLANK)
    assert scan(data, 0, 223, 0, 9)[1:] == (192, ScanStop.BAD_SIZE)


@pytest.mark.parametrize(
    ("at", "value", "stop"),
    [
        (0, b"\x00\x00\x00\x5a", ScanStop.BAD_SIZE),
        (0, b"\x7f\xff\xff\xff", ScanStop.BAD_SIZE),
        (0, b"\xff\xff\xff\xff", ScanStop.BAD_SIZE),
        (4, b"\x01", ScanStop.BAD_MAGIC),
        (12, b"\x80", ScanStop.BAD_LAYOUT),
        (20, b"\x80", ScanStop.BAD_LAYOUT),
        (34, b"\x01", ScanStop.BAD_OFFSET),
        (84, b"\xff", ScanStop.BAD_LAYOUT),
        (84, b"\x7f", ScanStop.BAD_LAYOUT),
        (88, b"B", ScanStop.BAD_CRC),
        (92, b"\x00", ScanStop.BAD_LAYOUT),
        (92, b"\x80", ScanStop.BAD_LAYOUT),
        (94, b"\x80", ScanStop.BAD_LAYOUT),
    ],
)
def test_scan_says_what_is_wrong_with_a_record(at: int, value: bytes, stop: ScanStop) -> None:
    tail = QueueTail(b"T", 0, 0)
    data = bytearray(encoded(message(tail), message(tail)))
    data[96 + at : 96 + at + len(value)] = value
    found, position, why = scan(data, 0, len(data), 0, 9)
    assert (len(found), position, why) == (1, 96, stop)


def test_scan_computes_the_tag_hash_as_java_does() -> None:
    tail = QueueTail(b"T", 0, 0)
    for tag in ("TagA", "x" * 100, "tag-\u00e9-\U0001f600"):
        data = encoded(message(tail, properties=f"TAGS\x01{tag}\x02".encode()))
        assert scan(data, 0, len(data), 0, 1)[0][0][5] == tags_code(tag)


def test_collect_hands_over_units_in_runs_of_consecutive_offsets() -> None:
    tails = [QueueTail(b"A", 0, 0), QueueTail(b"B", 1, 10), QueueTail(b"A", 0, 5)]
    data = encoded(*(message(tails[i]) for i in (0, 1, 0, 2, 1)), base=0)
    runs, position, stop, count, last_ms = collect(data, 0, len(data), 0, 99, (b"B",), due)
    assert (position, stop, count, last_ms) == (len(data), ScanStop.END, 5, 2_000)
    assert [(*run[:3], len(run.units)) for run in runs] == [
        (b"A", 0, 0, 40),
        (b"B", 1, 10, 40),
        (b"A", 0, 5, 20),
    ]
    assert runs[1].units == unit(96, 96, 2_077) + unit(384, 96, 2_077)


def test_collect_finds_each_of_many_queues_again() -> None:
    # Names that begin and end alike, more of them than the kernel's first table has room for.
    tails = [QueueTail(b"telemetry-%03d-of-the-plant" % (i // 2), i % 2, i) for i in range(600)]
    data = encoded(*(message(tail) for _ in range(3) for tail in tails), base=0)
    for kernel in (_scan, _scan_py):
        runs, _, stop, count, _ = kernel.collect(data, 0, len(data), 0, 9_999, (), due)
        assert (stop, count) == (ScanStop.END, 1_800)
        assert [run[:3] for run in runs] == [(t.topic, t.queue_id, i) for i, t in enumerate(tails)]
        assert [run.units for run in runs] == [t.units(i, 3) for i, t in enumerate(tails)]


@pytest.mark.parametrize("kernel", [_scan, _scan_py])
def test_collect_refuses_a_topic_that_is_not_bytes(kernel: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        kernel.collect(b"", 0, 0, 0, 1, ("B",), due)


def due(properties: bytes, store_timestamp_ms: int) -> int:
    return store_timestamp_ms + 77


def test_find_record_takes_only_one_that_names_its_own_place() -> None:
    tail = QueueTail(b"T", 0, 0)
    stale = encoded(message(tail), base=0)
    data = b"\xda" * 50 + stale + encoded(message(tail), base=1000 + 50 + len(stale))
    assert find_record(data, 0, len(data), len(data), 1000) == 50 + len(stale)
    assert find_record(data, 0, 50 + len(stale), len(data), 1000) == -1
    assert find_record(data, 0, len(data) - 1, len(data) - 1, 1000) == -1


def test_zeros_from_finds_the_end_of_what_is_not_zero() -> None:
    data = b"\x01" + bytes(20) + b"\x02" + bytes(17)
    assert zeros_from(data, 0, len(data)) == 22
    assert zeros_from(data, 0, 21) == 1
    assert zeros_from(data, 1, 21) == 1
    assert zeros_from(data, 5, 5) == 5
