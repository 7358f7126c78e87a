"""The fields of a Sparkplug B payload: the default columns of a query.

Owns: names and types of these columns, which of them a user's schema may have. Must not touch:
pyspark, the encoding of payloads. Spec: Eclipse Sparkplug 3.0.0, chapter 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from motelog.spark.payload_fields import Field, FieldTypeError, Kind, ddl

_METRIC: Final = Field(
    "element",
    Kind.STRUCT,
    (
        Field("name", Kind.STRING),
        Field("alias", Kind.LONG),
        Field("timestamp", Kind.TIMESTAMP),
        Field("datatype", Kind.INT),
        Field("is_historical", Kind.BOOLEAN),
        Field("long_value", Kind.LONG),
        Field("double_value", Kind.DOUBLE),
        Field("boolean_value", Kind.BOOLEAN),
        Field("string_value", Kind.STRING),
        Field("bytes_value", Kind.BINARY),
    ),
)
SPARKPLUG_FIELDS: Final = (
    Field("timestamp", Kind.TIMESTAMP),
    Field("seq", Kind.INT),
    Field("uuid", Kind.STRING),
    Field("body", Kind.BINARY),
    Field("metrics", Kind.LIST, (_METRIC,)),
)


def check_sparkplug_fields(fields: Iterable[Field]) -> None:
    """Raise FieldTypeError unless these are fields of Sparkplug with its types."""
    for field in fields:
        _check(field, SPARKPLUG_FIELDS, field.name)


def _check(field: Field, known: Sequence[Field], path: str) -> None:
    found = next((one for one in known if one.name == field.name), None)
    if found is None:
        names = ", ".join(one.name for one in known)
        raise FieldTypeError(f"{path} is not a field of Sparkplug B; the fields are {names}")
    if found.kind is Kind.LIST and field.kind is Kind.LIST:
        element, metric = field.children[0], found.children[0]
        if element.kind is Kind.STRUCT:
            for child in element.children:
                _check(child, metric.children, f"{path}.{child.name}")
            return
    if field != found:
        raise FieldTypeError(f"{path} is {ddl(field)}; in Sparkplug B it is {ddl(found)}")
