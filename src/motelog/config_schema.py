"""The JSON Schema of the configuration file, with which editors complete and explain keys.

Owns: the schema, the docstrings below keys. Must not touch: what a key means. A start checks more
than a schema can express; `motelog config check` runs those checks.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec.inspect import FloatType, IntType, StructType, Type, UnionType, VarTupleType, type_info
from msgspec.structs import FieldInfo

from motelog.config import MotelogConfig
from motelog.core.store.config import AT_LEAST, BETWEEN, StoreConfig
from motelog.core.units import Unit, unit_of

TITLE: Final = "Configuration of Motelog"


def json_schema() -> dict[str, Any]:
    """Return the schema of the file that `motelog up --config` reads."""
    schema = msgspec.json.schema(MotelogConfig)
    for kind in sections(MotelogConfig):
        described = schema["$defs"][kind.__name__]
        described["description"] = _text(inspect.getdoc(kind))
        docstrings = docstrings_of(kind)
        for field in msgspec.structs.fields(kind):
            shown = described["properties"]
            shown[field.encode_name] = {
                **_property(kind, field, shown[field.encode_name]),
                "description": _text(docstrings[field.name]),
            }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE}
    return {**head, **schema}


def sections(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield a section and those below it."""
    yield kind
    for field in msgspec.structs.fields(kind):
        below = struct_of(type_info(field.type))
        if below is not None:
            yield from sections(below.cls)


def struct_of(info: Type) -> StructType | None:
    """Return the section type of a key that is a section, an optional one, or an array of them."""
    match info:
        case StructType():
            return info
        case VarTupleType():
            return struct_of(info.item_type)
        case UnionType():
            return next((part for part in info.types if isinstance(part, StructType)), None)
        case _:
            return None


def docstrings_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each key."""
    found: dict[str, str] = {}
    for base in kind.__bases__:
        if base is not msgspec.Struct:
            found |= docstrings_of(base)
    (section,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(section, ast.ClassDef)
    for key, below in zip(section.body, section.body[1:], strict=False):
        if isinstance(key, ast.AnnAssign) and isinstance(below, ast.Expr):
            found[ast.unparse(key.target)] = str(ast.literal_eval(below.value))
    return found


def bounded(kind: type[msgspec.Struct], field: FieldInfo) -> Any:
    """Return the type of a key, including the bounds that the store's section checks itself."""
    if kind is not StoreConfig:
        return field.type
    low, high = BETWEEN.get(field.name, (AT_LEAST.get(field.name), None))
    return field.type if low is None else Annotated[field.type, msgspec.Meta(ge=low, le=high)]


def unit_of_key(field: FieldInfo) -> Unit | None:
    """Return the unit of a key's number; None if it is not a number, or a plain count."""
    is_number = isinstance(type_info(field.type), IntType | FloatType)
    return unit_of(field.encode_name) if is_number else None


def _property(
    kind: type[msgspec.Struct], field: FieldInfo, shown: dict[str, Any]
) -> dict[str, Any]:
    """Return a key's schema; a number with a unit may also be written as a string."""
    unit = unit_of_key(field)
    type_bounded = bounded(kind, field)
    if type_bounded is not field.type:
        shown = {**shown, **msgspec.json.schema(type_bounded)}
    if unit is None:
        return shown
    number = {key: value for key, value in shown.items() if key != "default"}
    number["description"] = f"A number of {unit.name}."
    units = "|".join(_any_case(name) for name in unit.scale)
    text = {
        "type": "string",
        "pattern": rf"^\s*[0-9]+(\.[0-9]+)? ?({units})\s*$",
        "description": f'With a unit: {", ".join(unit.scale)}, as in "{unit.example}".',
    }
    rest = {key: value for key, value in shown.items() if key == "default"}
    return {"anyOf": [number, text], **rest}


def _any_case(text: str) -> str:
    return "".join(f"[{letter.lower()}{letter.upper()}]" for letter in text)


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).replace("``", "`")
