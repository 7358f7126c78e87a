"""docs/reference/api.md: each endpoint of the admin API, from its OpenAPI document.

Owns: that page's text; the document itself is beside it. Must not touch: what endpoints do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from motelog.console.api import openapi
from motelog.console.gate import CHANGE_HEADER
from tests.reference.markdown import prose
from tests.support.console import apis_of

_HEAD: Final = f"""\
# The admin API

What a server with the console answers below `/api/v1` ([console.md](../console.md) has examples,
tokens and roles). [openapi.json](openapi.json) is the whole of it, with the type and meaning of
each field, for programs that make clients; a server has its own at `/api/v1/openapi.json`.

Parameters are in the query, texts unless a type is named, and required unless they have a default
or are optional. Answers are JSON. The roles view, operate and admin include each other in this
order; an endpoint that names none takes view. A request that changes something needs a token, or
the header `{CHANGE_HEADER}` where the server has none. A fault is `{{"error": "why"}}`. An answer
in pages takes two more parameters: `limit`, how many at most (a page may be shorter), and `after`,
the name behind which the page begins: the last page's `after`, which is null after the last one.

This page is written by `python -m tests.reference`.
"""

_NAMED: Final = re.compile(r"`([A-Z]\w+)`")


def document() -> str:
    """Return the text of openapi.json."""
    return json.dumps(openapi(apis_of().endpoints()), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    document = openapi(apis_of().endpoints())
    lines = [_HEAD, "## Endpoints\n"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += _endpoint(method.upper(), path, operation)
    lines.append("## Answers\n\nA field with a question mark may be null.\n")
    schemas = document["components"]["schemas"]
    for name in sorted(schemas):
        lines.append(_answer(name, schemas[name]))
    return "\n".join(lines) + "\n"


def _endpoint(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    yield f"### {method} {path.removeprefix('/api/v1')}\n"
    role = operation["description"].removeprefix("Requires the role ").partition(" ")[0]
    role = "" if role.rstrip(".") == "view" else f"Role: {role.rstrip('.')}. "
    yield f"{operation['summary']}. {role}Answer: {_type(answer)}.\n"
    parameters = [one for one in operation["parameters"] if one["in"] == "query"]
    if {"after", "limit"} <= {one["name"] for one in parameters}:
        (limit,) = (one["schema"] for one in parameters if one["name"] == "limit")
        parameters = [one for one in parameters if one["name"] not in ("after", "limit")]
        yield f"In pages, of {limit['default']} by default.\n"
    for one in parameters:
        needed = _default(one["schema"])
        if not (one["required"] or needed):
            needed = "optional"
        kind = _type(one["schema"])  # the head of the page says that of most
        facts = ", ".join(filter(None, ("" if kind == "text" else kind, needed)))
        yield f"- `{one['name']}`{f' ({facts})' if facts else ''}: {prose(one['description'])}"
    if parameters:
        yield ""


def _answer(name: str, schema: Mapping[str, Any]) -> str:
    fields = schema.get("properties", {}).items()
    return f"- `{name}`: {', '.join(_field(field, _type(kind)) for field, kind in fields)}"


def _field(name: str, kind: str) -> str:
    """Return a field's name, and which answer it holds."""
    held = _NAMED.search(kind)
    null = "?" if kind.endswith(" or null") else ""
    return f"{name}{null} ({held[1]})" if held else f"{name}{null}"


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None or default == "" else f"default {str(default).lower()}"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"`{name}`"
    if "anyOf" in schema:
        return _either(schema["anyOf"])
    if "enum" in schema:
        return _either({"const": one} for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items') or {})}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"table of {_type(inner)}" if isinstance(inner, dict) else "table"
        case "integer":
            return "int"
        case "number":
            return "number"
        case "boolean":
            return "bool"
        case "string":
            return "text"
        case "null":
            return "null"
    return "anything"


def _either(schemas: Iterable[Mapping[str, Any]]) -> str:
    kinds = sorted(map(_type, schemas), key=lambda kind: (kind == "null", kind))
    return " or ".join(dict.fromkeys(kinds))
