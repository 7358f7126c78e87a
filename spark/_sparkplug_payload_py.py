"""A Sparkplug B payload -> entries of columns: the reference for this format.

Owns: the Protocol Buffers encoding as far as Sparkplug needs it, the column of each field.
Must not touch: pyarrow, pyspark. Spec: Eclipse Sparkplug 3.0.0, chapter 6.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from motelog.spark._payload_nodes_py import Fault, PayloadReader
from motelog.spark.payload_fields import Kind

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
#: Field number -> its encoding, and its column.
_PAYLOAD: Final = {
    1: (_VARINT, "timestamp"),
    2: (_BYTES, "metrics"),
    3: (_VARINT, "seq"),
    4: (_BYTES, "uuid"),
    5: (_BYTES, "body"),
}
_METRIC: Final = {
    1: (_BYTES, "name"),
    2: (_VARINT, "alias"),
    3: (_VARINT, "timestamp"),
    4: (_VARINT, "datatype"),
    5: (_VARINT, "is_historical"),
    6: (_VARINT, None),  # is_transient
    7: (_VARINT, None),  # is_null
    8: (_BYTES, None),  # metadata
    9: (_BYTES, None),  # properties
    10: (_VARINT, "long_value"),  # int_value
    11: (_VARINT, "long_value"),
    12: (_FIXED32, "double_value"),  # float_value
    13: (_FIXED64, "double_value"),
    14: (_VARINT, "boolean_value"),
    15: (_BYTES, "string_value"),
    16: (_BYTES, "bytes_value"),
    17: (_BYTES, "bytes_value"),  # dataset_value
    18: (_BYTES, "bytes_value"),  # template_value
    19: (_BYTES, "bytes_value"),  # extension_value
}
_METRICS: Final = 2
_DATATYPE: Final = 4
_IS_NULL: Final = 7
_INT_VALUE: Final = 10
_FIRST_VALUE: Final = 10
#: The signed datatypes that are sent as int_value -> their bits.
_SIGNED: Final = {1: 8, 2: 16, 3: 32}


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire: int
    at: int
    value: int | bytes


class SparkplugReader(PayloadReader):
    """Reads Sparkplug B."""

    def payload(self) -> None:
        metrics = self._children(0).get(b"metrics")
        if metrics is not None and not self._has_metrics(metrics):
            raise self._wrong(Fault.WRONG_TYPE, metrics)
        seen = set() if metrics is None else {metrics}
        count = 0
        while self._at < len(self._data):
            field = self._next_field(len(self._data), _PAYLOAD)
            if field.number != _METRICS:
                self._put_field(0, seen, field, _PAYLOAD)
            elif metrics is not None and isinstance(field.value, bytes):
                end = self._at
                self._at -= len(field.value)
                self._metric(self._nodes[metrics].first, end)
                count += 1
                self._check_count()
        if metrics is not None:
            self._put(metrics, count)
        self._end_struct(0, seen)

    def _has_metrics(self, metrics: int) -> bool:
        node = self._nodes[metrics]
        return node.field.kind is Kind.LIST and node.field.children[0].kind is Kind.STRUCT

    def _metric(self, number: int, end: int) -> None:
        seen: set[int] = set()
        datatype = 0
        is_null = False
        value: _Field | None = None
        while self._at < end:
            field = self._next_field(end, _METRIC)
            if field.number in _METRIC and field.number >= _FIRST_VALUE:
                if value is not None:
                    raise self._wrong(Fault.BAD_FORMAT, 0, field.at)
                value = field
                continue
            if field.number == _DATATYPE and isinstance(field.value, int):
                datatype = field.value
            elif field.number == _IS_NULL:
                is_null = field.value != 0
            self._put_field(number, seen, field, _METRIC)
        # Last, since the meaning of int_value depends on the datatype.
        if value is not None and not is_null:
            if value.number == _INT_VALUE and isinstance(value.value, int):
                whole = _signed(value.value & 0xFFFFFFFF, _SIGNED.get(datatype, 33))
                value = _Field(value.number, value.wire, value.at, whole)
            self._put_field(number, seen, value, _METRIC)
        self._end_struct(number, seen)

    def _put_field(
        self,
        parent: int,
        seen: set[int],
        field: _Field,
        known: Mapping[int, tuple[int, str | None]],
    ) -> None:
        """Add a field's value to its column, if it has one."""
        _, name = known.get(field.number, (0, None))
        number = None if name is None else self._children(parent).get(name.encode())
        if number is None:
            return
        if number in seen:
            raise self._wrong(Fault.TWICE, number, field.at)
        seen.add(number)
        kind = self._kind(number)
        value = field.value
        match value:
            case bytes() if field.wire != _BYTES and kind is Kind.DOUBLE:
                (double,) = struct.unpack("<f" if field.wire == _FIXED32 else "<d", value)
                self._put_double(number, double, field.at)
            case bytes() if field.wire == _BYTES and kind in (Kind.STRING, Kind.BINARY):
                if kind is Kind.STRING:
                    self._check_text(value, field.at)
                self._put_text(number, value, field.at)
            case int() if kind is Kind.LONG:
                self._put_whole(number, _signed(value, 64), field.at)
            case int() if kind in (Kind.INT, Kind.TIMESTAMP):
                self._put_whole(number, value, field.at)
            case int() if kind is Kind.BOOLEAN:
                self._put(number, value != 0)
            case _:
                raise self._wrong(Fault.WRONG_TYPE, number, field.at)

    def _next_field(self, end: int, known: Mapping[int, tuple[int, str | None]]) -> _Field:
        """Return the field at this position and skip it; a known one must have its encoding."""
        begin = self._at
        tag = self._varint(end)
        number, wire = tag >> 3, tag & 7
        if number == 0 or tag >> 32 or wire != known.get(number, (wire, None))[0]:
            raise self._wrong(Fault.BAD_FORMAT, 0, begin)
        match wire:
            case 0:
                return _Field(number, wire, begin, self._varint(end))
            case 1 | 5:
                size = 8 if wire == _FIXED64 else 4
            case 2:
                size = self._varint(end)
            case _:
                raise self._wrong(Fault.BAD_FORMAT, 0, begin)
        if end - self._at < size:
            raise self._wrong(Fault.BAD_FORMAT, 0, end)
        self._at += size
        return _Field(number, wire, begin, self._data[self._at - size : self._at])

    def _varint(self, end: int) -> int:
        """Return a number of at most ten bytes, truncated to 64 bits."""
        begin = self._at
        value = 0
        for shift in range(0, 70, 7):
            if self._at >= end:
                raise self._wrong(Fault.BAD_FORMAT, 0, end)
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF
        raise self._wrong(Fault.BAD_FORMAT, 0, begin)


def _signed(value: int, bits: int) -> int:
    """Return the low bits interpreted as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
