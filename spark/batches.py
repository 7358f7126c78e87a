"""Column buffers -> Arrow record batches of a constant schema, optionally with payload fields.

Owns: the Arrow schema of each layout, the count of malformed payloads. Must not touch: pyspark,
sockets. Spark requires the first batch to have exactly the declared schema, so types and
nullability are those that Spark derives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from motelog.spark.arrow import ColumnBuffers
from motelog.spark.columns import DECODED, Column
from motelog.spark.layout import Beside, Layout
from motelog.spark.payload_columns import NodeBuffers, PayloadColumns
from motelog.spark.payload_fields import Field, Kind, PayloadFormat, numbered
from motelog.spark.wanted import WANT_ALL, Wanted

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
    Column.QOS: pa.int32(),
    Column.RETAIN: pa.bool_(),
}
#: Columns that the decoder returns as text of properties, and that are converted.
_DECODED: dict[Column, Any] = {**_TYPES, Column.QOS: pa.string(), Column.RETAIN: pa.string()}
#: Columns derived from another one: the members of its JSON.
_OF_MQTT = {Column.CONTENT_TYPE: "contentType", Column.RESPONSE_TOPIC: "responseTopic"}
#: Columns that need other columns.
_MADE_OF = {Column.RETAIN: Column.QOS, **dict.fromkeys(_OF_MQTT, Column.MQTT_PROPERTIES)}

_BESIDE = {Beside.MALFORMED: pa.string(), Beside.PAYLOAD: pa.binary()}
_KINDS: dict[Kind, Any] = {
    Kind.STRING: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.TIMESTAMP: _TIME,
    Kind.DATE: pa.date32(),
    Kind.BINARY: pa.binary(),
}


@cache
def arrow_schema(layout: Layout) -> Any:
    """Return the Arrow schema of a layout."""
    return pa.schema([_arrow_field(place) for place in layout])


def _arrow_field(place: Column | Field | Beside) -> Any:
    match place:
        case Column():
            return pa.field(place.label, _TYPES.get(place, pa.string()))
        case Field():
            return pa.field(place.name, arrow_type(place))
        case Beside():
            return pa.field(place.value, _BESIDE[place])


def arrow_type(field: Field) -> Any:
    """Return the Arrow type of a payload's field, as in Spark."""
    match field.kind:
        case Kind.STRUCT:
            return pa.struct([pa.field(child.name, arrow_type(child)) for child in field.children])
        case Kind.LIST:
            return pa.list_(pa.field("element", arrow_type(field.children[0])))
        case Kind.DECIMAL:
            return pa.decimal128(field.precision, field.scale)
        case kind:
            return _KINDS[kind]


