"""Reference of the index kernel: the same answers as _index.pyx in plain Python.

Owns: what an index file holds and which keys a message has, in brief.
Must not touch: files, clocks. core/store/index/index.py has the drawing and the docstrings.
Spec: RocketMQ IndexFile, IndexHeader, IndexService.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from motelog.core.message import string_hash
from motelog.core.records._properties_py import has_keys
from motelog.core.records.layout import ScanStop, is_rolled_back, parse_in_log

HEADER: Final = Struct(">qqqqii")
SLOT: Final = Struct(">i")
ENTRY: Final = Struct(">iqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
INT_MAX: Final = 0x7FFFFFFF

IndexItem = tuple[int, int, bytes, bytes]


def any_keyed(messages: Sequence[Any]) -> bool:
    return any(has_keys(message[2]) and not is_rolled_back(message[6]) for message in messages)


def keys_of(properties: bytes) -> list[bytes]:
    unique = words = b""
    for item in properties.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if name == b"UNIQ_KEY":
            unique = value or unique
        elif name == b"KEYS":
            words = value or words
    return ([unique] if unique else []) + [word for word in words.split(b" ") if word]


def key_hash(topic: bytes, key: bytes) -> int:
    hashed = abs(string_hash((topic + b"#" + key).decode(errors="replace")))
    return hashed if hashed <= INT_MAX else 0


def put(
    view: Any, slots: int, entries: int, items: Sequence[IndexItem], item: int, key: int
) -> tuple[int, int]:
    if item < 0 or key < 0:
        raise ValueError("item and key must not be negative")
    data = _checked(view, slots, entries)
    while item < len(items):
        key, is_put = _put_keys(data, slots, entries, items[item], key)
        if not is_put:
            return item, key
        item, key = item + 1, 0
    return item, key


def put_records(
    view: Any, slots: int, entries: int, log: Any, begin: int, end: int, physical_base: int,
    key: int, count_max: int,
) -> tuple[int, int, ScanStop | None]:  # fmt: skip
    if key < 0:
        raise ValueError("key must not be negative")
    data = _checked(view, slots, entries)
    records = memoryview(log).cast("B")
    if not 0 <= begin <= end <= len(records):
        raise ValueError("begin and end lie outside the log")
    at = begin
    while at < end:
        if count_max <= 0:
            return at, key, ScanStop.COUNT
        record = parse_in_log(records, at, end, physical_base)
        if isinstance(record, ScanStop):
            return at, key, record
        if not is_rolled_back(record.sys_flag):
            item = record.physical_offset, record.store_ms, record.topic, record.properties
            key, is_put = _put_keys(data, slots, entries, item, key)
            if not is_put:
                return at, key, None
        at, key, count_max = at + record.size, 0, count_max - 1
    return at, key, ScanStop.END


def _put_keys(
    data: memoryview, slots: int, entries: int, item: IndexItem, key: int
) -> tuple[int, bool]:
    """Put the item's keys from number ``key`` on; return the next one, and whether all are in."""
    physical_offset, store_ms, topic, properties = item
    for number, word in enumerate(keys_of(properties)):
        if number >= key and not _put_one(
            data, slots, entries, key_hash(topic, word), physical_offset, store_ms
        ):
            return number, False
    return 0, True


def _checked(view: Any, slots: int, entries: int) -> memoryview:
    data = memoryview(view).cast("B")
    if slots < 1 or entries < 1 or max(slots, entries) > INT_MAX:
        raise ValueError("slots and entries must lie in [1, 2147483647]")
    if len(data) < HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES:
        raise ValueError("the view is shorter than its slots and entries")
    return data


def _put_one(
    data: memoryview, slots: int, entries: int, hashed: int, physical_offset: int, store_ms: int
) -> bool:
    """Add one entry, its slot and the header in this order; False if the file is full."""
    begin_ms, _, begin_physical, _, used, count = HEADER.unpack_from(data)
    if not 1 <= count < entries:
        return False
    at = HEADER_BYTES + hashed % slots * SLOT_BYTES
    (previous,) = SLOT.unpack_from(data, at)
    if not 0 < previous < count:
        previous = 0
    if count == 1:
        begin_ms, begin_physical = store_ms, physical_offset
    delta_s = min(max((store_ms - begin_ms) // 1000, 0), INT_MAX)
    ENTRY.pack_into(
        data, _entry_at(slots, count), hashed, physical_offset, delta_s, previous
    )  # fmt: skip
    SLOT.pack_into(data, at, count)
    HEADER.pack_into(
        data, 0, begin_ms, store_ms, begin_physical, physical_offset,
        min(used + (previous == 0), INT_MAX), count + 1,
    )  # fmt: skip
    return True


def _entry_at(slots: int, number: int) -> int:
    return HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES


def select(
    view: Any, slots: int, entries: int, hashed: int, number: int, begin_ms: int, end_ms: int,
    count_max: int,
) -> tuple[list[int], int]:  # fmt: skip
    data = _checked(view, slots, entries)
    if not 0 <= hashed <= INT_MAX:
        raise ValueError("a hash is in [0, 2147483647]")
    first_ms, _, _, _, _, count = HEADER.unpack_from(data)
    count = min(count, entries - 1)
    if number == 0:
        (number,) = SLOT.unpack_from(data, HEADER_BYTES + hashed % slots * SLOT_BYTES)
    found: list[int] = []
    # A slot may name the entry after the last one: it was written before the slot was.
    while 0 < number <= count and len(found) < count_max:
        entry_hash, physical_offset, delta_s, previous = ENTRY.unpack_from(
            data, _entry_at(slots, number)
        )
        # RocketMQ counts a first entry from the time at which the file before it ended.
        at_ms = first_ms + (delta_s * 1000 if number > 1 else 0)
        if at_ms + 999 < begin_ms and delta_s < INT_MAX:
            return found, 0
        if entry_hash == hashed and (at_ms <= end_ms or delta_s <= 0):
            found.append(physical_offset)
        # A chain only leads to older entries: one that does not is damaged and ends here.
        number = previous if previous < number else 0
    return found, number if 0 < number <= count else 0


def relink(view: Any, slots: int, entries: int, count: int, physical_end: int) -> tuple[int, int]:
    data = _checked(view, slots, entries)
    if not 1 <= count <= entries:
        raise ValueError("count must lie in [1, entries]")
    data[HEADER_BYTES : HEADER_BYTES + slots * SLOT_BYTES] = bytes(slots * SLOT_BYTES)
    used = last = 0
    for number in range(1, count):
        at = _entry_at(slots, number)
        hashed, physical_offset, delta_s, _ = ENTRY.unpack_from(data, at)
        if hashed < 0 or delta_s < 0 or not last <= physical_offset < physical_end:
            return number, used
        last = physical_offset
        slot_at = HEADER_BYTES + hashed % slots * SLOT_BYTES
        (previous,) = SLOT.unpack_from(data, slot_at)
        used += previous == 0
        ENTRY.pack_into(data, at, hashed, physical_offset, delta_s, previous)
        SLOT.pack_into(data, slot_at, number)
    return count, used
