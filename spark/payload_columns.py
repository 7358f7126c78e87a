"""Parser of payloads into typed Arrow column buffers: compiled, or the reference.

Owns: which of the two is used, and the documentation of both. Must not touch: pyarrow, pyspark.

``PayloadColumns(payload_format, nodes, *, row_values_max, batch_values_max)`` takes the nodes of
``payload_fields.numbered``.

- ``parse(payloads, begin, end) -> int`` reads rows [begin, end) of a payload column that
  ``RecordColumns.take`` returned: one entry for each, whatever the payload. It returns the row
  before which it stopped: ``end``, or less when it holds ``batch_values_max`` entries.
- ``take() -> (columns, faults)`` returns each node's length and buffers, in the order of their
  numbers and without the payload's own, and (row, reason) of each malformed payload, whose fields
  are all null. Rows count from the last ``take``.
- ``rows``: the number of rows that it holds.

A payload is one JSON object (RFC 8259, UTF-8), one map in MessagePack, or one payload of Sparkplug
B; otherwise it is malformed and none of it is used. Names are compared exactly. A field that is
missing or null is null. A name without a field is skipped, after its value was checked to conform
to the format; the name of a field must not occur twice.

                        JSON                            MessagePack
    string              a string                        str in UTF-8
    boolean             true, false                     true, false
    tinyint to bigint   a number without fraction       an int in range
                        or exponent, in range
    float, double       a number, rounded to the        an int or float, the same; infinities and
                        nearest, not to infinity        NaN as they are
    decimal(p, s)       a number that fits without      an int, or a str with a number as in JSON
                        rounding
    timestamp           an RFC 3339 string, cut to      the timestamp extension, or as in JSON
                        microseconds, or integer
                        milliseconds
    date                a string such as 2026-11-21     the same
    binary              not supported                   bin, or str of any bytes
    struct, array       an object, an array             a map, an array

Both are at most 64 levels deep. The fields of Sparkplug B are those of ``sparkplug_fields``, or
some of them; ``_sparkplug_payload_py`` says which field of a metric goes where.

More than ``row_values_max`` entries from one payload are malformed: a short array of empty objects
would fill memory with their nulls. A parser belongs to one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels
from motelog.spark._payload_nodes_py import NodeBuffers

if TYPE_CHECKING:
    from motelog.spark._payload_columns import PayloadColumns
else:
    PayloadColumns = kernels.kernel_of(__name__).PayloadColumns

__all__ = ["NodeBuffers", "PayloadColumns"]
