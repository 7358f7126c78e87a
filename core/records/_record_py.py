"""Reference of the record kernel: the same answers as _record.pyx in plain Python.

Owns: what a record, a blank record and a ConsumeQueue unit look like, said briefly.
Must not touch: files, clocks, sockets. core/records/record.py has the drawing and the docstrings.
Unlike the kernel it has no guard: a page of a mapped file that cannot be had ends the process.
Spec: RocketMQ MessageDecoder, MessageExtEncoder, CommitLog, ConsumeQueue.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from motelog.core.errors import RecordError, RecordTooLargeError
from motelog.core.message import (
    PROPERTIES_BYTES_MAX,
    SYS_FLAG_BORN_IPV6,
    SYS_FLAG_STORE_IPV6,
    tags_code,
)

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
BLANK_BYTES_MIN: Final = 8
RECORD_BYTES_MIN: Final = 92  # with a topic of one byte; the fixed part is 91
UNIT_BYTES: Final = 20
FILLER_SIZE: Final = 0x7FFFFFFF  # size of a unit that names no record (0, this, 0)
TOPIC_BYTES_MAX: Final = 255
COUNT_MAX: Final = 0x7FFFFFFF
SECTOR_BYTES: Final = 512  # what a disk writes as a whole
TRANSACTION_MASK: Final = 0xC  # 0x4 prepared, 0x8 commit, 0xC rollback
ROLLBACK: Final = 0xC
NAMED_KEYS: Final = (b"UNIQ_KEY\x01", b"KEYS\x01")
HOST_FLAGS: Final = SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6

FIRST: Final = Struct(">IIIiiqqiq")  # up to and with the born timestamp: 48 bytes
LATER: Final = Struct(">iqi")  # reconsume times, prepared offset, body bytes
UNIT: Final = Struct(">qiq")


class ScanStop(IntEnum):
    """Why a scan ended; all above EMPTY say what is wrong at the position where it ended."""

    END = 0
    COUNT = 1
    BLANK = 2
    EMPTY = 3
    BAD_SIZE = 4
    BAD_MAGIC = 5
    BAD_LAYOUT = 6
    BAD_CRC = 7
    BAD_OFFSET = 8


class UnitRun(NamedTuple):
    """Units of one queue with consecutive queue offsets, the first of which is ``first_offset``."""

    topic: bytes
    queue_id: int
    first_offset: int
    units: bytes


class QueueTail:
    __slots__ = (
        "_last_physical", "_put_bytes", "_put_messages", "_units", "next_offset", "queue_id",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes, queue_id: int, next_offset: int) -> None:
        if not 1 <= len(topic) <= TOPIC_BYTES_MAX:
            raise ValueError(f"a topic has 1 to 255 bytes, not {len(topic)}")
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"queue id {queue_id} is not in [0, 2147483648)")
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self._last_physical = -1 << 63
        self._units = bytearray()
        self._put_messages = self._put_bytes = 0

    @property
    def pending(self) -> int:
        return len(self._units) // UNIT_BYTES

    @property
    def first_offset(self) -> int:
        return self.next_offset - self.pending

    def units(self, offset: int, count: int) -> bytes:
        at = offset - self.first_offset
        if at < 0 or count < 0:
            raise ValueError("these units are not held")
        return bytes(self._units[at * UNIT_BYTES : (at + count) * UNIT_BYTES])

    def extend(self, units: bytes) -> None:
        if len(units) % UNIT_BYTES:
            raise ValueError("units have 20 bytes each")
        self._units += units
        self.next_offset += len(units) // UNIT_BYTES

    def drop(self, end_offset: int) -> None:
        count = min(max(end_offset - self.first_offset, 0), self.pending)
        del self._units[: count * UNIT_BYTES]

    def take_back(self, physical_end: int) -> None:
        while self._units and UNIT.unpack_from(self._units, len(self._units) - UNIT_BYTES)[0] >= (
            physical_end
        ):
            del self._units[-UNIT_BYTES:]
            self.next_offset -= 1

    def reset(self, next_offset: int) -> None:
        self._units.clear()
        self.next_offset = next_offset

    def take_put(self) -> tuple[int, int]:
        put = self._put_messages, self._put_bytes
        self._put_messages = self._put_bytes = 0
        return put

    def _add(self, physical_offset: int, size: int, code: int) -> None:
        self._units += UNIT.pack(physical_offset, size, code)
        self.next_offset += 1
        self._put_messages += 1
        self._put_bytes += size
        self._last_physical = physical_offset


def crc32_31(data: Any) -> int:
    return crc32(data) & 0x7FFFFFFF


def measure(messages: list[Any], begin: int, body_bytes_max: int) -> tuple[int, int]:
    total = largest = 0
    for message in messages[begin:]:
        size = _check(message, body_bytes_max)
        total += size
        largest = max(largest, size)
    return total, largest


def _check(message: Any, body_bytes_max: int) -> int:
    """Return the bytes the record will take; TypeError, ValueError, RecordTooLargeError."""
    if not isinstance(message, tuple) or len(message) != 10:
        raise TypeError("a message to append is a tuple of 10")
    tail, body, properties, code, born_ms, born_host, sys_flag, flag, reconsume, prepared = message
    if not isinstance(tail, QueueTail):
        raise TypeError("the first item is a QueueTail")
    for value in (body, properties, born_host):
        if not isinstance(value, bytes):
            raise TypeError("body, properties and born host are bytes")
    for value, bits in (
        (code, 63), (born_ms, 63), (prepared, 63), (sys_flag, 31), (flag, 31), (reconsume, 31),
    ):  # fmt: skip
        if not isinstance(value, int):
            raise TypeError("an integer is expected")
        if not -1 << bits <= value < 1 << bits:
            raise OverflowError(f"{value} does not fit into {bits + 1} bits")
    if len(born_host) not in (8, 20):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(born_host)}")
    if len(body) > body_bytes_max:
        raise RecordTooLargeError(f"the body has {len(body)} bytes, the limit is {body_bytes_max}")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise RecordTooLargeError(
            f"the properties have {len(properties)} bytes, the limit is {PROPERTIES_BYTES_MAX}"
        )
    if b"\0" in properties:
        raise ValueError("a property text with a zero byte could pass for a torn record")
    return _size(tail, body, properties, born_host, 20)


def _size(tail: QueueTail, body: bytes, properties: bytes, born: bytes, store_bytes: int) -> int:
    wide = len(tail.topic) > 127
    return 75 + len(born) + store_bytes + wide + len(body) + len(tail.topic) + len(properties)


def encode_batch(
    target: Any, position: int, limit: int, physical_base: int, messages: list[Any], begin: int,
    store_timestamp_ms: int, store_host: bytes, dirty: list[QueueTail],
    placed: list[tuple[int, int]] | None, batch_begin: int | None = None,
    fresh: list[QueueTail] | None = None,
) -> tuple[int, int]:  # fmt: skip
    view = memoryview(target).cast("B")
    if batch_begin is None:
        batch_begin = physical_base + position
    if not (0 <= position <= limit <= len(view)):
        raise ValueError("position and limit lie outside the target")
    if len(store_host) not in (8, 20):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(store_host)}")
    for index in range(begin, len(messages)):
        message = messages[index]
        _check(message, COUNT_MAX)
        tail, body, properties, code, born_ms, born, sys_flag, flag, reconsume, prepared = message
        size = _size(tail, body, properties, born, len(store_host))
        if position + size + BLANK_BYTES_MIN > limit:
            return index, position
        # The host bits follow the hosts, so that no caller can make a record that misreads.
        sys_flag &= ~HOST_FLAGS
        sys_flag |= SYS_FLAG_BORN_IPV6 * (len(born) == 20)
        sys_flag |= SYS_FLAG_STORE_IPV6 * (len(store_host) == 20)
        has_unit = sys_flag & TRANSACTION_MASK in (0, 0x8)
        queue_offset = tail.next_offset if has_unit else 0
        physical_offset = physical_base + position
        wide = len(tail.topic) > 127
        view[position : position + size] = b"".join(
            (
                FIRST.pack(
                    size, MAGIC_V2 if wide else MAGIC_V1, crc32_31(body), tail.queue_id, flag,
                    queue_offset, physical_offset, sys_flag, born_ms,
                ),
                born,
                store_timestamp_ms.to_bytes(8, "big", signed=True),
                store_host,
                LATER.pack(reconsume, prepared, len(body)),
                body,
                len(tail.topic).to_bytes(2 if wide else 1, "big"),
                tail.topic,
                len(properties).to_bytes(2, "big"),
                properties,
            )
        )  # fmt: skip
        if has_unit:
            if tail._last_physical < batch_begin:
                dirty.append(tail)
            if not tail._units and fresh is not None:
                fresh.append(tail)
            tail._add(physical_offset, size, code)
        if placed is not None:
            placed.append((physical_offset, queue_offset))
        position += size
    return len(messages), position


def encode_blank(target: Any, position: int, limit: int) -> None:
    view = memoryview(target).cast("B")
    if not 0 <= position <= limit - BLANK_BYTES_MIN <= len(view) - BLANK_BYTES_MIN:
        raise ValueError("a blank record needs 8 bytes")
    view[position : position + 8] = (limit - position).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(
        4, "big"
    )


def copy_out(view: Any, begin: int, end: int) -> bytes:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= end <= len(data):
        raise ValueError("begin and end lie outside the view")
    return bytes(data[begin:end])


def copy_in(target: Any, position: int, data: bytes) -> None:
    view = memoryview(target).cast("B")
    if not 0 <= position <= len(view) - len(data):
        raise ValueError("the data lies outside the target")
    view[position : position + len(data)] = data


def _parse(view: memoryview, at: int, end: int) -> tuple[Any, ...] | ScanStop:
    """Return the decoded fields and the size of the record at ``at``, or what is wrong with it."""
    if end - at < RECORD_BYTES_MIN:
        return ScanStop.BAD_SIZE
    size, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_ms = FIRST.unpack_from(
        view, at
    )
    if not RECORD_BYTES_MIN <= size <= min(end - at, COUNT_MAX):
        return ScanStop.BAD_SIZE
    if magic not in (MAGIC_V1, MAGIC_V2):
        return ScanStop.BAD_MAGIC
    if queue_id < 0 or queue_offset < 0:
        return ScanStop.BAD_LAYOUT
    p = 48
    born = bytes(view[at + p : at + (p := p + (20 if sys_flag & SYS_FLAG_BORN_IPV6 else 8))])
    store_ms = int.from_bytes(view[at + p : at + (p := p + 8)], "big", signed=True)
    store = bytes(view[at + p : at + (p := p + (20 if sys_flag & SYS_FLAG_STORE_IPV6 else 8))])
    topic_bytes_size = 2 if magic == MAGIC_V2 else 1
    if p + LATER.size + topic_bytes_size + 2 > size:
        return ScanStop.BAD_LAYOUT
    reconsume, prepared, body_bytes = LATER.unpack_from(view, at + p)
    p += LATER.size
    if not 0 <= body_bytes <= size - p - topic_bytes_size - 2:
        return ScanStop.BAD_LAYOUT
    body = bytes(view[at + p : at + (p := p + body_bytes)])
    topic_bytes = int.from_bytes(view[at + p : at + (p := p + topic_bytes_size)], "big")
    # One byte is signed in Java: longer topics need the second version of the record.
    if not 1 <= topic_bytes <= (127 if topic_bytes_size == 1 else TOPIC_BYTES_MAX):
        return ScanStop.BAD_LAYOUT
    if topic_bytes > size - p - 2:
        return ScanStop.BAD_LAYOUT
    topic = bytes(view[at + p : at + (p := p + topic_bytes)])
    if int.from_bytes(view[at + p : at + (p := p + 2)], "big") != size - p:
        return ScanStop.BAD_LAYOUT
    if size - p > PROPERTIES_BYTES_MAX:
        return ScanStop.BAD_LAYOUT
    properties = bytes(view[at + p : at + size])
    fields = (
        topic, queue_id, queue_offset, physical, flag, sys_flag, born_ms, born, store_ms, store,
        reconsume, prepared, properties, body,
    )  # fmt: skip
    return fields, size, crc


def _is_intact(body: bytes, crc: int) -> bool:
    # A record without a body carries whatever its writer thought the CRC of nothing is.
    return not body or crc32_31(body) == crc


def _records(records: Any, count_max: int, verify: bool) -> Any:
    view = memoryview(records).cast("B")
    at = count = 0
    while at < len(view) and count < count_max:
        parsed = _parse(view, at, len(view))
        if isinstance(parsed, ScanStop):
            raise RecordError(REASONS[parsed], offset_bytes=at)
        fields, size, crc = parsed
        if verify and not _is_intact(fields[13], crc):
            raise RecordError(REASONS[ScanStop.BAD_CRC], offset_bytes=at)
        yield fields, size
        at += size
        count += 1


REASONS: Final = {
    ScanStop.EMPTY: "zeros where a record should be",
    ScanStop.BAD_SIZE: "the size of a record is impossible here",
    ScanStop.BAD_MAGIC: "a record's magic number is wrong",
    ScanStop.BAD_LAYOUT: "the lengths inside a record do not add up to its size",
    ScanStop.BAD_CRC: "the CRC of a record's body is wrong",
    ScanStop.BAD_OFFSET: "a record names another place than where it lies",
}


def decode(records: Any, count_max: int = COUNT_MAX, verify: bool = False) -> list[Any]:
    return [fields for fields, _ in _records(records, count_max, verify)]


def decode_brief(records: Any, name: bytes) -> list[Any]:
    return [
        (fields[2], _property(fields[12], name), fields[0], fields[12], fields[13], fields[5],
         fields[8], size)
        for fields, size in _records(records, COUNT_MAX, False)
    ]  # fmt: skip


def decode_values(records: Any, names: tuple[str, ...]) -> list[Any]:
    return [
        (fields[2], size, _values(fields[12], names))
        for fields, size in _records(records, COUNT_MAX, False)
    ]


def _values(properties: bytes, names: tuple[str, ...]) -> dict[str, str]:
    found = {name: _property(properties, name.encode()) for name in names}
    return {
        name: value.decode(errors="replace") for name, value in found.items() if value is not None
    }


def in_queue(records: Any, topic: bytes, queue_id: int, begin: int, end: int) -> bool:
    lowest = begin
    try:
        for fields, _ in _records(records, COUNT_MAX, False):
            if fields[:2] != (topic, queue_id) or not lowest <= fields[2] < end:
                return False
            lowest = fields[2] + 1
    except RecordError:
        return False
    return True


def _property(properties: bytes, name: bytes) -> bytes | None:
    """Return the last non-empty value of ``name``, as decode_properties would."""
    value = None
    for item in properties.split(b"\x02"):
        key, found, text = item.partition(b"\x01")
        if found and text and key == name:
            value = text
    return value


def scan(
    view: Any, begin: int, end: int, physical_base: int, count_max: int
) -> tuple[list[Any], int, ScanStop]:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= end <= len(data):
        raise ValueError("begin and end lie outside the view")
    found: list[Any] = []
    at = begin
    while at < end:
        if len(found) >= count_max:
            return found, at, ScanStop.COUNT
        stop = _blank(data, at, end)
        if stop is not None:
            return found, at, stop
        parsed = _parse(data, at, end)
        if isinstance(parsed, ScanStop):
            return found, at, parsed
        fields, size, crc = parsed
        if fields[3] != physical_base + at:
            return found, at, ScanStop.BAD_OFFSET
        if not _is_intact(fields[13], crc):
            return found, at, ScanStop.BAD_CRC
        if _is_torn(data, at + size, end, fields[0], fields[12]):
            return found, at, ScanStop.BAD_LAYOUT
        tags = _property(fields[12], b"TAGS")
        code = tags_code(tags.decode(errors="replace")) if tags else 0
        found.append(
            (fields[0], fields[1], fields[2], fields[3], size, code, fields[5], fields[8],
             fields[12])
        )  # fmt: skip
        at += size
    return found, at, ScanStop.END


def _is_torn(data: memoryview, record_end: int, end: int, topic: bytes, properties: bytes) -> bool:
    """Say whether a crash has torn a record where no CRC covers it: in topic or properties.

    A tear leaves zeros up to the end of a sector; neither text has any.
    """
    if b"\0" in topic:
        return True
    if not properties:
        return False
    begin = record_end - len(properties)
    sector_end = (begin | (SECTOR_BYTES - 1)) + 1
    while sector_end <= record_end:
        if data[sector_end - 1] == 0:
            return True
        sector_end += SECTOR_BYTES
    return properties.endswith(b"\0") and not any(data[record_end : min(sector_end, end)])


def collect(
    view: Any, begin: int, end: int, physical_base: int, count_max: int,
    timed_topics: tuple[bytes, ...], due_time: Callable[[bytes, int], int],
    keyed: list[tuple[int, int, bytes, bytes]] | None = None, keyed_bytes_max: int = 1 << 26,
) -> tuple[list[UnitRun], int, ScanStop, int, int]:  # fmt: skip
    if not all(isinstance(timed, bytes) for timed in timed_topics):
        raise TypeError("a topic is bytes")
    found, at, stop = scan(view, begin, end, physical_base, count_max)
    if keyed_bytes_max < 0:
        raise ValueError("keyed_bytes_max is negative")
    if keyed is not None:
        count = _take_keyed(found, keyed, keyed_bytes_max)
        if count is not None:
            found, at, stop = scan(view, begin, end, physical_base, count)
    runs: list[tuple[bytes, int, int, bytearray]] = []
    current: dict[tuple[bytes, int], tuple[bytes, int, int, bytearray]] = {}
    last_ms = 0
    for topic, queue_id, queue_offset, physical, size, code, sys_flag, ms, properties in found:
        last_ms = max(last_ms, ms)
        if sys_flag & TRANSACTION_MASK not in (0, 0x8):
            continue
        if topic in timed_topics:
            code = due_time(properties, ms) or code
        run = current.get((topic, queue_id))
        if run is None or run[2] + len(run[3]) // UNIT_BYTES != queue_offset:
            run = current[(topic, queue_id)] = (topic, queue_id, queue_offset, bytearray())
            runs.append(run)
        run[3].extend(UNIT.pack(physical, size, code))
    return [UnitRun(*run[:3], bytes(run[3])) for run in runs], at, stop, len(found), last_ms


def _take_keyed(
    found: list[tuple[Any, ...]], keyed: list[tuple[int, int, bytes, bytes]], bytes_max: int
) -> int | None:
    """Add those with keys; if their texts have too many bytes, return which record was the last."""
    for number, record in enumerate(found):
        topic, _, _, physical, _, _, sys_flag, ms, properties = record
        if has_keys(properties) and sys_flag & TRANSACTION_MASK != ROLLBACK:
            keyed.append((physical, ms, topic, properties))
            bytes_max -= len(topic) + len(properties)
            if bytes_max < 0:
                return number + 1
    return None


def has_keys(properties: bytes) -> bool:
    """Say whether the text of some properties has a UNIQ_KEY or KEYS that is not empty."""
    return any(
        item.startswith(name) and len(item) > len(name)
        for item in properties.split(b"\x02")
        for name in NAMED_KEYS
    )


def _blank(data: memoryview, at: int, end: int) -> ScanStop | None:
    """Say whether ``at`` holds a blank record or nothing at all."""
    if end - at < BLANK_BYTES_MIN:
        return ScanStop.BAD_SIZE
    head = bytes(data[at : at + 8])
    if head == bytes(8):
        return ScanStop.EMPTY
    if int.from_bytes(head[4:], "big") == MAGIC_BLANK:
        return ScanStop.BLANK if int.from_bytes(head[:4], "big") == end - at else ScanStop.BAD_SIZE
    return None


def find_record(view: Any, begin: int, stop: int, end: int, physical_base: int) -> int:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= stop <= end <= len(data):
        raise ValueError("begin, stop and end lie outside the view")
    for at in range(begin, min(stop, end - RECORD_BYTES_MIN + 1)):
        if data[at + 4] == 0xDA and scan(data, at, end, physical_base, 1)[0]:
            return at
    return -1


def zeros_from(view: Any, begin: int, end: int) -> int:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= end <= len(data):
        raise ValueError("begin and end lie outside the view")
    return begin + len(bytes(data[begin:end]).rstrip(b"\0"))


def gather(
    view: Any, file_base: int, units: bytes, begin: int, end: int, verify: bool = False
) -> bytes:
    data = memoryview(view).cast("B")
    if not (0 <= begin <= end and end * UNIT_BYTES <= len(units)):
        raise ValueError("begin and end lie outside the units")
    parts = []
    for index in range(begin, end):
        physical_offset, size, _ = UNIT.unpack_from(units, index * UNIT_BYTES)
        at = physical_offset - file_base
        if at < 0 or size < RECORD_BYTES_MIN or at + size > len(data):
            raise RecordError("a unit names bytes outside the file", offset_bytes=max(at, 0))
        head = FIRST.unpack_from(data, at)
        if head[0] != size or head[1] not in (MAGIC_V1, MAGIC_V2) or head[6] != physical_offset:
            raise RecordError("a unit names no record", offset_bytes=at)
        if verify:
            parsed = _parse(data, at, at + size)
            if isinstance(parsed, ScanStop):
                raise RecordError(REASONS[parsed], offset_bytes=at)
            if not _is_intact(parsed[0][13], parsed[2]):
                raise RecordError(REASONS[ScanStop.BAD_CRC], offset_bytes=at)
        parts.append(data[at : at + size])
    return b"".join(parts)


def select_units(
    units: Any, count_max: int, bytes_max: int, tag_codes: AbstractSet[int] | None,
    physical_begin: int,
) -> tuple[bytes, int, int]:  # fmt: skip
    selected = bytearray()
    looked = removed = total = 0
    for physical_offset, size, code in UNIT.iter_unpack(
        bytes(memoryview(units)[: len(units) // UNIT_BYTES * UNIT_BYTES])
    ):
        if size <= 0:
            break
        if physical_offset < physical_begin or size == FILLER_SIZE:
            looked += 1
            removed += 1
            continue
        # Java compares the low 32 bits, as a signed number.
        code32 = ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000
        if tag_codes is not None and code32 not in tag_codes:
            looked += 1
            continue
        if len(selected) >= count_max * UNIT_BYTES or (selected and total + size > bytes_max):
            break
        selected += UNIT.pack(physical_offset, size, code)
        total += size
        looked += 1
    return bytes(selected), looked, removed
