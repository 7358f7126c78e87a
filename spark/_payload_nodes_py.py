"""Filling the columns of a tree of fields: the part of the reference that all formats share.

Owns: how an entry, a null or a whole struct is added, the error texts for a malformed payload.
Must not touch: pyarrow, pyspark, the bytes of a payload.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Any, Final

from motelog.spark._arrow_py import ColumnBuffers
from motelog.spark._payload_values_py import (
    NUMBER,
    TIME_MS_MAX,
    TIME_MS_MIN,
    date_days,
    decimal_units,
    time_us,
)
from motelog.spark.payload_fields import DEPTH_MAX, FORMATS, Kind, Node, PayloadFormat

#: Limits of column entries: of one payload, and of a batch.
ROW_VALUES_MAX: Final = 1 << 20
BATCH_VALUES_MAX: Final = 1 << 24
# The number of a column's entries, and its buffers.
NodeBuffers = tuple[int, ColumnBuffers]


class Fault(IntEnum):
    """The fault of a payload."""

    NO_PAYLOAD = 1
    BAD_FORMAT = 2
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
    Kind.BINARY: "bytes",
}
_EXPECTED_IN_MSGPACK: Final = {
    Kind.STRUCT: "a map",
    Kind.DECIMAL: "a whole number, or a number as text",
    Kind.TIMESTAMP: "a timestamp, a time with its offset such as 2026-11-21T03:00:00Z, or"
    " milliseconds",
}
_LIMITS: Final = {Kind.BYTE: 7, Kind.SHORT: 15, Kind.INT: 31, Kind.LONG: 63}


def fault_text(payload_format: PayloadFormat, fault: int, node: Node, at: int, size: int) -> str:
    """Return the text for ``_malformed``."""
    subject = f"{node.path}: " if node.path else ""
    match Fault(fault):
        case Fault.NO_PAYLOAD:
            return "the message has no payload that can be read"
        case Fault.BAD_FORMAT if at >= size:
            return f"not {FORMATS[payload_format]}: it ends too early, after {size} bytes"
        case Fault.BAD_FORMAT:
            return f"not {FORMATS[payload_format]} at byte {at}"
        case Fault.BAD_TEXT:
            return f"text is not UTF-8 at byte {at}"
        case Fault.WRONG_TYPE:
            expected = _EXPECTED[node.field.kind]
            if payload_format == "msgpack":
                expected = _EXPECTED_IN_MSGPACK.get(node.field.kind, expected)
            return f"{subject}expected {expected} at byte {at}"
        case Fault.OUT_OF_RANGE:
            kind = node.field.kind.name.lower()
            if node.field.kind is Kind.DECIMAL:
                kind = f"decimal({node.field.precision},{node.field.scale})"
            return f"{subject}does not fit {kind} at byte {at}"
        case Fault.TWICE:
            return f"{subject}occurs twice, again at byte {at}"
        case Fault.TOO_DEEP:
            return f"nested deeper than {DEPTH_MAX} at byte {at}"
        case Fault.TOO_MANY:
            return f"too many values, the rest from byte {at} on"


class Malformed(Exception):
    """A payload does not conform to its format or the schema."""

    def __init__(self, fault: Fault, node: int, at: int) -> None:
        self.fault = fault
        self.node = node
        self.at = at


class PayloadReader:
    """One payload; a subclass reads its bytes.

    Columns are lists of values. The value of a list is its length, and its elements are the child's
    values. A struct's own entry follows those of its fields.
    """

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
        """Read the payload into an entry of each top-level column; raises Malformed."""
        raise NotImplementedError

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

    def _end_struct(self, number: int, seen: set[int]) -> None:
        """Add a struct; its missing fields are null."""
        node = self._nodes[number]
        for child in range(node.first, node.first + len(node.field.children)):
            if child not in seen:
                self.put_null(child)
        self._put(number, True)

    def _kind(self, number: int | None) -> Kind | None:
        return None if number is None else self._nodes[number].field.kind

    def _children(self, number: int | None) -> dict[bytes, int]:
        """Return a struct's field names with their nodes; empty without a node."""
        if number is None:
            return {}
        node = self._nodes[number]
        return {child.name.encode(): node.first + i for i, child in enumerate(node.field.children)}

    def _wrong(self, fault: Fault, node: int = 0, at: int | None = None) -> Malformed:
        return Malformed(fault, node, self._at if at is None else at)

    def _check_count(self) -> None:
        if self.count > self._values_max:
            raise self._wrong(Fault.TOO_MANY)

    def _check_text(self, text: bytes, at: int) -> None:
        try:
            text.decode()
        except UnicodeDecodeError:
            raise self._wrong(Fault.BAD_TEXT, 0, at) from None

    def _put_text(self, number: int, text: bytes, at: int) -> None:
        """Add text to a string or binary column, or parsed to a timestamp or date."""
        value: Any = text
        match self._kind(number):
            case Kind.DATE:
                value = date_days(text)
            case Kind.TIMESTAMP:
                value = time_us(text)
        if value is None:
            raise self._wrong(Fault.WRONG_TYPE, number, at)
        self._put(number, value)

    def _put_whole(self, number: int, whole: int, at: int) -> None:
        """Add an integer to a tinyint ... bigint column, or as milliseconds to a timestamp."""
        kind = self._nodes[number].field.kind
        if kind is Kind.TIMESTAMP:
            low, high = TIME_MS_MIN, TIME_MS_MAX
        else:
            low, high = -(1 << _LIMITS[kind]), (1 << _LIMITS[kind]) - 1
        if not low <= whole <= high:
            raise self._wrong(Fault.OUT_OF_RANGE, number, at)
        self._put(number, whole * 1000 if kind is Kind.TIMESTAMP else whole)

    def _put_double(self, number: int, value: float, at: int) -> None:
        """Add a number to a float or double; it must not become infinite by the conversion."""
        narrow = value
        if self._kind(number) is Kind.FLOAT:
            narrow = array("f", [value])[0]
        if abs(narrow) == float("inf") != abs(value):
            raise self._wrong(Fault.OUT_OF_RANGE, number, at)
        self._put(number, narrow)

    def _put_decimal(self, number: int, text: bytes, at: int) -> None:
        """Add the number in a text."""
        field = self._nodes[number].field
        found = NUMBER.fullmatch(text)
        if found is None:
            raise self._wrong(Fault.WRONG_TYPE, number, at)
        units = decimal_units(found, field.precision, field.scale)
        if units is None:
            raise self._wrong(Fault.OUT_OF_RANGE, number, at)
        self._put(number, units)


_CODES: Final = {
    Kind.BYTE: "b", Kind.SHORT: "h", Kind.INT: "i", Kind.LONG: "q", Kind.FLOAT: "f",
    Kind.DOUBLE: "d", Kind.TIMESTAMP: "q", Kind.DATE: "i",
}  # fmt: skip


def buffers_of(kind: Kind, values: list[Any]) -> NodeBuffers:
    nulls = sum(value is None for value in values)
    buffers: list[Any] = [_bitmap([value is not None for value in values]) if nulls else None]
    match kind:
        case Kind.STRUCT:
            pass
        case Kind.LIST:
            buffers.append(_offsets([value or 0 for value in values]))
        case Kind.STRING | Kind.BINARY:
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
