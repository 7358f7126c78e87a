"""Reference of the decode kernel: the same answers as _decode.pyx in plain Python.

Owns: the values taken from a record, in short code. Must not touch: files, clocks, sockets.
decode.py has the docstrings, layout.py the drawing. Spec: RocketMQ MessageDecoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from motelog.core.errors import RecordError
from motelog.core.message import decode_host, decode_properties
from motelog.core.records._properties_py import find_property
from motelog.core.records.layout import COUNT_MAX, REASONS, Record, ScanStop, parse


def decode(records: Any, count_max: int = COUNT_MAX, verify: bool = False) -> list[Any]:
    return [
        (
            r.topic, r.queue_id, r.queue_offset, r.physical_offset, r.flag, r.sys_flag, r.born_ms,
            r.born_host, r.store_ms, r.store_host, r.reconsume_times, r.prepared_offset,
            r.properties, r.body,
        )
        for r in _records(records, count_max, verify)
    ]  # fmt: skip


def decode_fields(records: Any) -> list[Any]:
    return [
        (
            r.topic.decode(errors="replace"), r.queue_id, r.queue_offset, r.physical_offset, r.body,
            decode_properties(r.properties), r.flag, r.sys_flag, r.born_ms,
            decode_host(r.born_host), r.store_ms, decode_host(r.store_host), r.reconsume_times,
            r.prepared_offset, r.size,
        )
        for r in _records(records, COUNT_MAX, False)
    ]  # fmt: skip


def decode_brief(records: Any, name: bytes) -> list[Any]:
    return [
        (r.queue_offset, find_property(r.properties, name), r.topic, r.properties, r.body,
         r.sys_flag, r.store_ms, r.size)
        for r in _records(records, COUNT_MAX, False)
    ]  # fmt: skip


def decode_values(records: Any, names: tuple[str, ...]) -> list[Any]:
    return [
        (r.queue_offset, r.size, _values(r.properties, names))
        for r in _records(records, COUNT_MAX, False)
    ]


def in_queue(records: Any, topic: bytes, queue_id: int, begin: int, end: int) -> bool:
    lowest = begin
    try:
        for r in _records(records, COUNT_MAX, False):
            if (r.topic, r.queue_id) != (topic, queue_id) or not lowest <= r.queue_offset < end:
                return False
            lowest = r.queue_offset + 1
    except RecordError:
        return False
    return True


def _records(records: Any, count_max: int, verify: bool) -> Iterator[Record]:
    view = memoryview(records).cast("B")
    at = count = 0
    while at < len(view) and count < count_max:
        record = parse(view, at, len(view))
        if isinstance(record, Record) and verify and not record.is_intact:
            record = ScanStop.BAD_CRC
        if isinstance(record, ScanStop):
            raise RecordError(REASONS[record], offset_bytes=at)
        yield record
        at += record.size
        count += 1


def _values(properties: bytes, names: tuple[str, ...]) -> dict[str, str]:
    found = {name: find_property(properties, name.encode()) for name in names}
    return {
        name: value.decode(errors="replace") for name, value in found.items() if value is not None
    }
