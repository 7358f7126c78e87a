"""Parser of payloads into typed Arrow column buffers: compiled, or the reference.

Owns: which of the two is used, and the documentation of both. Must not touch: pyarrow, pyspark.

``PayloadColumns(payload_format, nodes, *, row_values_max, batch_values_max)`` takes the nodes of
``payload_fields.numbered``.

- ``parse(payloads, begin, end) -> int`` reads rows [begin, end) of a payload column as
  ``RecordColumns.take`` gives it: one entry for each, however the payload looks. It returns the row
  before which it stopped: ``end``, or less when ``batch_values_max`` entries are held.
- ``take() -> (columns, faults)`` hands over each node's length and buffers, in the order of their
  numbers and without the payload's own, and (row, reason) of each malformed payload: all its fields
  are null. Rows count from the last ``take``.
- ``rows``: how much it holds.

A payload is one JSON object (RFC 8259, UTF-8), one map in MessagePack, or one of Sparkplug B, else
it is malformed as a whole: nothing of it is taken. Names are compared exactly. A field that is
missing or null is null. A name that no field has is left out, after its value was checked as far as
the format goes; one of a field must not come twice.

                        JSON                            MessagePack
    string              a string                        str in UTF-8
    boolean             true, false                     true, false
    tinyint to bigint   a number without fraction       an int in range
                        or exponent, in range
    float, double       a number, rounded to the        an int or float, the same; infinities and
                        nearest, not to infinity        NaN as they are
    decimal(p, s)       a number that fits without      an int, or a str with a number as in JSON
                        rounding
    timestamp           a string as RFC 3339 has it,    the timestamp extension, or as in JSON
                        cut to microseconds, or whole
                        milliseconds
    date                a string such as 2026-11-21     the same
    binary              not at all                      bin, or str of whatever bytes
    struct, array       an object, an array             a map, an array

Both are at most 64 levels deep. Of Sparkplug B the fields are those of ``sparkplug_fields``, or
some of them; which of a metric's goes where is said in ``_sparkplug_payload_py``.

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
