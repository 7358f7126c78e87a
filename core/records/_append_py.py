"""Reference of the append kernel: the same answers as _append.pyx in plain Python.

Owns: writing a record, in short code. Must not touch: files, clocks, sockets. append.py has the
docstrings, layout.py the layout.
Unlike the kernel it has no guard: an unreadable page of a mapped file ends the process.
Spec: RocketMQ MessageExtEncoder, CommitLog.
"""

from __future__ import annotations

from typing import Any, Final

from motelog.core.errors import RecordTooLargeError
from motelog.core.message import PROPERTIES_BYTES_MAX, SYS_FLAG_BORN_IPV6, SYS_FLAG_STORE_IPV6
from motelog.core.records import layout
from motelog.core.records.layout import (
    BLANK_BYTES_MIN,
    COUNT_MAX,
    FIRST,
    IPV4_BYTES,
    IPV6_BYTES,
    LATER,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_BYTES_MAX,
    TOPIC_V1_BYTES_MAX,
    UNIT,
    UNIT_BYTES,
    has_unit,
)

HOST_FLAGS: Final = SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6


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
        is_put = self._last_physical >= physical_end
        while self._units:
            begin, size, _ = UNIT.unpack(self._units[-UNIT_BYTES:])
            if begin < physical_end:
                break
            if is_put:
                self._put_messages -= 1
                self._put_bytes -= size
            del self._units[-UNIT_BYTES:]
            self.next_offset -= 1
        if is_put:
            self._last_physical = -1 << 63

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
    return layout.crc32_31(data)


def measure(messages: list[Any], begin: int, body_bytes_max: int) -> tuple[int, int, bool]:
    total = largest = 0
    is_marked = False
    for message in messages[begin:]:
        size = _check(message, body_bytes_max)
        total += size
        largest = max(largest, size)
        is_marked = is_marked or type(message) is not tuple
    return total, largest, is_marked


def _check(message: Any, body_bytes_max: int) -> int:
    """Return the size of the record in bytes; TypeError, ValueError, RecordTooLargeError."""
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
    if len(born_host) not in (IPV4_BYTES, IPV6_BYTES):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(born_host)}")
    if len(body) > body_bytes_max:
        raise RecordTooLargeError(f"the body has {len(body)} bytes, the limit is {body_bytes_max}")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise RecordTooLargeError(
            f"the properties have {len(properties)} bytes, the limit is {PROPERTIES_BYTES_MAX}"
        )
    if b"\0" in properties:
        raise ValueError("a property text with a zero byte could pass for a torn record")
    return _size(tail, body, properties, born_host, IPV6_BYTES)


def _size(tail: QueueTail, body: bytes, properties: bytes, born: bytes, store_bytes: int) -> int:
    head = 2 if len(tail.topic) > TOPIC_V1_BYTES_MAX else 1
    fixed = FIRST.size + len(born) + 8 + store_bytes + LATER.size
    return fixed + len(body) + head + len(tail.topic) + 2 + len(properties)


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
    if len(store_host) not in (IPV4_BYTES, IPV6_BYTES):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(store_host)}")
    for index in range(begin, len(messages)):
        message = messages[index]
        _check(message, COUNT_MAX)
        tail, body, properties, code, born_ms, born, sys_flag, flag, reconsume, prepared = message
        size = _size(tail, body, properties, born, len(store_host))
        if position + size + BLANK_BYTES_MIN > limit:
            return index, position
        # The hosts determine the host bits, so that no caller can make a misread record.
        sys_flag &= ~HOST_FLAGS
        sys_flag |= SYS_FLAG_BORN_IPV6 * (len(born) == IPV6_BYTES)
        sys_flag |= SYS_FLAG_STORE_IPV6 * (len(store_host) == IPV6_BYTES)
        is_queued = has_unit(sys_flag)
        queue_offset = tail.next_offset if is_queued else 0
        physical_offset = physical_base + position
        wide = len(tail.topic) > TOPIC_V1_BYTES_MAX
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
        if is_queued:
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


def copy_in(target: Any, position: int, data: bytes) -> None:
    view = memoryview(target).cast("B")
    if not 0 <= position <= len(view) - len(data):
        raise ValueError("the data lies outside the target")
    view[position : position + len(data)] = data
