"""Column buffers -> Arrow record batches of one constant schema.

Owns: the Arrow schema of each choice of columns. Must not touch: pyspark, sockets. Spark requires
the first batch to have exactly the declared schema, so types and nullability are those that Spark
derives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from motelog.spark.arrow import ColumnBuffers
from motelog.spark.columns import Column

_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())
_PAIR = pa.struct([_MAP.key_field, _MAP.item_field])
_TYPES: dict[Column, Any] = {
    Column.PAYLOAD: pa.binary(),
    Column.STORE_TIME: _TIME,
    Column.BORN_TIME: _TIME,
    Column.QUEUE_ID: pa.int32(),
    Column.QUEUE_OFFSET: pa.int64(),
    Column.PROPERTIES: _MAP,
}


@cache
def arrow_schema(columns: tuple[Column, ...]) -> Any:
    """Return the Arrow schema of these columns."""
    return pa.schema([(column.label, _TYPES.get(column, pa.string())) for column in columns])


def record_batch(columns: tuple[Column, ...], rows: int, taken: Sequence[ColumnBuffers]) -> Any:
    """Return the buffers of ``RecordColumns.take`` as one RecordBatch; nothing is copied."""
    schema = arrow_schema(columns)
    arrays = [
        _array(field.type, rows, nulls, buffers)
        for field, (nulls, buffers) in zip(schema, taken, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: Any, rows: int, nulls: int, buffers: Sequence[Any]) -> Any:
    wrapped: list[Any] = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    if kind != _MAP:
        return pa.Array.from_buffers(kind, rows, wrapped, null_count=nulls)
    validity, offsets, *texts = wrapped
    pairs = texts[0].size // 4 - 1
    names = pa.Array.from_buffers(pa.string(), pairs, [None, *texts[:2]], null_count=0)
    values = pa.Array.from_buffers(pa.string(), pairs, [None, *texts[2:]], null_count=0)
    entries = pa.Array.from_buffers(_PAIR, pairs, [None], null_count=0, children=[names, values])
    return pa.Array.from_buffers(
        kind, rows, [validity, offsets], null_count=nulls, children=[entries]
    )
