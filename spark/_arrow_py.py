"""Reference of the Arrow decoder: RocketMQ records -> Arrow column buffers, in plain Python.

Owns: the decoder's specification. Must not touch: pyarrow, pyspark, sockets.
Spec: RocketMQ MessageDecoder; the layout is core.records.layout's.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

from motelog.core.errors import RecordError
from motelog.core.message import (
    KEYS,
    MQTT_CLIENT_ID,
    MQTT_PROPERTIES,
    MQTT_QOS,
    MQTT_RETAIN,
    MQTT_TOPIC,
    SYS_FLAG_COMPRESSED,
    TAGS,
    decode_properties,
)
from motelog.core.records.layout import REASONS, Record, ScanStop, parse
from motelog.spark.columns import BYTES_MAX, DECODED, TIME_MS_MAX, Column

Bytes = bytes | bytearray | memoryview
# (count of null rows, buffers). The first buffer is the validity or None. After it, a string or
# binary column has offsets and data, a fixed-width one its values. The map has its offsets, offsets
# and data of the keys, offsets and data of the values.
ColumnBuffers = tuple[int, list[Bytes | None]]


class RecordColumns:
    """Rows of one queue range, as they become Arrow batches; documented in `arrow.py`."""

    def __init__(
        self,
        columns: Sequence[int],
        *,
        broker: str,
        offset_begin: int,
        offset_end: int,
        payload_bytes_max: int,
        bad_payload_null: bool = False,
    ) -> None:
        if not 1 <= payload_bytes_max <= BYTES_MAX:
            raise ValueError(f"payload_bytes_max {payload_bytes_max} not in [1, {BYTES_MAX}]")
        if len(broker.encode()) > 65535:
            raise ValueError("broker name is longer than 65535 bytes")
        for column in columns:
            if column not in DECODED:
                raise ValueError(f"{column} is not a column that is decoded")
        self._columns = tuple(Column(column) for column in columns)
        if len(set(self._columns)) < len(self._columns):
            raise ValueError("a column is asked for twice")
        self._broker = broker
        self._offset_end = offset_end
        self._payload_bytes_max = payload_bytes_max
        self._bad_payload_null = bad_payload_null
        self.next_offset = offset_begin
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.data_bytes = 0
        self._values: dict[Column, list[object]] = {column: [] for column in self._columns}

    def append(self, records: Bytes, begin: int, *, rows_max: int, bytes_max: int) -> int:
        size = len(records)
        if not 0 <= begin <= size:
            raise ValueError(f"begin {begin} not in [0, {size}]")
        if size > BYTES_MAX or not 0 <= bytes_max <= BYTES_MAX:
            raise ValueError(f"records or bytes_max above {BYTES_MAX} bytes")
        data = bytes(records)
        position = begin
        while position < size and self.next_offset < self._offset_end:
            if self.rows >= rows_max or self.data_bytes >= bytes_max:
                return position
            position = self._add(data, position)
        return size

    def take(self) -> list[ColumnBuffers]:
        taken = [_buffers(column, self._values[column]) for column in self._columns]
        self._clear()
        return taken

    def _add(self, data: bytes, begin: int) -> int:
        """Add the record at ``begin`` if it is in the range; return where the next one begins."""
        record = parse(memoryview(data), begin, len(data))
        if isinstance(record, ScanStop):
            raise RecordError(REASONS[record], offset_bytes=begin)
        if not self.next_offset <= record.queue_offset < self._offset_end:
            return begin + record.size

        payload: bytes | None = record.body
        if record.sys_flag & SYS_FLAG_COMPRESSED and Column.PAYLOAD in self._columns:
            try:
                payload = inflate(record.body, record.sys_flag, self._payload_bytes_max)
            except ValueError as exc:
                if not self._bad_payload_null:
                    message = f"payload at queue offset {record.queue_offset} {exc}"
                    raise RecordError(message, offset_bytes=begin) from None
                payload = None
        self._put(record, payload)
        return begin + record.size

    def _put(self, record: Record, payload: bytes | None) -> None:
        queue_topic = record.topic.decode(errors="replace")
        properties = decode_properties(record.properties)
        tag = properties.get(TAGS)
        row = {
            Column.TOPIC: properties.get(MQTT_TOPIC)
            or (queue_topic if tag is None else f"{queue_topic}/{tag}"),
            Column.QUEUE_TOPIC: queue_topic,
            Column.DEVICE: tag,
            Column.KEY: properties.get(KEYS),
            Column.PAYLOAD: payload,
            Column.STORE_TIME: _time_us(record.store_ms),
            Column.BORN_TIME: _time_us(record.born_ms),
            Column.BROKER: self._broker,
            Column.QUEUE_ID: record.queue_id,
            Column.QUEUE_OFFSET: record.queue_offset,
            Column.PROPERTIES: properties,
            Column.QOS: properties.get(MQTT_QOS),
            Column.RETAIN: properties.get(MQTT_RETAIN),
            Column.CLIENT_ID: properties.get(MQTT_CLIENT_ID),
            Column.MQTT_PROPERTIES: properties.get(MQTT_PROPERTIES),
        }
        for column in self._columns:
            value = row[column]
            self._values[column].append(value)
            self.data_bytes += _data_bytes(value)
        self.rows += 1
        self.next_offset = record.queue_offset + 1


def inflate(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """Return the body inflated; ValueError names its fault."""
    kind = sys_flag >> 8 & 7
    if kind not in (0, 3):
        name = {1: "LZ4", 2: "ZSTD"}.get(kind, f"type {kind}")
        raise ValueError(f"is compressed with {name}; only zlib can be read")
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed distinguishes "exactly as much" from "more".
        payload = inflater.decompress(body, bytes_max + 1)
    except zlib.error as exc:
        raise ValueError(f"cannot be inflated: {exc}") from None
    if len(payload) > bytes_max:
        raise ValueError(f"inflates to more than {bytes_max} bytes")
    if not inflater.eof:
        raise ValueError("cannot be inflated: it is cut short")
    return payload


def _time_us(time_ms: int) -> int | None:
    return time_ms * 1000 if 0 <= time_ms <= TIME_MS_MAX else None


def _data_bytes(value: object) -> int:
    """Return how many bytes a value adds to the variable-length data of a batch."""
    match value:
        case bytes():
            return len(value)
        case str():
            return len(value.encode())
        case dict():
            return sum(len(name.encode()) + len(text.encode()) for name, text in value.items())
        case _:
            return 0


def _buffers(column: Column, values: list[object]) -> ColumnBuffers:
    nulls = sum(value is None for value in values)
    validity = _bitmap([value is not None for value in values]) if nulls else None
    if column is Column.PROPERTIES:
        maps = [value for value in values if isinstance(value, dict)]
        names = [name for properties in maps for name in properties]
        texts = [text for properties in maps for text in properties.values()]
        return nulls, [validity, _offsets(maps), *_texts(names), *_texts(texts)]
    if column in (Column.STORE_TIME, Column.BORN_TIME, Column.QUEUE_OFFSET):
        return nulls, [validity, _fixed("q", values)]
    if column is Column.QUEUE_ID:
        return nulls, [validity, _fixed("i", values)]
    return nulls, [validity, *_texts(values)]


def _fixed(typecode: str, values: Sequence[object]) -> bytes:
    return array(typecode, [value if isinstance(value, int) else 0 for value in values]).tobytes()


def _texts(values: Sequence[object]) -> list[bytes]:
    parts = [
        value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
        for value in values
    ]
    return [_offsets(parts), b"".join(parts)]


def _offsets(parts: Sequence[Sequence[object] | dict[str, str]]) -> bytes:
    ends = array("i", [0])
    for part in parts:
        ends.append(ends[-1] + len(part))
    return ends.tobytes()


def _bitmap(valid: list[bool]) -> bytes:
    bits = bytearray((len(valid) + 7) // 8)
    for i, is_valid in enumerate(valid):
        bits[i >> 3] |= is_valid << (i & 7)
    return bytes(bits)
