"""Decoder of pulled RocketMQ records into Arrow column buffers: compiled, or the reference.

Owns: which of the two is used, and the documentation of both. Must not touch: pyarrow, pyspark.

    pull body:    record record record ...          (layout: docs/store-format.md)
    RecordColumns: one growing set of buffers per chosen column, taken ~10,000 rows at a time

``RecordColumns(columns, *, broker, offset_begin, offset_end, payload_bytes_max,
bad_payload_null)`` holds rows of the queue range [offset_begin, offset_end). Records outside of it,
and records at or before the last one added, are skipped, so each row comes once even if pulls
overlap.

- ``append(records, begin, *, rows_max, bytes_max) -> int`` adds records from byte ``begin`` on and
  returns the first byte that it did not use: ``len(records)``, or less when it holds ``rows_max``
  rows or ``bytes_max`` bytes of variable-length data. Raises RecordError at bytes that are not a
  record; rows before it are kept.
- ``take() -> list[ColumnBuffers]`` returns the buffers, in the order of ``columns``, and empties
  the builder.
- ``rows``, ``data_bytes``: its size. ``next_offset``: the queue offset after the last row.

In text that is not UTF-8, U+FFFD replaces the wrong bytes, as in Java. A compressed payload (zlib)
is inflated up to ``payload_bytes_max``. One that cannot be inflated is a RecordError, or null with
``bad_payload_null``. A builder belongs to one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels
from motelog.spark._arrow_py import ColumnBuffers

if TYPE_CHECKING:
    from motelog.spark._arrow import RecordColumns
else:
    RecordColumns = kernels.kernel_of(__name__).RecordColumns

__all__ = ["ColumnBuffers", "RecordColumns"]