class Batches:
    """Makes batches of one layout from the decoder's buffers; counts malformed payloads."""

    def __init__(
        self,
        layout: Layout,
        wanted: Wanted = WANT_ALL,
        payload_format: PayloadFormat | None = None,
    ) -> None:
        self._layout = layout
        self._schema = arrow_schema(layout)
        own = tuple(place for place in layout if isinstance(place, Column))
        self._is_typed = payload_format is not None and len(own) < len(layout)
        self._wanted = wanted
        self._made = [column for column in own if column in _MADE_OF or column is Column.QOS]
        needed = (
            *(column for column in own if column in DECODED),
            *wanted.columns,
            *((Column.PAYLOAD,) if self._is_typed else ()),
            *(_MADE_OF[column] for column in self._made if column in _MADE_OF),
        )
        #: The columns to request from the decoder.
        self.columns = tuple(dict.fromkeys(needed))
        fields = [place for place in layout if isinstance(place, Field)]
        self._nodes = numbered(fields)
        if payload_format is not None:
            self._parser = PayloadColumns(payload_format, self._nodes)
        self.malformed = 0
        self.first_reason: str | None = None

    def made_of(self, rows: int, taken: Sequence[ColumnBuffers]) -> Iterator[Any]:
        """Yield the rows as one RecordBatch, or as several if payloads have very many values."""
        decoded = {
            column: _array(_DECODED.get(column, pa.string()), rows, nulls, buffers)
            for column, (nulls, buffers) in zip(self.columns, taken, strict=True)
        }
        mask = self._mask(decoded)
        if mask is not None:
            decoded = {column: array.filter(mask) for column, array in decoded.items()}
            rows = mask.true_count
            if not rows:
                return
        if self._made:
            decoded.update(_derived(decoded, self._made))
        if not self._is_typed:
            arrays = [decoded[column] for column in self._layout]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            return
        payloads = decoded[Column.PAYLOAD]
        payloads = (payloads.null_count, payloads.buffers())
        begin = 0
        while begin < rows:
            end = self._parser.parse(payloads, begin, rows)
            slices = {column: array.slice(begin, end - begin) for column, array in decoded.items()}
            yield self._typed(end - begin, slices)
            begin = end

    def _mask(self, decoded: dict[Column, Any]) -> Any:
        """Return the mask of selected rows; None: all."""
        masks = []
        if tags := self._wanted.tags_wanted:
            masks.append(pc.is_in(decoded[Column.DEVICE], pa.array(tags, pa.string())))
        if pattern := self._wanted.topic_pattern:
            masks.append(pc.match_substring_regex(decoded[Column.TOPIC], f"^(?:{pattern})$"))
        return reduce(pc.and_, masks) if masks else None

    def _typed(self, rows: int, decoded: dict[Column, Any]) -> Any:
        nodes, faults = self._parser.take()
        self.malformed += len(faults)
        if faults and self.first_reason is None:
            self.first_reason = faults[0][1]
        number = 1
        arrays = []
        for place in self._layout:
            match place:
                case Column():
                    arrays.append(decoded[place])
                case Field():
                    arrays.append(self._field(number, nodes))
                    number += 1
                case Beside.MALFORMED:
                    arrays.append(_reasons(rows, faults))
                case Beside.PAYLOAD:
                    arrays.append(_kept(rows, faults, decoded[Column.PAYLOAD]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _field(self, number: int, taken: Sequence[NodeBuffers]) -> Any:
        node = self._nodes[number]
        length, (nulls, buffers) = taken[number - 1]
        children = [self._field(node.first + i, taken) for i in range(len(node.field.children))]
        return pa.Array.from_buffers(
            arrow_type(node.field),
            length,
            [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers],
            null_count=nulls,
            children=children,
        )


def _derived(decoded: dict[Column, Any], wanted: Sequence[Column]) -> dict[Column, Any]:
    """Return the columns that are derived from the decoder's.

    A native producer's property that is not a valid level or JSON becomes null.
    """
    made: dict[Column, Any] = {}
    if Column.QOS in decoded:
        made[Column.QOS] = qos = pc.index_in(decoded[Column.QOS], _levels())
        if Column.RETAIN in wanted:
            is_set = pc.fill_null(pc.equal(decoded[Column.RETAIN], "1"), False)
            made[Column.RETAIN] = pc.if_else(qos.is_valid(), is_set, None)
    columns = [column for column in wanted if column in _OF_MQTT]
    if columns:
        members = _strings_in(
            decoded[Column.MQTT_PROPERTIES], [_OF_MQTT[column] for column in columns]
        )
        made.update(zip(columns, members, strict=True))
    return made


@cache
def _levels() -> Any:
    # Not made at the import: pyarrow imports pandas for the first array that it makes.
    return pa.array(["0", "1", "2"], pa.string())


def _strings_in(texts: Any, names: Sequence[str]) -> list[Any]:
    """Return these members of JSON objects; null if one is not a string or there is no object."""
    is_there = texts.is_valid()
    found = texts.drop_null()
    nodes = numbered([Field(name, Kind.STRING) for name in names])
    parser = PayloadColumns("json", nodes, batch_values_max=len(nodes) * len(found) + 1)
    parser.parse((found.null_count, found.buffers()), 0, len(found))
    taken, _ = parser.take()
    places = pc.subtract(pc.cumulative_sum(pc.cast(is_there, pa.int32())), 1)
    places = pc.if_else(is_there, places, None)
    return [
        _array(pa.string(), length, nulls, buffers).take(places)
        for length, (nulls, buffers) in taken
    ]


def _reasons(rows: int, faults: Sequence[tuple[int, str]]) -> Any:
    if not faults:
        return pa.nulls(rows, pa.string())
    reasons: list[str | None] = [None] * rows
    for row, reason in faults:
        reasons[row] = reason
    return pa.array(reasons, pa.string())


def _kept(rows: int, faults: Sequence[tuple[int, str]], payloads: Any) -> Any:
    """Return the payloads of malformed rows, null for the others."""
    if not faults:
        return pa.nulls(rows, pa.binary())
    places: list[int | None] = [None] * rows
    for row, _ in faults:
        places[row] = row
    return payloads.take(pa.array(places, pa.int64()))


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
