"""The columns of a query's rows, in the order of its schema.

Owns: Layout, the two columns besides a payload's fields, how a layout is read from a schema.
Must not touch: pyspark, pyarrow; schemas are passed as ``StructType.jsonValue()``.

    columns of the message ... | fields of the payload ... | _malformed | _payload

``_malformed`` is the fault of a payload, null if it is good; ``_payload`` has the bytes of a
malformed one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

from motelog.spark.columns import COLUMN_TYPES, Column, column_named, schema_ddl
from motelog.spark.errors import OptionError
from motelog.spark.options import SourceOptions, columns_named
from motelog.spark.payload_fields import (
    Field,
    FieldTypeError,
    PayloadFormat,
    fields_ddl,
    fields_of,
)
from motelog.spark.sparkplug_fields import SPARKPLUG_FIELDS, check_sparkplug_fields


class Beside(Enum):
    """The columns besides a payload's fields, by their names."""

    MALFORMED = "_malformed"
    PAYLOAD = "_payload"


Layout: TypeAlias = tuple[Column | Field | Beside, ...]

_BESIDE_TYPES: Final = {Beside.MALFORMED: "string", Beside.PAYLOAD: "binary"}
_BESIDE: Final = {beside.value: beside for beside in Beside}
_TYPES: Final = {"integer": "int", "long": "bigint"}


def schema_of(options: SourceOptions) -> str:
    """Return the default schema of a query, as DDL."""
    message = schema_ddl(options.columns)
    if options.payload_format is None:
        return message
    given = options.payload_schema
    if given is None and options.payload_format == "sparkplug":
        given = fields_ddl(SPARKPLUG_FIELDS)
    if given is None:
        raise OptionError(
            "payloadSchema",
            "",
            "the fields of a payload, such as 'value double, ts timestamp'; or use .schema(...),"
            " which may include the columns of the message",
        )
    fields = given
    if given.startswith("{"):
        fields = fields_ddl(_fields_of_json(given, options.payload_format))
    beside = ", ".join(f"{beside.value} {kind}" for beside, kind in _BESIDE_TYPES.items())
    return f"{message}, {fields}, {beside}"


def layout_of(schema: Mapping[str, Any], options: SourceOptions) -> Layout:
    """Return the layout of a schema; OptionError names its fault."""
    names = [entry["name"] for entry in schema["fields"]]
    if options.payload_format is None:
        columns = columns_named(names, option="schema")
        for entry, column in zip(schema["fields"], columns, strict=True):
            _check_type(entry, column.label, COLUMN_TYPES[column])
        return columns
    first = None
    if options.payload_schema is not None:
        first = _first_field(names, options)
    try:
        layout = tuple(
            _place(
                entry,
                options.payload_format,
                is_field=first is not None and first <= i < len(names) - len(Beside),
            )
            for i, entry in enumerate(schema["fields"])
        )
        if options.payload_format == "sparkplug":
            check_sparkplug_fields(place for place in layout if isinstance(place, Field))
    except FieldTypeError as exc:
        raise OptionError("payloadSchema", options.payload_schema or "", f"types ({exc})") from None
    _check_names(names)
    return layout


def _fields_of_json(text: str, payload_format: PayloadFormat) -> tuple[Field, ...]:
    try:
        return fields_of(json.loads(text), payload_format)
    except FieldTypeError as exc:
        raise OptionError("payloadSchema", text, f"types that a payload can have ({exc})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OptionError(
            "payloadSchema", text, "DDL, or JSON in the format of StructType.json()"
        ) from None


def _first_field(names: list[str], options: SourceOptions) -> int:
    """Return where the fields of option payloadSchema begin."""
    first = len(options.columns)
    head = [column.label for column in options.columns]
    tail = [beside.value for beside in Beside]
    if names[:first] != head or names[-len(tail) :] != tail:
        raise OptionError(
            "payloadSchema", options.payload_schema or "", "only one of this and .schema()"
        )
    return first


def _place(
    entry: Mapping[str, Any], payload_format: PayloadFormat, *, is_field: bool
) -> Column | Field | Beside:
    name = entry["name"]
    if not is_field:
        beside = _BESIDE.get(name)
        if beside is not None:
            _check_type(entry, name, _BESIDE_TYPES[beside])
            return beside
        column = column_named(name)
        if column is not None:
            _check_type(entry, column.label, COLUMN_TYPES[column])
            return column
    return fields_of({"fields": [entry]}, payload_format)[0]


def _check_type(entry: Mapping[str, Any], name: str, expected: str) -> None:
    given = _type_ddl(entry["type"])
    if given != expected:
        raise OptionError("schema", f"{entry['name']} {given}", f"{name} {expected}")


def _type_ddl(kind: Any) -> str:
    """Return a type like ``simpleString`` does, as far as message columns need it."""
    if isinstance(kind, str):
        return _TYPES.get(kind, kind)
    if kind["type"] == "map":
        return f"map<{_type_ddl(kind['keyType'])},{_type_ddl(kind['valueType'])}>"
    return str(kind["type"])


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise OptionError(
                "payloadSchema",
                name,
                "names that do not occur yet, whatever their case: leave out columns of the message"
                " with option 'columns', or name the payload's fields with .schema()",
            )
        seen.add(name.lower())
