"""Generic configuration loader: TOML and the environment -> one checked tree of msgspec Structs.

Owns: overriding by environment variables, checking a table against a Struct, finding the line that
a fault is about, and the wording of faults. Must not touch: what any section means; a section
checks the relation of its own fields in ``__post_init__`` by raising ValueError.

    MOTELOG__BROKER__STORE__FLUSH=sync     overrides     [broker.store]  flush = "sync"

Invariants: all faults of one load are found and reported together; nothing is ignored.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from motelog.core.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "MOTELOG__"
CONFIG_EXIT_STATUS: Final = 78  # EX_CONFIG of sysexits.h

S = TypeVar("S", bound=msgspec.Struct)
KeyPath = tuple[str | int, ...]
LeafCheck = Callable[[KeyPath, Any], str | None]


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One thing that is wrong; ``source`` is "file:line", a file or an environment variable."""

    source: str
    key: str
    message: str
    expected: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        place = f"{self.source}: {self.key}" if self.key else self.source
        text = f"{place}: {self.message}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest}?"
        return text


class ConfigFaultsError(ConfigError):
    """Everything that is wrong with one configuration; ``faults`` has at least one entry."""

    def __init__(self, faults: list[ConfigFault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def load_file(
    kind: type[S],
    path: str | Path,
    environment: Mapping[str, str],
    *,
    check: LeafCheck | None = None,
) -> S:
    """Return the checked tree of a TOML file; ConfigFaultsError if it is unreadable or wrong."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise ConfigFaultsError([ConfigFault(str(path), "", f"cannot read: {reason}")]) from exc
    except UnicodeDecodeError as exc:
        fault = ConfigFault(str(path), "", f"not UTF-8 at byte {exc.start}")
        raise ConfigFaultsError([fault]) from exc
    return load(kind, text, environment, name=str(path), check=check)


def load(
    kind: type[S],
    text: str,
    environment: Mapping[str, str],
    *,
    name: str,
    check: LeafCheck | None = None,
) -> S:
    """Return the checked tree of ``text`` with the environment laid over it.

    ``name`` is what faults call the text; ``check`` is asked about each accepted value and returns
    what is wrong with it, if anything. Raises ConfigFaultsError with every fault found.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigFaultsError([_syntax_fault(name, exc)]) from exc
    return load_table(kind, table, environment, name=name, lines=find_lines(text), check=check)


def load_table(
    kind: type[S],
    table: dict[str, Any],
    environment: Mapping[str, str],
    *,
    name: str,
    lines: Mapping[KeyPath, int],
    check: LeafCheck | None = None,
) -> S:
    """As ``load``, of a table that has been read already; it is changed."""
    loader = _Loader(name, lines, check)
    loader.override(table, kind, environment)
    section = loader.section(kind, table, ())
    if loader.faults:
        raise ConfigFaultsError(loader.faults)
    assert isinstance(section, kind)
    return section


def find_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table header and key by its path, with the numbers of ``[[x]]``.

    A scan of its own, because tomllib does not say where it found a value. It expects text that
    tomllib has accepted; keys inside inline tables are not found: their faults get its line.
    """
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    open_text = ""  # the delimiter of a multi-line string that is still open
    depth = 0  # brackets of a multi-line array that are still open
    for number, line in enumerate(text.splitlines(), start=1):
        if not open_text and depth == 0:
            stripped = line.strip()
            if stripped.startswith("[["):
                path = _with_elements(_split_key(stripped[2:].partition("]]")[0]), counts)
                counts[path] = counts.get(path, -1) + 1
                table = (*path, counts[path])
                lines.setdefault(path, number)
                lines[table] = number
                continue
            if stripped.startswith("["):
                table = _with_elements(_split_key(stripped[1:].partition("]")[0]), counts)
                lines[table] = number
                continue
            if stripped and not stripped.startswith("#"):
                path = (*table, *_split_key(stripped))
                for end in range(len(table) + 1, len(path) + 1):
                    lines.setdefault(path[:end], number)
        open_text, depth = _scan_value(line, open_text, depth)
    return lines


class _Loader:
    """One load: the faults found so far and where each value came from."""

    def __init__(self, name: str, lines: Mapping[KeyPath, int], check: LeafCheck | None) -> None:
        self.faults: list[ConfigFault] = []
        self._name = name
        self._lines = lines
        self._check = check
        self._variables: dict[KeyPath, str] = {}

    def override(
        self, table: dict[str, Any], kind: type[msgspec.Struct], environment: Mapping[str, str]
    ) -> None:
        """Lay every ``MOTELOG__SECTION__KEY`` of the environment over ``table``."""
        for variable in sorted(environment):
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            path = tuple(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            target: Any = table
            for part in path[:-1]:
                target = target.setdefault(part, {})
                if not isinstance(target, dict):
                    break
            if not isinstance(target, dict):
                continue  # the file's own value is no table, which is reported as such
            target[path[-1]] = _read_variable(_type_at(kind, path), environment[variable])
            for end in range(1, len(path) + 1):
                if path[:end] not in self._lines:
                    self._variables.setdefault(path[:end], variable)
            self._variables[path] = variable

    def section(
        self, kind: type[msgspec.Struct], table: Mapping[str, Any], path: KeyPath
    ) -> msgspec.Struct | None:
        """Return the Struct of one table, or None after reporting its faults."""
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        faults_before = len(self.faults)
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in fields:
                self._report_unknown((*path, key), list(fields))
                continue
            values[fields[key].name] = self._value(fields[key].type, value, (*path, key))
        for key, field in fields.items():
            if field.required and key not in table:
                self._report((*path, key), "missing", _describe(field.type))
        if len(self.faults) > faults_before:
            return None
        try:
            return kind(**values)
        except ValueError as exc:  # the section's own check of how its fields go together
            self._report(path, str(exc))
            return None

    def _value(self, kind: Any, value: Any, path: KeyPath) -> Any:
        struct = _as_struct(kind)
        if struct is not None and isinstance(value, dict):
            return self.section(struct, value, path)
        element, sequence = _element_struct(kind)
        if element is not None and isinstance(value, list):
            items = [
                self.section(element, item, (*path, index))
                if isinstance(item, dict)
                else self._leaf(element, item, (*path, index))
                for index, item in enumerate(value)
            ]
            return sequence(items)
        return self._leaf(kind, value, path)

    def _leaf(self, kind: Any, value: Any, path: KeyPath) -> Any:
        try:
            # A variable is text, so "8" is good for an integer there and nowhere else.
            leaf = msgspec.convert(value, kind, strict=path not in self._variables)
        except msgspec.ValidationError:
            close = difflib.get_close_matches(str(value), _choices(kind), n=1)
            nearest = json.dumps(close[0]) if close else None
            self._report(path, f"{_show(value)} is not accepted", _describe(kind), nearest)
            return None
        refusal = self._check(path, leaf) if self._check is not None else None
        if refusal is not None:
            self._report(path, refusal)
        return leaf

    def _report_unknown(self, path: KeyPath, known: list[str]) -> None:
        close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        nearest = _join((*path[:-1], close[0])) if close else None
        expected = None if close else "one of " + ", ".join(sorted(known))
        self.faults.append(
            ConfigFault(self._source(path), _join(path), "unknown key", expected, nearest)
        )

    def _report(
        self,
        path: KeyPath,
        message: str,
        expected: str | None = None,
        nearest: str | None = None,
    ) -> None:
        self.faults.append(ConfigFault(self._source(path), _join(path), message, expected, nearest))

    def _source(self, path: KeyPath) -> str:
        for end in range(len(path), 0, -1):
            if path[:end] in self._variables:
                return f"environment variable {self._variables[path[:end]]}"
            if path[:end] in self._lines:
                return f"{self._name}:{self._lines[path[:end]]}"
        return self._name


def _syntax_fault(name: str, exc: tomllib.TOMLDecodeError) -> ConfigFault:
    message, _, place = str(exc).partition(" (at ")
    words = place.rstrip(")").replace(",", "").split()
    source = f"{name}:{words[1]}" if words[:1] == ["line"] else name
    return ConfigFault(source, "", f"not valid TOML: {message}")


def _join(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _show(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _as_struct(kind: Any) -> type[msgspec.Struct] | None:
    """Return the Struct that ``kind`` is, also when it is ``Struct | None``."""
    info = inspect.type_info(kind)
    if isinstance(info, inspect.UnionType):
        structs = [part for part in info.types if isinstance(part, inspect.StructType)]
        info = structs[0] if len(structs) == 1 else info
    return info.cls if isinstance(info, inspect.StructType) else None


def _element_struct(kind: Any) -> tuple[type[msgspec.Struct] | None, type]:
    """Return the Struct that an array holds (None if another thing) and the array's Python type."""
    info = inspect.type_info(kind)
    if isinstance(info, inspect.ListType | inspect.VarTupleType) and isinstance(
        info.item_type, inspect.StructType
    ):
        return info.item_type.cls, list if isinstance(info, inspect.ListType) else tuple
    return None, list


def _type_at(kind: type[msgspec.Struct], path: tuple[str, ...]) -> Any:
    """Return the type of the field at ``path``, or None where there is none."""
    found: Any = kind
    for part in path:
        struct = _as_struct(found) if found is not None else None
        if struct is None:
            return None
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        found = fields.get(part)
    return found


def _read_variable(kind: Any, text: str) -> Any:
    """Return a variable's text as the value to check; arrays and tables are written as in TOML."""
    if kind is None:
        return text
    info = inspect.type_info(kind)
    is_text = isinstance(info, inspect.StrType | inspect.LiteralType | inspect.EnumType)
    if is_text or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _choices(kind: Any) -> list[str]:
    """Return the texts that a field of a closed set accepts; empty for any other field."""
    match inspect.type_info(kind):
        case inspect.LiteralType() as info:
            return [str(value) for value in info.values]
        case inspect.EnumType() as info:
            return [str(member.value) for member in info.cls]
        case _:
            return []


def _describe(kind: Any) -> str:
    return _describe_info(inspect.type_info(kind))


def _describe_info(info: inspect.Type) -> str:
    match info:
        case inspect.IntType():
            return "an integer" + _bounds(info.ge, info.gt, info.le, info.lt)
        case inspect.FloatType():
            return "a number" + _bounds(info.ge, info.gt, info.le, info.lt)
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            bounds = _bounds(info.min_length, None, info.max_length, None)
            shape = f" that matches {info.pattern}" if info.pattern else ""
            return "a text" + (f" of length{bounds}" if bounds else "") + shape
        case inspect.LiteralType():
            return " or ".join(json.dumps(value) for value in info.values)
        case inspect.EnumType():
            return " or ".join(json.dumps(member.value) for member in info.cls)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            return f"an array, each element {_describe_info(info.item_type)}"
        case inspect.FrozenSetType():
            return f"an array, each element {_describe_info(info.item_type)}"
        case inspect.DictType() | inspect.StructType():
            return "a table"
        case inspect.UnionType():
            parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
            return " or ".join(_describe_info(part) for part in parts)
        case _:
            return "another type of value"


def _bounds(ge: Any, gt: Any, le: Any, lt: Any) -> str:
    low = ge if ge is not None else gt
    high = le if le is not None else lt
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}" if ge is not None else f" greater than {low}"
    if high is not None:
        return f" of at most {high}" if le is not None else f" less than {high}"
    return ""


def _with_elements(path: KeyPath, counts: Mapping[KeyPath, int]) -> KeyPath:
    """Put the number of the current element behind each array of tables on the way to ``path``."""
    placed: KeyPath = ()
    for index, part in enumerate(path):
        placed = (*placed, part)
        if placed in counts and index < len(path) - 1:
            placed = (*placed, counts[placed])
    return placed


def _split_key(text: str) -> KeyPath:
    """Return the parts of the dotted key that ``text`` begins with; it ends at ``=`` or the end."""
    parts: list[str] = []
    part = ""
    quote = ""
    for char in text:
        if quote:
            if char == quote:
                quote = ""
            else:
                part += char
        elif char in "\"'":
            quote = char
        elif char == ".":
            parts.append(part.strip())
            part = ""
        elif char == "=":
            break
        else:
            part += char
    return (*parts, part.strip())


def _scan_value(line: str, open_text: str, depth: int) -> tuple[str, int]:
    """Return which string delimiter and how many brackets are open at the end of ``line``."""
    for token in _tokens(line, open_text):
        if token in ('"""', "'''"):
            open_text = "" if open_text else token
        elif not open_text:
            depth += 1 if token in "[{" else -1
    return open_text, max(depth, 0)


def _tokens(line: str, open_text: str) -> Iterator[str]:
    """Yield the brackets outside strings and the delimiters of multi-line strings."""
    at = 0
    while at < len(line):
        char = line[at]
        if open_text:
            if char == "\\" and open_text == '"""':
                at += 2
                continue
            if line.startswith(open_text, at):
                yield open_text
                at += 3
                open_text = ""
                continue
        elif line.startswith(('"""', "'''"), at):
            open_text = line[at : at + 3]
            yield open_text
            at += 3
            continue
        elif char in "\"'":
            at = _end_of_string(line, at)
            continue
        elif char == "#":
            return
        elif char in "[]{}":
            yield char
        at += 1


def _end_of_string(line: str, begin: int) -> int:
    """Return the position behind the one-line string that begins at ``begin``."""
    quote = line[begin]
    at = begin + 1
    while at < len(line) and line[at] != quote:
        at += 2 if line[at] == "\\" and quote == '"' else 1
    return at + 1
