"""Append: the bytes RocketMQ expects, what a queue's tail holds, and what is refused."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from motelog.core.errors import RecordTooLargeError
from motelog.core.message import encode_host
from motelog.core.records.append import QueueTail, crc32_31, encode_batch, measure
from motelog.core.records.decode import decode, decode_messages
from motelog.core.records.layout import MAGIC_V1, MAGIC_V2
from tests.support.stores import BORN_HOST, STORE_HOST, encoded, message, unit

IPV6_HOST = encode_host("2001:db8::1", 1883)


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
    total, _, _ = measure(batch, 0, 1000)
    _, position = encode_batch(bytearray(4096), 0, 4096, 0, batch, 0, 1, STORE_HOST, [], None, None)
    (count_one, bytes_one), (count_two, bytes_two) = one.take_put(), two.take_put()
    assert (count_one, count_two, bytes_one + bytes_two) == (2, 1, position)
    assert bytes_two == bytes_one // 2 + 49
    one.extend(unit(0, 100, 0))
    assert one.take_put() == (0, 0)
    assert total >= position


def test_a_tail_that_has_given_a_batch_up_takes_the_next_as_if_there_had_been_none() -> None:
    tail, target = QueueTail(b"A", 0, 0), bytearray(4096)
    one = [message(tail)]
    _, begin = encode_batch(target, 0, 4096, 0, one, 0, 1, STORE_HOST, [], None)
    for _ in range(2):
        dirty: list[QueueTail] = []
        encode_batch(target, begin, 4096, 0, one * 2, 0, 1, STORE_HOST, dirty, None)
        assert dirty == [tail]
        tail.take_back(begin)
    assert (tail.next_offset, tail.take_put()) == (1, (1, begin))


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
    total, largest, _ = measure(messages, 0, 100)
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


def test_the_crc_is_that_of_zlib_for_every_length() -> None:
    data = bytes(range(256)) * 16
    for size in (*range(300), 512, 1023, 4095):
        for begin in (0, 1):
            part = memoryview(data)[begin : begin + size]
            assert crc32_31(part) == zlib.crc32(part) & 0x7FFFFFFF
