"""Records: the bytes RocketMQ expects, and what is refused."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from motelog.core.errors import RecordError, RecordTooLargeError
from motelog.core.message import encode_host, tags_code
from motelog.core.records import _record, _record_py, record
from motelog.core.records.record import (
    COMPILED,
    FILLER_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    QueueTail,
    ScanStop,
    collect,
    crc32_31,
    decode,
    decode_brief,
    decode_messages,
    decode_values,
    encode_batch,
    encode_blank,
    find_record,
    gather,
    inflate,
    measure,
    scan,
    select_units,
    zeros_from,
)
from tests.support.stores import BORN_HOST, STORE_HOST, message

IPV6_HOST = encode_host("2001:db8::1", 1883)


def encoded(*messages: Any, base: int = 0, store_host: bytes = STORE_HOST) -> bytes:
    target = bytearray(1 << 18)
    index, position = encode_batch(
        target, 0, len(target), base, list(messages), 0, 2_000, store_host, [], None
    )
    assert index == len(messages)
    return bytes(target[:position])


def unit(physical_offset: int, size: int, code: int) -> bytes:
    return struct.pack(">qiq", physical_offset, size, code)


def test_the_suite_runs_against_the_compiled_kernel() -> None:
    assert COMPILED


def test_a_record_has_rocketmqs_bytes() -> None:
    tail = QueueTail(b"T", 3, 7)
    data = encoded((tail, b"hello", b"KEYS\x01k\x02", 0, 1_000, BORN_HOST, 0x1, 9, 2, 5), base=4096)
    crc = zlib.crc32(b"hello") & 0x7FFFFFFF
    expected = (
        struct.pack(">IIIiiqqiq", 91 + 5 + 1 + 7, 0xDAA320A7, crc, 3, 9, 7, 4096, 0x1, 1_000)
        + bytes([127, 0, 0, 1]) + struct.pack(">i", 1883)
        + struct.pack(">q", 2_000)
        + bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
        + struct.pack(">iqi", 2, 5, 5) + b"hello"
        + b"\x01T" + b"\x00\x07KEYS\x01k\x02"
    )  # fmt: skip
    assert data == expected


def test_ipv6_hosts_take_twenty_bytes_and_set_their_bits() -> None:
    tail = QueueTail(b"T", 0, 0)
    data = encoded(message(tail, born_host=IPV6_HOST), store_host=IPV6_HOST)
    (found,) = decode_messages(data)
    assert len(data) == 91 + 24 + 4 + 1
    assert found.sys_flag == 0x30
    assert found.born_host == ("2001:db8::1", 1883)
    assert found.store_host == ("2001:db8::1", 1883)


def test_host_bits_follow_the_hosts_whatever_the_caller_says() -> None:
    data = encoded(message(QueueTail(b"T", 0, 0), sys_flag=0x30 | 0x2))
    assert decode(data)[0][5] == 0x2


def test_a_topic_above_127_bytes_makes_a_record_of_version_2() -> None:
    long, short = QueueTail(b"t" * 128, 0, 0), QueueTail(b"t" * 127, 0, 0)
    data = encoded(message(long), message(short))
    assert [f[0] for f in decode(data)] == [b"t" * 128, b"t" * 127]
    first_bytes = int.from_bytes(data[:4], "big")
    assert int.from_bytes(data[4:8], "big") == MAGIC_V2
    assert int.from_bytes(data[first_bytes + 4 : first_bytes + 8], "big") == MAGIC_V1


def test_queue_offsets_count_per_queue_and_units_name_the_records() -> None:
    one, two = QueueTail(b"A", 0, 0), QueueTail(b"B", 1, 50)
    dirty: list[QueueTail] = []
    placed: list[tuple[int, int]] = []
    target = bytearray(4096)
    messages = [message(one, tags_code=-5), message(two), message(one, b"x" * 10)]
    encode_batch(target, 0, 4096, 1 << 40, messages, 0, 1, STORE_HOST, dirty, placed)
    assert dirty == [one, two]
    assert placed == [(1 << 40, 0), ((1 << 40) + 96, 50), ((1 << 40) + 192, 1)]
    assert one.pending == 2
    assert one.units(0, 9) == unit(1 << 40, 96, -5) + unit((1 << 40) + 192, 102, 0)
    assert (one.next_offset, two.next_offset) == (2, 51)


@pytest.mark.parametrize("kind", [0x4, 0xC])
def test_prepared_and_rolled_back_records_have_no_place_in_the_queue(kind: int) -> None:
    tail = QueueTail(b"T", 0, 9)
    dirty: list[QueueTail] = []
    encode_batch(
        bytearray(999), 0, 999, 0, [message(tail, sys_flag=kind)], 0, 1, STORE_HOST, dirty, None
    )
    assert (dirty, tail.pending, tail.next_offset) == ([], 0, 9)


def test_encoding_stops_where_no_blank_record_would_fit() -> None:
    tail = QueueTail(b"T", 0, 0)
    messages = [message(tail), message(tail)]
    target = bytearray(96 * 2 + 8)
    assert encode_batch(target, 0, 199, 0, messages, 0, 1, STORE_HOST, [], None) == (1, 96)
    assert tail.next_offset == 1
    assert encode_batch(target, 96, 200, 0, messages, 1, 1, STORE_HOST, [], None) == (2, 192)


def test_a_target_that_is_too_short_is_refused() -> None:
    tail = QueueTail(b"T", 0, 0)
    for position, limit in ((-1, 10), (0, 11), (8, 7)):
        with pytest.raises(ValueError, match="outside"):
            encode_batch(
                bytearray(10), position, limit, 0, [message(tail)], 0, 1, STORE_HOST, [], None
            )
    with pytest.raises((TypeError, BufferError)):
        encode_batch(bytes(999), 0, 999, 0, [message(tail)], 0, 1, STORE_HOST, [], None)


def test_a_tail_is_named_once_a_batch_though_its_units_stay() -> None:
    tail, target = QueueTail(b"A", 0, 0), bytearray(4096)
    batch = [message(tail)] * 2
    for _ in range(2):
        dirty: list[QueueTail] = []
        begin = tail.pending * 96
        _, at = encode_batch(target, begin, 4096, 0, batch, 0, 1, STORE_HOST, dirty, None)
        # The batch goes on in another file.
        encode_batch(target, at, 4096, 0, batch, 0, 1, STORE_HOST, dirty, None, begin)
        assert dirty == [tail]
    assert (tail.first_offset, tail.next_offset, tail.pending) == (0, 8, 8)


def test_a_tail_counts_what_is_put_into_it() -> None:
    one, two = QueueTail(b"A", 0, 0), QueueTail(b"B", 0, 0)
    batch = [message(one, b"x"), message(two, b"y" * 50), message(one, b"z")]
    total, _ = measure(batch, 0, 1000)
    _, position = encode_batch(bytearray(4096), 0, 4096, 0, batch, 0, 1, STORE_HOST, [], None, None)
    (count_one, bytes_one), (count_two, bytes_two) = one.take_put(), two.take_put()
    assert (count_one, count_two, bytes_one + bytes_two) == (2, 1, position)
    assert bytes_two == bytes_one // 2 + 49
    one.extend(unit(0, 100, 0))
    assert one.take_put() == (0, 0)
    assert total >= position


def test_a_tail_holds_units_until_they_are_dropped() -> None:
    tail = QueueTail(b"A", 0, 5)
    tail.extend(b"".join(unit(i * 100, 100, i) for i in range(5, 25)))
    assert (tail.first_offset, tail.next_offset) == (5, 25)
    assert tail.units(7, 2) == unit(700, 100, 7) + unit(800, 100, 8)
    assert tail.units(24, 9) == unit(2400, 100, 24)
    assert tail.units(99, 1) == b""
    tail.drop(7)
    tail.drop(3)
    with pytest.raises(ValueError, match="not held"):
        tail.units(6, 1)
    assert tail.units(7, 1) == unit(700, 100, 7)
    tail.take_back(2301)
    assert (tail.first_offset, tail.next_offset) == (7, 24)
    tail.drop(99)
    assert (tail.first_offset, tail.pending) == (24, 0)
    with pytest.raises(ValueError, match="20 bytes"):
        tail.extend(b"x" * 21)
    tail.reset(3)
    assert (tail.first_offset, tail.next_offset) == (3, 3)


def test_measure_bounds_the_bytes() -> None:
    one, two = QueueTail(b"A", 0, 0), QueueTail(b"B", 0, 0)
    messages = [message(one), message(two), message(two)]
    total, largest = measure(messages, 0, 100)
    assert total >= len(encoded(*messages))
    assert largest >= 96


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({1: b"x" * 101}, RecordTooLargeError),
        ({2: b"p" * 32768}, RecordTooLargeError),
        ({1: "text"}, TypeError),
        ({0: None}, TypeError),
        ({3: 1.5}, TypeError),
        ({5: b"123"}, ValueError),
        ({6: 1 << 31}, OverflowError),
        ({7: -(1 << 31) - 1}, OverflowError),
        ({4: 1 << 63}, OverflowError),
    ],
)
def test_measure_refuses_what_cannot_be_encoded(
    change: dict[int, Any], error: type[Exception]
) -> None:
    good = message(QueueTail(b"T", 0, 0))
    bad: Any = tuple(change.get(i, item) for i, item in enumerate(good))
    with pytest.raises(error):
        measure([good, bad], 0, 100)


def test_a_tail_refuses_a_topic_that_no_record_can_name() -> None:
    for topic in (b"", b"t" * 256):
        with pytest.raises(ValueError, match="1 to 255"):
            QueueTail(topic, 0, 0)
    with pytest.raises(ValueError, match="queue id"):
        QueueTail(b"T", -1, 0)


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
    for kernel in (_record, _record_py):
        runs, _, stop, count, _ = kernel.collect(data, 0, len(data), 0, 9_999, (), due)
        assert (stop, count) == (ScanStop.END, 1_800)
        assert [run[:3] for run in runs] == [(t.topic, t.queue_id, i) for i, t in enumerate(tails)]
        assert [run.units for run in runs] == [t.units(i, 3) for i, t in enumerate(tails)]


@pytest.mark.parametrize("kernel", [_record, _record_py])
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


def test_gather_joins_records_in_rows_and_apart() -> None:
    # More of them than gather looks ahead; queue 1's lie in rows of 1 to 5 between queue 0's.
    tails = [QueueTail(b"T", 0, 0), QueueTail(b"T", 1, 0)]
    turns = [1 if number % 7 < number % 5 + 1 else 0 for number in range(120)]
    bodies = [b"%d" % number * (number % 40) for number in range(120)]
    data = encoded(
        *(message(tails[turn], body) for turn, body in zip(turns, bodies, strict=True)), base=500
    )
    for queue_id, tail in enumerate(tails):
        units = tail.units(tail.first_offset, tail.pending)
        mine = [body for turn, body in zip(turns, bodies, strict=True) if turn == queue_id]
        assert len(mine) > 20
        for begin in (0, 3):
            records = gather(data, 500, units, begin, len(mine))
            assert [fields[13] for fields in decode(records)] == mine[begin:]


def test_gather_copies_what_units_name_and_nothing_else() -> None:
    tail = QueueTail(b"T", 0, 0)
    data = encoded(message(tail, b"one"), message(tail, b"two"), base=500)
    units = tail.units(tail.first_offset, tail.pending)
    assert gather(data, 500, units, 0, 2) == data
    assert [f[13] for f in decode(gather(data, 500, units, 1, 2))] == [b"two"]
    for wrong in (
        unit(499, 95, 0),
        unit(500, 96, 0),
        unit(501, 95, 0),
        unit(500 + 190, 95, 0),
        unit(-1, 95, 0),
        unit(1 << 62, 95, 0),
        unit(500, -95, 0),
        unit(0, FILLER_SIZE, 0),
    ):
        with pytest.raises(RecordError):
            gather(data, 500, wrong, 0, 1)
    with pytest.raises(ValueError, match="outside the units"):
        gather(data, 500, units, 0, 3)


def test_select_units_keeps_the_limits_but_always_takes_the_first() -> None:
    units = b"".join(unit(i * 100, 100, i) for i in range(5))
    assert select_units(units, 9, 250, None, 0) == (units[:40], 2, 0)
    assert select_units(units, 9, 1, None, 0) == (units[:20], 1, 0)
    assert select_units(units, 3, 9999, None, 0) == (units[:60], 3, 0)
    assert select_units(units, 9, 9999, frozenset({3}), 0) == (units[60:80], 5, 0)
    assert select_units(units, 9, 9999, None, 250) == (units[60:], 5, 3)
    assert select_units(units[:20] + bytes(40), 9, 9999, None, 0) == (units[:20], 1, 0)
    assert select_units(unit(0, FILLER_SIZE, 0) + units, 1, 9999, None, 0) == (units[:20], 2, 1)


def test_a_tag_hash_is_compared_in_its_low_32_bits() -> None:
    deliver_time = (7 << 32) | 0xFFFFFFFF
    assert select_units(unit(0, 99, deliver_time), 9, 99, frozenset({-1}), 0)[1] == 1
    assert select_units(unit(0, 99, deliver_time), 9, 99, frozenset({-1}), 0)[0] != b""


def test_zeros_from_finds_the_end_of_what_is_not_zero() -> None:
    data = b"\x01" + bytes(20) + b"\x02" + bytes(17)
    assert zeros_from(data, 0, len(data)) == 22
    assert zeros_from(data, 0, 21) == 1
    assert zeros_from(data, 1, 21) == 1
    assert zeros_from(data, 5, 5) == 5


def test_the_crc_is_that_of_zlib_for_every_length() -> None:
    data = bytes(range(256)) * 16
    for size in (*range(300), 512, 1023, 4095):
        for begin in (0, 1):
            part = memoryview(data)[begin : begin + size]
            assert crc32_31(part) == zlib.crc32(part) & 0x7FFFFFFF


def test_every_name_of_the_interface_is_there() -> None:
    assert [name for name in record.__all__ if not hasattr(record, name)] == []
