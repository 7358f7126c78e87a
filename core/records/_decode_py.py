"""Reference of the decode kernel: the same answers as _decode.pyx in plain Python.

Owns: the values taken from a record, in short code. Must not touch: files, clocks, sockets.
decode.py has the docstrings, layout.py the layout. Spec: RocketMQ MessageDecoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


class StoredFields:
    __slots__ = (
        "_pairs", "_text", "body", "born_host", "born_timestamp_ms", "flag", "physical_offset",
        "prepared_transaction_offset", "queue_id", "queue_offset", "reconsume_times", "store_host",
        "store_timestamp_ms", "stored_bytes", "sys_flag", "topic",
    )  # fmt: skip

    body: bytes
    _pairs: dict[str, str] | None
    _text: bytes

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        body: bytes,
        properties: dict[str, str] | None,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: tuple[str, int],
        store_timestamp_ms: int,
        store_host: tuple[str, int],
        reconsume_times: int,
        prepared_transaction_offset: int,
        stored_bytes: int,
    ) -> None:
        put = object.__setattr__
        put(self, "topic", topic)
        put(self, "queue_id", queue_id)
        put(self, "queue_offset", queue_offset)
        put(self, "physical_offset", physical_offset)
        put(self, "body", body)
        put(self, "_pairs", properties)
        put(self, "flag", flag)
        put(self, "sys_flag", sys_flag)
        put(self, "born_timestamp_ms", born_timestamp_ms)
        put(self, "born_host", born_host)
        put(self, "store_timestamp_ms", store_timestamp_ms)
        put(self, "store_host", store_host)
        put(self, "reconsume_times", reconsume_times)
        put(self, "prepared_transaction_offset", prepared_transaction_offset)
        put(self, "stored_bytes", stored_bytes)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attribute '{name}' of a stored message is not writable")

    @property
    def properties(self) -> dict[str, str]:
        if self._pairs is None:
            object.__setattr__(self, "_pairs", decode_properties(self._text))
        assert self._pairs is not None
        return self._pairs

    def value_of(self, name: str) -> str | None:
        return self.properties.get(name)


def decode_stored(records: Any, kind: type[Any]) -> tuple[list[Any], int]:
    if not issubclass(kind, StoredFields):
        raise TypeError("messages are StoredFields")
    found = []
    sys_flags = 0
    for r in _records(records, COUNT_MAX, False):
        one = kind.__new__(kind)
        StoredFields.__init__(
            one, r.topic.decode(errors="replace"), r.queue_id, r.queue_offset, r.physical_offset,
            r.body, None, r.flag, r.sys_flag, r.born_ms, decode_host(r.born_host), r.store_ms,
            decode_host(r.store_host), r.reconsume_times, r.prepared_offset, r.size,
        )  # fmt: skip
        object.__setattr__(one, "_text", r.properties)
        sys_flags |= r.sys_flag
        found.append(one)
    return found, sys_flags


def body_bytes(messages: Iterable[StoredFields]) -> int:
    return sum(len(one.body) for one in messages)


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
