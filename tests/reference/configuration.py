"""docs/reference/configuration.md: each section and key, from the Structs and their docstrings.

Owns: that page's text, how a default is written. Must not touch: what a key means.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.inspect import VarTupleType, type_info
from msgspec.structs import FieldInfo

from motelog.config import MotelogConfig
from motelog.config_schema import bounded, docstrings_of, json_schema, struct_of, unit_of_key
from motelog.core.config import describe
from motelog.core.net.config import TlsKeys
from motelog.core.units import Unit
from tests.reference.markdown import prose

_HEAD: Final = """\
# Configuration

Each section and key of the file that `motelog up --config FILE` reads, with its default, what it
takes and why. The file is TOML. A text is empty by default, and a number an integer of at least 1,
unless it says otherwise. [configuration.md](../operations/configuration.md) has the commands that
check, show and change it. [motelog.schema.json](motelog.schema.json) is this page for
[editors](../operations/configuration.md#editors).

**Units.** A key whose name has `bytes`, `ms`, `s` or `hours` in it takes a plain number of these,
or a text with a unit: `"64MiB"`, `"1GB"` (powers of 1024 and of 1000), `"500ms"`, `"30s"`,
`"15m"`, `"72h"`, `"7d"`.

**Environment.** A variable `MOTELOG__SECTION__KEY` overrides the file, for `motelog up`, `motelog
dev` and `motelog config check`. Two underscores stand for the dot in the name of a section
(`MOTELOG__ROLES` for a key above all sections). The value is written without quotes; arrays and
tables are written as in TOML:

```sh
MOTELOG__BROKER__STORE__FLUSH=sync
MOTELOG__BROKER__STORE__RETENTION_HOURS=7d
MOTELOG__BROKER__NAMESRV='["10.0.0.1:9876", "10.0.0.2:9876"]'
MOTELOG__GATEWAY__TOPIC_MAP='[{filter = "site/+/#", queue_topic = "site"}]'
```

Other variables that begin with `MOTELOG_` have no effect, which the three commands say, with the
variable that may be meant.

This page is written by `python -m tests.reference`.
"""


_ARTICLE: Final = re.compile(r"\ban? (?=integer|number|text|array|table)")


#: Characters of a Struct's first line that says no more than its name.
BRIEF: Final = 70


def schema() -> str:
    """Return the text of motelog.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    lines = [_HEAD, *_section(MotelogConfig, (), "", {}, is_array=False)]
    lines += ["## Keys of TLS", "", *_keys(TlsKeys, "", msgspec.structs.fields(TlsKeys), {})]
    return "\n".join(lines)


def _section(
    kind: type[msgspec.Struct],
    path: tuple[str, ...],
    why: str,
    said: dict[str, str],
    *,
    is_array: bool,
) -> Iterator[str]:
    """Yield the heading and the keys of a section, then the sections below it.

    ``why`` is what the section that it is in says of it, ``said`` what has been said of keys, with
    the section that says so.
    """
    name = ".".join(path)
    yield f"## [[{name}]]" if is_array else f"## [{name}]" if name else "## Above all sections"
    yield ""
    first, *others = (inspect.getdoc(kind) or "").split("\n\n")
    # What the section above says of it is often all that its first line says.
    parts = (why, *([first] if not why or len(first) > BRIEF else []), *others)
    yield from (f"{prose(part)}\n" for part in parts if part)
    own = inspect.get_annotations(kind)
    shared = set(TlsKeys.__struct_fields__ if issubclass(kind, TlsKeys) else ()) - own.keys()
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in shared]
    # What several sections have comes last.
    fields.sort(key=lambda one: one.name not in own)
    yield from _keys(kind, name, fields, said)
    if shared:
        yield "And the [keys of TLS](#keys-of-tls).\n"
    docstrings = docstrings_of(kind)
    for field in fields:
        section = struct_of(type_info(field.type))
        if section is not None:
            key, of_array = field.encode_name, isinstance(type_info(field.type), VarTupleType)
            why = docstrings[field.name]
            yield from _section(section.cls, (*path, key), why, said, is_array=of_array)


def _keys(
    kind: type[msgspec.Struct], section: str, fields: Iterable[FieldInfo], said: dict[str, str]
) -> Iterator[str]:
    """Yield those of these fields that are keys, and not sections."""
    docstrings = docstrings_of(kind)
    for field in fields:
        if struct_of(type_info(field.type)) is None:
            facts = "; ".join(_facts(kind, field))
            default = _default(field, unit_of_key(field))
            name = f"`{field.encode_name}`{default}{f' ({facts})' if facts else ''}"
            line = f"- {name}: {prose(docstrings[field.name])}"
            before = said.setdefault(line, section)
            yield line if before == section else f"- `{field.encode_name}`: as in `[{before}]`."
    yield ""


def _facts(kind: type[msgspec.Struct], field: FieldInfo) -> Iterator[str]:
    """Yield what the name and default of a key do not tell: whether it is needed, its bounds."""
    unit = unit_of_key(field)
    if field.default is msgspec.NODEFAULT:
        yield "needed"
    # The head of the page has what texts a key with a unit takes; its name has the unit.
    takes = _ARTICLE.sub(
        "", describe(bounded(kind, field), unit).partition(", or a text such as")[0]
    )
    takes = takes.removeprefix(f"{unit.name}: " if unit is not None else "")
    if takes not in ("text", "true or false", "integer of at least 1"):
        takes = takes.replace(", each element ", " of ").replace(" of at least ", " >= ")
        takes = takes.replace(" greater than ", " > ")
        # The head of the page: a number is an integer.
        yield takes.removeprefix("integer from ").removeprefix("integer ")


def _default(field: FieldInfo, unit: Unit | None) -> str:
    default = field.default
    if default is msgspec.NODEFAULT or default == "":
        return ""
    spelled = _spelled(default, unit) if unit is not None and default else None
    return f" = `{json.dumps(default if spelled is None else spelled, ensure_ascii=False)}`"


def _spelled(value: float, unit: Unit) -> str | None:
    """Return a number in the largest unit that it is a whole number of; None if it is its own."""
    for name, worth in reversed(list(unit.scale.items())):
        if value % worth == 0:
            return f"{int(value / worth)}{name}" if worth > 1 else None
    return None
