"""A payload in MessagePack -> entries of columns: the reference for this format.

Owns: the bytes of MessagePack. Must not touch: pyarrow, pyspark.
Spec: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from motelog.spark._payload_nodes_py import Fault, PayloadReader
from motelog.spark._payload_values_py import TIME_MS_MAX, TIME_MS_MIN
from motelog.spark.payload_fields import DEPTH_MAX, Kind

#: First byte -> how the number after it is packed.
_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
#: First byte -> the kind of item, and how its size is packed.
_SIZED: Final = {
    0xC4: (bytes, ">B"), 0xC5: (bytes, ">H"), 0xC6: (bytes, ">I"),
    0xD9: (str, ">B"), 0xDA: (str, ">H"), 0xDB: (str, ">I"),
    0xDC: (list, ">H"), 0xDD: (list, ">I"), 0xDE: (dict, ">H"), 0xDF: (dict, ">I"),
}  # fmt: skip
_EXTENSIONS: Final = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_TIMESTAMP: Final = -1
_WHOLE: Final = frozenset({Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG, Kind.TIMESTAMP})
_FLOATING: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class _Text:
    """Bytes that are declared to be text."""

    data: bytes


@dataclass(frozen=True, slots=True)
class _Extension:
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Head:
    """The beginning of an array or map; its items follow."""

    kind: type
    count: int


class MsgpackReader(PayloadReader):
    """Reads MessagePack."""

    def payload(self) -> None:
        self._value(0, 1)
        if self._at < len(self._data):
            raise self._wrong(Fault.BAD_FORMAT)

    def _value(self, number: int | None, depth: int) -> None:
        """Read the value at this position into a node; without a node it is only checked."""
        begin = self._at
        item = self._item()
        if isinstance(item, _Head):
            expected = Kind.STRUCT if item.kind is dict else Kind.LIST
            if number is not None and self._kind(number) is not expected:
                raise self._wrong(Fault.WRONG_TYPE, number, begin)
            if depth > DEPTH_MAX:
                raise self._wrong(Fault.TOO_DEEP, 0, begin)
            (self._map if item.kind is dict else self._array)(number, item.count, depth)
        elif number is not None:
            self._put_item(number, item, begin)

    def _put_item(self, number: int, item: Any, at: int) -> None:
        kind = self._kind(number)
        match item:
            case None if number:
                self.put_null(number)
            case bool() if kind is Kind.BOOLEAN:
                self._put(number, item)
            case bool():
                raise self._wrong(Fault.WRONG_TYPE, number, at)
            case int() if kind in _WHOLE:
                self._put_whole(number, item, at)
            case int() | float() if kind in _FLOATING:
                self._put_double(number, float(item), at)
            case int() if kind is Kind.DECIMAL:
                self._put_decimal(number, b"%d" % item, at)
            case _Text(data):
                self._put_declared_text(number, data, at)
            case bytes() if kind is Kind.BINARY:
                self._put_text(number, item, at)
            case _Extension(number=type_number, data=data) if (
                kind is Kind.TIMESTAMP and type_number == _TIMESTAMP
            ):
                self._put_timestamp(number, data, at)
            case _:
                raise self._wrong(Fault.WRONG_TYPE, number, at)

    def _put_declared_text(self, number: int, data: bytes, at: int) -> None:
        match self._kind(number):
            case Kind.STRING:
                self._check_text(data, at)
                self._put_text(number, data, at)
            case Kind.BINARY | Kind.TIMESTAMP | Kind.DATE:
                self._put_text(number, data, at)
            case Kind.DECIMAL:
                self._put_decimal(number, data, at)
            case _:
                raise self._wrong(Fault.WRONG_TYPE, number, at)

    def _put_timestamp(self, number: int, data: bytes, at: int) -> None:
        """Add a time of 32, 64 or 96 bits, truncated to microseconds."""
        nanoseconds = 0
        match len(data):
            case 4:
                (seconds,) = struct.unpack(">I", data)
            case 8:
                (both,) = struct.unpack(">Q", data)
                nanoseconds, seconds = both >> 34, both & ((1 << 34) - 1)
            case 12:
                nanoseconds, seconds = struct.unpack(">Iq", data)
            case _:
                raise self._wrong(Fault.WRONG_TYPE, number, at)
        if nanoseconds > 999_999_999:
            raise self._wrong(Fault.WRONG_TYPE, number, at)
        if not TIME_MS_MIN <= seconds * 1000 <= TIME_MS_MAX:
            raise self._wrong(Fault.OUT_OF_RANGE, number, at)
        self._put(number, seconds * 1_000_000 + nanoseconds // 1000)

    def _map(self, number: int | None, count: int, depth: int) -> None:
        children = self._children(number)
        seen: set[int] = set()
        for _ in range(count):
            key_at = self._at
            key = self._item()
            child = children.get(key.data) if isinstance(key, _Text) else None
            if child in seen:
                raise self._wrong(Fault.TWICE, child or 0, key_at)
            if child is not None:
                seen.add(child)
            if isinstance(key, _Head):
                self._at = key_at
                self._value(None, depth + 1)
            self._value(child, depth + 1)
        if number is not None:
            self._end_struct(number, seen)

    def _array(self, number: int | None, count: int, depth: int) -> None:
        child = None if number is None else self._nodes[number].first
        for _ in range(count):
            self._value(child, depth + 1)
            self._check_count()
        if number is not None:
            self._put(number, count)

    def _item(self) -> Any:
        """Return a value, or the head of an array or map, and skip it."""
        begin = self._at
        (first,) = self._bytes(1)
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 256
        if first < 0x90:
            return _Head(dict, first & 0x0F)
        if first < 0xA0:
            return _Head(list, first & 0x0F)
        if first < 0xC0:
            return _Text(self._bytes(first & 0x1F))
        if first in _NUMBERS:
            return self._number(_NUMBERS[first])
        if first in _SIZED:
            kind, code = _SIZED[first]
            size = self._number(code)
            if kind in (list, dict):
                return _Head(kind, size)
            return self._bytes(size) if kind is bytes else _Text(self._bytes(size))
        if first in _EXTENSIONS:
            return self._extension(self._number(_EXTENSIONS[first]))
        if 0xD4 <= first <= 0xD8:
            return self._extension(1 << (first - 0xD4))
        match first:
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return first == 0xC3
        raise self._wrong(Fault.BAD_FORMAT, 0, begin)

    def _extension(self, size: int) -> _Extension:
        return _Extension(self._number(">b"), self._bytes(size))

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack(code, self._bytes(struct.calcsize(code)))
        return value

    def _bytes(self, size: int) -> bytes:
        if len(self._data) - self._at < size:
            raise self._wrong(Fault.BAD_FORMAT, 0, len(self._data))
        self._at += size
        return self._data[self._at - size : self._at]
