"""The fields of a payload: a tree made from a Spark schema, without Spark.

Owns: Kind, Field, the types that a payload's field may have, the payload formats, the numbering for
kernels. Must not touch: pyspark, pyarrow.

Nodes are numbered level by level, so that the children of a node are adjacent:

    struct<value: double, pos: struct<lat: double, lon: double>>
    0 = the payload, 1 = value, 2 = pos, 3 = pos.lat, 4 = pos.lon
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

PayloadFormat: TypeAlias = Literal["json", "msgpack", "sparkplug"]
#: Payload format -> its name.
FORMATS: Final[dict[PayloadFormat, str]] = {
    "json": "JSON",
    "msgpack": "MessagePack",
    "sparkplug": "Sparkplug B",
}


class Kind(IntEnum):
    """The types of values, with the numbers that the kernel uses."""

    STRUCT = 0
    LIST = 1
    STRING = 2
    BOOLEAN = 3
    BYTE = 4
    SHORT = 5
    INT = 6
    LONG = 7
    FLOAT = 8
    DOUBLE = 9
    DECIMAL = 10
    TIMESTAMP = 11
    DATE = 12
    BINARY = 13


#: Their names in StructType.jsonValue().
_SIMPLE: Final = {
    "string": Kind.STRING,
    "boolean": Kind.BOOLEAN,
    "byte": Kind.BYTE,
    "short": Kind.SHORT,
    "integer": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "timestamp": Kind.TIMESTAMP,
    "date": Kind.DATE,
    "binary": Kind.BINARY,
}
_GIVEN: Final = (
    "a payload can have string, boolean, tinyint, smallint, int, bigint, float, double, decimal,"
    " timestamp, date, struct and array, in MessagePack also binary"
)
_DDL: Final = {Kind.BYTE: "tinyint", Kind.SHORT: "smallint", Kind.LONG: "bigint"}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
#: Limit for structs in structs, lists in lists and so on, since values are read by recursion.
DEPTH_MAX: Final = 64


class FieldTypeError(ValueError):
    """A schema has a field that a payload cannot have; the text names it and the reason."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field with its type; a list has one child, its element."""

    name: str
    kind: Kind
    children: tuple[Field, ...] = ()
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A numbered field; its children have the numbers from ``first`` on."""

    field: Field
    path: str
    first: int


def fields_of(schema: Mapping[str, Any], payload_format: PayloadFormat) -> tuple[Field, ...]:
    """Return the fields of a struct in the form of ``StructType.jsonValue()``."""
    fields = tuple(
        _field(entry["name"], entry["type"], entry["nullable"], entry["name"], 1)
        for entry in schema["fields"]
    )
    if payload_format == "json":
        for node in numbered(fields):
            if node.field.kind is Kind.BINARY:
                raise FieldTypeError(f"{node.path} is binary; {_GIVEN}")
    return fields


def _field(name: str, kind: Any, nullable: bool, path: str, depth: int) -> Field:
    if not nullable:
        raise FieldTypeError(f"{path} is NOT NULL, but in a malformed message it has no value")
    if depth > DEPTH_MAX:
        raise FieldTypeError(f"{path} is nested deeper than {DEPTH_MAX}")
    if isinstance(kind, str):
        if kind in _SIMPLE:
            return Field(name, _SIMPLE[kind])
        if found := _DECIMAL.fullmatch(kind):
            return Field(name, Kind.DECIMAL, (), int(found[1]), int(found[2]))
    elif kind["type"] == "array":
        element = kind["elementType"]
        child = _field("element", element, kind["containsNull"], f"{path}[]", depth + 1)
        return Field(name, Kind.LIST, (child,))
    elif kind["type"] == "struct" and kind["fields"]:
        entries = kind["fields"]
        names = [entry["name"] for entry in entries]
        if len(set(names)) < len(names):
            raise FieldTypeError(f"{path} has two fields with the same name")
        children = tuple(
            _field(
                entry["name"],
                entry["type"],
                entry["nullable"],
                f"{path}.{entry['name']}",
                depth + 1,
            )
            for entry in entries
        )
        return Field(name, Kind.STRUCT, children)
    shown = kind if isinstance(kind, str) else kind["type"]
    raise FieldTypeError(f"{path} is {shown}; {_GIVEN}")


def numbered(fields: Sequence[Field]) -> list[Node]:
    """Return all nodes in the order of their numbers; the first is the payload itself."""
    root = Field("", Kind.STRUCT, tuple(fields))
    waiting = [(root, "")]
    nodes = []
    next_number = 1
    for field, path in waiting:
        nodes.append(Node(field, path, next_number))
        next_number += len(field.children)
        for child in field.children:
            if field.kind is Kind.LIST:
                waiting.append((child, f"{path}[]"))
            else:
                waiting.append((child, f"{path}.{child.name}" if path else child.name))
    return nodes


def ddl(field: Field) -> str:
    """Return the field's type in Spark's DDL."""
    match field.kind:
        case Kind.STRUCT:
            return f"struct<{', '.join(f'{_quoted(c.name)}: {ddl(c)}' for c in field.children)}>"
        case Kind.LIST:
            return f"array<{ddl(field.children[0])}>"
        case Kind.DECIMAL:
            return f"decimal({field.precision},{field.scale})"
        case kind:
            return _DDL.get(kind, kind.name.lower())


def fields_ddl(fields: Sequence[Field]) -> str:
    """Return these fields as the DDL of a schema."""
    return ", ".join(f"{_quoted(field.name)} {ddl(field)}" for field in fields)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
