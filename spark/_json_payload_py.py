"""A payload in JSON -> entries of columns: the reference for this format.

Owns: the bytes of JSON. Must not touch: pyarrow, pyspark. Spec: RFC 8259.
"""

from __future__ import annotations

import re
from typing import Final

from motelog.spark._payload_nodes_py import Fault, PayloadReader
from motelog.spark._payload_values_py import NUMBER
from motelog.spark.payload_fields import DEPTH_MAX, Kind

_SPACE: Final = b" \t\n\r"
_ESCAPES: Final = {
    b'"': b'"', b"\\": b"\\", b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r",
    b"t": b"\t",
}  # fmt: skip
_HEX: Final = re.compile(rb"\\u([0-9a-fA-F]{4})")


class JsonReader(PayloadReader):
    """Reads JSON."""

    def payload(self) -> None:
        self._skip_space()
        self._value(0, 1)
        self._skip_space()
        if self._at < len(self._data):
            raise self._wrong(Fault.BAD_FORMAT)

    def _byte(self) -> bytes:
        return self._data[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while self._byte() and self._byte() in _SPACE:
            self._at += 1

    def _value(self, number: int | None, depth: int) -> None:
        """Read the value at this position into a node; without a node it is only checked."""
        begin = self._at
        first = self._byte()
        kind = self._kind(number)
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
                self._put_text(number, text, begin)
        elif first in (b"t", b"f", b"n"):
            word = {b"t": b"true", b"f": b"false", b"n": b"null"}[first]
            if not self._data.startswith(word, begin):
                raise self._wrong(Fault.BAD_FORMAT)
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
            found = NUMBER.match(self._data, begin)
            is_number = kind is not None and kind not in (
                Kind.STRUCT, Kind.LIST, Kind.STRING, Kind.BOOLEAN, Kind.DATE, Kind.BINARY,
            )  # fmt: skip
            self._expect(number, is_number)
            if found is None:
                self._at += 1
                raise self._wrong(Fault.BAD_FORMAT)
            if number is not None:
                self._put_number(number, found, begin)
            self._at = found.end()
        else:
            raise self._wrong(Fault.BAD_FORMAT)

    def _expect(self, number: int | None, is_right: bool) -> None:
        if number is not None and not is_right:
            raise self._wrong(Fault.WRONG_TYPE, number)

    def _object(self, number: int | None, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._wrong(Fault.TOO_DEEP)
        children = self._children(number)
        seen: set[int] = set()
        self._at += 1
        self._skip_space()
        while self._byte() != b"}":
            name_at = self._at
            if self._byte() != b'"':
                raise self._wrong(Fault.BAD_FORMAT)
            child = children.get(self._string())
            if child in seen:
                raise self._wrong(Fault.TWICE, child or 0, name_at)
            if child is not None:
                seen.add(child)
            self._skip_space()
            if self._byte() != b":":
                raise self._wrong(Fault.BAD_FORMAT)
            self._at += 1
            self._skip_space()
            self._value(child, depth + 1)
            self._next_item(b"}")
        self._at += 1
        if number is not None:
            self._end_struct(number, seen)

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
            self._check_count()
            self._next_item(b"]")
        self._at += 1
        if number is not None:
            self._put(number, elements)

    def _next_item(self, end: bytes) -> None:
        """Skip a comma to the next item, or stop at the end."""
        self._skip_space()
        if self._byte() == b",":
            self._at += 1
            self._skip_space()
            if self._byte() == end:
                raise self._wrong(Fault.BAD_FORMAT)
        elif self._byte() != end:
            raise self._wrong(Fault.BAD_FORMAT)

    def _string(self) -> bytes:
        """Return the text of the string at this position, and skip it."""
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
                raise self._wrong(Fault.BAD_FORMAT)

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
            raise self._wrong(Fault.BAD_FORMAT)
        code, end = int(found[1], 16), found.end()
        if 0xD800 <= code < 0xDC00:
            low = _HEX.match(self._data, end)
            if low is None or not 0xDC00 <= int(low[1], 16) < 0xE000:
                raise self._wrong(Fault.BAD_FORMAT)
            code, end = 0x10000 + (code - 0xD800 << 10) + int(low[1], 16) - 0xDC00, low.end()
        elif 0xDC00 <= code < 0xE000:
            raise self._wrong(Fault.BAD_FORMAT)
        self._at = end
        return chr(code).encode()

    def _put_number(self, number: int, found: re.Match[bytes], at: int) -> None:
        kind = self._kind(number)
        text = found[0]
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise self._wrong(Fault.OUT_OF_RANGE, number)
            self._put_double(number, value, at)
        elif kind is Kind.DECIMAL:
            self._put_decimal(number, text, at)
        elif found[2] or found[3]:
            raise self._wrong(Fault.WRONG_TYPE, number)
        elif len(text) > 20:
            raise self._wrong(Fault.OUT_OF_RANGE, number)
        else:
            self._put_whole(number, int(text), at)
