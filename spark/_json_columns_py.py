"""Reference of the JSON parser: payloads -> Arrow buffers of typed columns, in plain Python.

Owns: what the parser means, the words for what is wrong with a payload. Must not touch: pyarrow,
pyspark, sockets. Spec: RFC 8259, RFC 3339; ``json_columns.py`` says which value a field takes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from typing import Any, Final

from motelog.spark._arrow_py import ColumnBuffers
from motelog.spark.payload_fields import DEPTH_MAX, Kind, Node

#: Entries of all columns that one payload may make, and after which a batch ends.
ROW_VALUES_MAX: Final = 1 << 20
BATCH_VALUES_MAX: Final = 1 << 24
#: Milliseconds of 0001-01-01 and of the end of 9999.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
# How many entries a column has, and its buffers.
NodeBuffers = tuple[int, ColumnBuffers]


class Fault(IntEnum):
    """What is wrong with a payload."""

    NO_PAYLOAD = 1
    BAD_JSON = 2
    BAD_TEXT = 3
    WRONG_TYPE = 4
    OUT_OF_RANGE = 5
    TWICE = 6
    TOO_DEEP = 7
    TOO_MANY = 8


_EXPECTED: Final = {
    Kind.STRUCT: "an object",
    Kind.LIST: "an array",
    Kind.STRING: "a string",
    Kind.BOOLEAN: "true or false",
    Kind.BYTE: "a whole number",
    Kind.SHORT: "a whole number",
    Kind.INT: "a whole number",
    Kind.LONG: "a whole number",
    Kind.FLOAT: "a number",
    Kind.DOUBLE: "a number",
    Kind.DECIMAL: "a number",
    Kind.TIMESTAMP: "a time with its offset such as 2026-11-21T03:00:00Z, or milliseconds",
    Kind.DATE: "a date such as 2026-11-21",
}
_LIMITS: Final = {Kind.BYTE: 7, Kind.SHORT: 15, Kind.INT: 31, Kind.LONG: 63}
_SPACE: Final = b" \t\n\r"
_NUMBER: Final = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPES: Final = {
    b'"': b'"', b"\\": b"\\", b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r",
    b"t": b"\t",
}  # fmt: skip
_HEX: Final = re.compile(rb"\\u([0-9a-fA-F]{4})")
_TIME: Final = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]{1,9}))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_DATE: Final = re.compile(rb"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def fault_text(fault: int, node: Node, at: int, size: int) -> str:
    """Return the sentence of ``_malformed``."""
    subject = f"{node.path}: " if node.path else ""
    match Fault(fault):
        case Fault.NO_PAYLOAD:
            return "the message has no payload that can be read"
        case Fault.BAD_JSON if at >= size:
            return f"not JSON: it ends too early, after {size} bytes"
        case Fault.BAD_JSON:
            return f"not JSON at byte {at}"
        case Fault.BAD_TEXT:
            return f"text is not UTF-8 at byte {at}"
        case Fault.WRONG_TYPE:
            return f"{subject}expected {_EXPECTED[node.field.kind]} at byte {at}"
        case Fault.OUT_OF_RANGE:
            kind = node.field.kind.name.lower()
            if node.field.kind is Kind.DECIMAL:
                kind = f"decimal({node.field.precision},{node.field.scale})"
            return f"{subject}does not fit {kind} at byte {at}"
        case Fault.TWICE:
            return f"{subject}is there twice, again at byte {at}"
        case Fault.TOO_DEEP:
            return f"nested deeper than {DEPTH_MAX} at byte {at}"
        case Fault.TOO_MANY:
            return f"too many values, the rest from byte {at} on"


class _Malformed(Exception):
    def __init__(self, fault: Fault, node: int, at: int) -> None:
        self.fault = fault
        self.node = node
        self.at = at


class JsonColumns:
    """Typed columns of payloads; ``json_columns.py`` has the documentation."""

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        row_values_max: int = ROW_VALUES_MAX,
        batch_values_max: int = BATCH_VALUES_MAX,
    ) -> None:
        self._nodes = list(nodes)
        self._row_values_max = row_values_max
        self._batch_values_max = batch_values_max
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._values: list[list[Any]] = [[] for _ in self._nodes]
        self._faults: list[tuple[int, str]] = []
        self._count = 0

    def parse(self, payloads: ColumnBuffers, begin: int, end: int) -> int:
        valid, offsets, data = payloads[1]
        places = array("i", bytes(offsets or b""))
        content = bytes(data or b"")
        bits = None if valid is None else bytes(valid)
        if not 0 <= begin <= end < max(1, len(places)):
            raise ValueError(f"rows [{begin}, {end}) are not in the payloads")
        for row in range(begin, end):
            if self._count >= self._batch_values_max:
                return row
            is_null = bits is not None and not bits[row >> 3] >> (row & 7) & 1
            self._add(None if is_null else content[places[row] : places[row + 1]])
        return end

    def take(self) -> tuple[list[NodeBuffers], list[tuple[int, str]]]:
        taken = [
            _buffers(node.field.kind, values)
            for node, values in zip(self._nodes[1:], self._values[1:], strict=True)
        ]
        faults = self._faults
        self._clear()
        return taken, faults

    def _add(self, payload: bytes | None) -> None:
        lengths = [len(values) for values in self._values]
        reader = _Reader(self._nodes, self._values, payload or b"", self._row_values_max)
        try:
            if payload is None:
                raise _Malformed(Fault.NO_PAYLOAD, 0, 0)
            reader.payload()
        except _Malformed as wrong:
            for values, length in zip(self._values, lengths, strict=True):
                del values[length:]
            reader.put_null(0)
            node = self._nodes[wrong.node]
            text = fault_text(wrong.fault, node, wrong.at, len(payload or b""))
            self._faults.append((self.rows, text))
        self._count += reader.count
        self.rows += 1


class _Reader:
    """One payload. A list holds its length as value, its elements are the child's values."""

    def __init__(
        self, nodes: list[Node], values: list[list[Any]], data: bytes, values_max: int
    ) -> None:
        self._nodes = nodes
        self._values = values
        self._data = data
        self._values_max = values_max
        self._at = 0
        self.count = 0

    def payload(self) -> None:
        self._skip_space()
        self._value(0, 1)
        self._skip_space()
        if self._at < len(self._data):
            raise self._wrong(Fault.BAD_JSON)

    def put_null(self, number: int) -> None:
        """Add a null, also to all fields of a struct; a null list has no elements."""
        self._put(number, None)
        node = self._nodes[number]
        if node.field.kind is Kind.STRUCT:
            for child in range(node.first, node.first + len(node.field.children)):
                self.put_null(child)

    def _put(self, number: int, value: Any) -> None:
        self._values[number].append(value)
        self.count += 1

    def _wrong(self, fault: Fault, node: int = 0, at: int | None = None) -> _Malformed:
        return _Malformed(fault, node, self._at if at is None else at)

    def _byte(self) -> bytes:
        return self._data[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while self._byte() and self._byte() in _SPACE:
            self._at += 1

    def _value(self, number: int | None, depth: int) -> None:
        """Read the value at this place into a node; without one it is only checked."""
        begin = self._at
        first = self._byte()
        node = None if number is None else self._nodes[number]
        kind = None if node is None else node.field.kind
        if first == b"{":
            self._expect(number, kind is Kind.STRUCT)
            self._object(number, depth)
        elif first == b"[":
            self._expect(number, kind is Kind.LIST)
            self._array(number, depth)
        elif first == b'"':
            self._expect(number, kind in (Kind.STRING, Kind.TIMESTAMP, Kind.DATE))
            text = self._string()
            if number is not None:
                self._put(number, self._of_text(number, text, begin))
        elif first in (b"t", b"f", b"n"):
            word = {b"t": b"true", b"f": b"false", b"n": b"null"}[first]
            if not self._data.startswith(word, begin):
                raise self._wrong(Fault.BAD_JSON)
            if first == b"n":
                if number == 0:
                    raise self._wrong(Fault.WRONG_TYPE)
                if number is not None:
                    self.put_null(number)
            else:
                self._expect(number, kind is Kind.BOOLEAN)
                if number is not None:
                    self._put(number, first == b"t")
            self._at += len(word)
        elif first and first in b"-0123456789":
            found = _NUMBER.match(self._data, begin)
            is_number = kind is not None and kind not in (
                Kind.STRUCT, Kind.LIST, Kind.STRING, Kind.BOOLEAN, Kind.DATE,
            )  # fmt: skip
            self._expect(number, is_number)
            if found is None:
                self._at += 1
                raise self._wrong(Fault.BAD_JSON)
            if number is not None:
                self._put(number, self._of_number(number, found))
            self._at = found.end()
        else:
            raise self._wrong(Fault.BAD_JSON)

    def _expect(self, number: int | None, is_right: bool) -> None:
        if number is not None and not is_right:
            raise self._wrong(Fault.WRONG_TYPE, number)

    def _object(self, number: int | None, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._wrong(Fault.TOO_DEEP)
        children: dict[bytes, int] = {}
        seen: set[int] = set()
        if number is not None:
            node = self._nodes[number]
            children = {
                child.name.encode(): node.first + i for i, child in enumerate(node.field.children)
            }
        self._at += 1
        self._skip_space()
        while self._byte() != b"}":
            name_at = self._at
            if self._byte() != b'"':
                raise self._wrong(Fault.BAD_JSON)
            child = children.get(self._string())
            if child in seen:
                raise self._wrong(Fault.TWICE, child or 0, name_at)
            if child is not None:
                seen.add(child)
            self._skip_space()
            if self._byte() != b":":
                raise self._wrong(Fault.BAD_JSON)
            self._at += 1
            self._skip_space()
            self._value(child, depth + 1)
            self._next_item(b"}")
        self._at += 1
        if number is not None:
            for child in children.values():
                if child not in seen:
                    self.put_null(child)
            self._put(number, True)

    def _array(self, number: int | None, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._wrong(Fault.TOO_DEEP)
        child = None if number is None else self._nodes[number].first
        self._at += 1
        self._skip_space()
        elements = 0
        while self._byte() != b"]":
            self._value(child, depth + 1)
            elements += 1
            if self.count > self._values_max:
                raise self._wrong(Fault.TOO_MANY)
            self._next_item(b"]")
        self._at += 1
        if number is not None:
            self._put(number, elements)

    def _next_item(self, end: bytes) -> None:
        """Step over a comma to the next item, or stand at the end."""
        self._skip_space()
        if self._byte() == b",":
            self._at += 1
            self._skip_space()
            if self._byte() == end:
                raise self._wrong(Fault.BAD_JSON)
        elif self._byte() != end:
            raise self._wrong(Fault.BAD_JSON)

    def _string(self) -> bytes:
        """Return the text of the string at this place, and step over it."""
        self._at += 1
        parts = []
        while True:
            begin = self._at
            while (byte := self._byte()) and byte not in b'"\\' and 0x20 <= byte[0] < 0x80:
                self._at += 1
            parts.append(self._data[begin : self._at])
            if byte == b'"':
                self._at += 1
                return b"".join(parts)
            if byte == b"\\":
                parts.append(self._escape())
            elif byte and byte[0] >= 0x80:
                parts.append(self._character())
            else:
                raise self._wrong(Fault.BAD_JSON)

    def _character(self) -> bytes:
        for size in (2, 3, 4):
            part = self._data[self._at : self._at + size]
            try:
                part.decode()
            except UnicodeDecodeError:
                continue
            if len(part) == size:
                self._at += size
                return part
        raise self._wrong(Fault.BAD_TEXT)

    def _escape(self) -> bytes:
        simple = _ESCAPES.get(self._data[self._at + 1 : self._at + 2])
        if simple is not None:
            self._at += 2
            return simple
        found = _HEX.match(self._data, self._at)
        if found is None:
            raise self._wrong(Fault.BAD_JSON)
        code, end = int(found[1], 16), found.end()
        if 0xD800 <= code < 0xDC00:
            low = _HEX.match(self._data, end)
            if low is None or not 0xDC00 <= int(low[1], 16) < 0xE000:
                raise self._wrong(Fault.BAD_JSON)
            code, end = 0x10000 + (code - 0xD800 << 10) + int(low[1], 16) - 0xDC00, low.end()
        elif 0xDC00 <= code < 0xE000:
            raise self._wrong(Fault.BAD_JSON)
        self._at = end
        return chr(code).encode()

    def _of_text(self, number: int, text: bytes, begin: int) -> Any:
        match self._nodes[number].field.kind:
            case Kind.DATE:
                value = date_days(text)
            case Kind.TIMESTAMP:
                value = time_us(text)
            case _:
                return text
        if value is None:
            raise self._wrong(Fault.WRONG_TYPE, number, begin)
        return value

    def _of_number(self, number: int, found: re.Match[bytes]) -> Any:
        field = self._nodes[number].field
        text = found[0]
        too_large = self._wrong(Fault.OUT_OF_RANGE, number)
        if field.kind in (Kind.FLOAT, Kind.DOUBLE):
            value = float(text)
            if field.kind is Kind.FLOAT:
                value = array("f", [value])[0]
            if value in (float("inf"), float("-inf")):
                raise too_large
            return value
        if field.kind is Kind.DECIMAL:
            units = decimal_units(found, field.precision, field.scale)
            if units is None:
                raise too_large
            return units
        if found[2] or found[3]:
            raise self._wrong(Fault.WRONG_TYPE, number)
        if len(text) > 20:
            raise too_large
        whole = int(text)
        if field.kind is Kind.TIMESTAMP:
            if not TIME_MS_MIN <= whole <= TIME_MS_MAX:
                raise too_large
            return whole * 1000
        limit = 1 << _LIMITS[field.kind]
        if not -limit <= whole < limit:
            raise too_large
        return whole


def date_days(text: bytes) -> int | None:
    """Return the days since 1970 of ``2026-11-21``; None for other texts."""
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    try:
        return date(*map(int, found.groups())).toordinal() - _EPOCH.toordinal()
    except ValueError:
        return None


def time_us(text: bytes) -> int | None:
    """Return the microseconds since 1970 of a time as RFC 3339 has it; None for other texts."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    *day_and_clock, fraction, sign, hours, minutes = found.groups()
    try:
        year, month, day, hour, minute, second = map(int, day_and_clock)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    offset_s = 0
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            return None
        offset_s = (int(hours) * 3600 + int(minutes) * 60) * (1 if sign == b"+" else -1)
    us = (moment - _EPOCH) // timedelta(microseconds=1)
    return us + int((fraction or b"0").ljust(6, b"0")[:6]) - offset_s * 1_000_000


def decimal_units(found: re.Match[bytes], precision: int, scale: int) -> int | None:
    """Return the number times 10^scale; None if that is not whole or has too many digits."""
    fraction = (found[2] or b".")[1:]
    exponent = found[3] or b"e0"
    digits_of_power = exponent.lstrip(b"eE+-0") or b"0"
    # A larger power leaves no number but zero; int() refuses thousands of digits.
    power = int(digits_of_power) if len(digits_of_power) <= 9 else 10**9
    if exponent[1:2] == b"-":
        power = -power
    significant = (found[1] + fraction).lstrip(b"0")
    digits = significant.rstrip(b"0")
    if not digits:
        return 0
    shift = power - len(fraction) + len(significant) - len(digits) + scale
    if shift < 0 or len(digits) + shift > precision:
        return None
    units = int(digits) * int(10**shift)
    return -units if found[0].startswith(b"-") else units


_CODES: Final = {
    Kind.BYTE: "b", Kind.SHORT: "h", Kind.INT: "i", Kind.LONG: "q", Kind.FLOAT: "f",
    Kind.DOUBLE: "d", Kind.TIMESTAMP: "q", Kind.DATE: "i",
}  # fmt: skip


def _buffers(kind: Kind, values: list[Any]) -> NodeBuffers:
    nulls = sum(value is None for value in values)
    buffers: list[Any] = [_bitmap([value is not None for value in values]) if nulls else None]
    match kind:
        case Kind.STRUCT:
            pass
        case Kind.LIST:
            buffers.append(_offsets([value or 0 for value in values]))
        case Kind.STRING:
            buffers.append(_offsets([len(value or b"") for value in values]))
            buffers.append(b"".join(value or b"" for value in values))
        case Kind.BOOLEAN:
            buffers.append(_bitmap([bool(value) for value in values]))
        case Kind.DECIMAL:
            buffers.append(
                b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
            )
        case _:
            buffers.append(
                array(_CODES[kind], [0 if value is None else value for value in values]).tobytes()
            )
    return len(values), (nulls, buffers)


def _offsets(lengths: list[int]) -> bytes:
    ends = array("i", [0])
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends.tobytes()


def _bitmap(set_bits: list[bool]) -> bytes:
    bits = bytearray((len(set_bits) + 7) // 8)
    for i, is_set in enumerate(set_bits):
        bits[i >> 3] |= is_set << (i & 7)
    return bytes(bits)
