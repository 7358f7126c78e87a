"""Parser of JSON payloads into typed Arrow column buffers: compiled, or the reference.

Owns: which of the two is used, and the documentation of both. Must not touch: pyarrow, pyspark.

``JsonColumns(nodes, *, row_values_max, batch_values_max)`` takes the nodes of
``payload_fields.numbered``.

- ``parse(payloads, begin, end) -> int`` reads rows [begin, end) of a payload column as
  ``RecordColumns.take`` gives it: one entry for each, however the payload looks. It returns the row
  before which it stopped: ``end``, or less when ``batch_values_max`` entries are held.
- ``take() -> (columns, faults)`` hands over each node's length and buffers, in the order of their
  numbers and without the payload's own, and (row, reason) of each malformed payload: all its fields
  are null. Rows count from the last ``take``.
- ``rows``: how much it holds.

A payload is one JSON object (RFC 8259, UTF-8, at most 64 levels), else it is malformed as a whole:
nothing of it is taken. Names are compared exactly. A field that is missing or null is null. A name
that no field has is checked and left out; one of a field must not come twice.

    string              a string
    boolean             true, false
    tinyint to bigint   a number without fraction or exponent, in range
    float, double       a number, rounded to the nearest, not to infinity
    decimal(p, s)       a number that fits without rounding
    timestamp           a string as RFC 3339 has it, cut to microseconds, or whole milliseconds
    date                a string such as 2026-11-21
    struct, array       an object, an array

More than ``row_values_max`` entries from one payload are malformed: a short array of empty objects
would fill memory with their nulls. A parser belongs to one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from motelog.core import kernels
from motelog.spark._json_columns_py import NodeBuffers

COMPILED: Final = kernels.COMPILED

if TYPE_CHECKING:
    from motelog.spark._json_columns import JsonColumns
else:
    JsonColumns = kernels.kernel_of(__name__).JsonColumns

__all__ = ["COMPILED", "JsonColumns", "NodeBuffers"]
