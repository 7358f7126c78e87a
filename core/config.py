"""Generic configuration loader: TOML and environment -> one checked tree of msgspec Structs.

Owns: overriding by environment variables, checking a table against a Struct, the origin of each
value, the line of a fault, and the texts of faults. Must not touch: what a section means; a section
checks its own fields and their combination in ``__post_init__``, with ``refuse``.

    MOTELOG__BROKER__STORE__FLUSH=sync     overrides     [broker.store]  flush = "sync"

Invariants: all faults of one load are found and reported together, even if a value is missing or of
the wrong type: a stand-in replaces it, and faults that follow from that are not reported.
"""

from __future__ import annotations

import difflib
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect
from msgspec.structs import FieldInfo

from motelog.core.addresses import without_logins
from motelog.core.errors import ConfigError
from motelog.core.toml_lines import KeyPath, find_lines
from motelog.core.units import Unit, unit_of

ENVIRONMENT_PREFIX: Final = "MOTELOG__"

S = TypeVar("S", bound=msgspec.Struct)
LeafCheck = Callable[[KeyPath, Any], str | None]


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault; ``source`` is "file:line", a file or an environment variable."""

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
    """All faults of one configuration; ``faults`` has at least one entry."""

    def __init__(self, faults: list[ConfigFault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class SectionFault:
    """A fault found by a section; ``keys`` are the (dotted) keys below it that it concerns."""

    message: str
    keys: tuple[str, ...]


class SectionFaultsError(ValueError):
    """A section refuses some fields. Carries the section, whose other fields can be used."""

    def __init__(self, section: msgspec.Struct, faults: list[SectionFault]) -> None:
        super().__init__("; ".join(f"{fault.keys[0]}: {fault.message}" for fault in faults))
        self.section = section
        self.faults = tuple(faults)


def refuse(section: msgspec.Struct, faults: Iterable[SectionFault]) -> None:
    """Raise SectionFaultsError if there are faults; for a section's ``__post_init__``."""
    found = list(faults)
    if found:
        raise SectionFaultsError(section, found)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A checked tree, and the origins of its values.

    ``origins`` has the place of each key that is set: "FILE:LINE", or the variable.
    """

    section: S
    origins: Mapping[KeyPath, str]


@dataclass(frozen=True, slots=True)
class Below:
    """Texts of keys that apply unless something else sets them; ``name`` is their origin."""

    name: str
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """One key with its value; ``key`` is dotted, ``origin`` is "default" or a place."""

    key: str
    value: Any
    default: Any
    origin: str

    @property
    def shown(self) -> Any:
        """The value for display: user name and password are removed from a URL."""
        return without_logins(self.value)


def load_file(
    kind: type[S],
    path: str | Path,
    environment: Mapping[str, str],
    *,
    check: LeafCheck | None = None,
    below: Below | None = None,
) -> Loaded[S]:
    """Return the checked tree of a TOML file; ConfigFaultsError if it is unreadable or wrong."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise ConfigFaultsError([ConfigFault(str(path), "", f"cannot read: {reason}")]) from exc
    except UnicodeDecodeError as exc:
        fault = ConfigFault(str(path), "", f"not UTF-8 at byte {exc.start}")
        raise ConfigFaultsError([fault]) from exc
    return load_with_origins(kind, text, environment, name=str(path), check=check, below=below)


def load(
    kind: type[S],
    text: str,
    environment: Mapping[str, str],
    *,
    name: str,
    check: LeafCheck | None = None,
) -> S:
    """Return the checked tree of ``text`` with the environment laid over it.

    ``name`` is the text's name in faults; ``check`` is called with each accepted value and returns
    its fault, or None. Raises ConfigFaultsError with every fault found.
    """
    return load_with_origins(kind, text, environment, name=name, check=check).section


def load_with_origins(
    kind: type[S],
    text: str,
    environment: Mapping[str, str],
    *,
    name: str,
    check: LeafCheck | None = None,
    below: Below | None = None,
) -> Loaded[S]:
    """Do as ``load``, and return the origins of the values too."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigFaultsError([_syntax_fault(name, exc)]) from exc
    lines = find_lines(text)
    return load_table(kind, table, environment, name=name, lines=lines, check=check, below=below)


def load_table(
    kind: type[S],
    table: dict[str, Any],
    environment: Mapping[str, str],
    *,
    name: str,
    lines: Mapping[KeyPath, int],
    check: LeafCheck | None = None,
    below: Below | None = None,
) -> Loaded[S]:
    """Do as ``load_with_origins`` with a table that is already parsed; the table is changed."""
    loader = _Loader(name, lines, check)
    if below is not None:
        loader.fill(table, kind, below)
    loader.override(table, kind, environment)
    section = loader.section(kind, table, ())
    if loader.faults:
        raise ConfigFaultsError(sorted(loader.faults, key=_reading_order))
    assert isinstance(section, kind)
    return Loaded(section, loader.origins)


# msgspec's inspection of a type, whose result never changes, takes most of the time of a load.
_info: Final = cache(inspect.type_info)
_fields: Final = cache(msgspec.structs.fields)


def settings(loaded: Loaded[Any]) -> list[Setting]:
    """Return each key of a tree, with sections and array elements in order."""
    return list(_settings(loaded.section, (), loaded.origins))


def _settings(
    section: msgspec.Struct, path: KeyPath, origins: Mapping[KeyPath, str]
) -> Iterator[Setting]:
    for field in _fields(type(section)):
        value, at = getattr(section, field.name), (*path, field.encode_name)
        if isinstance(value, msgspec.Struct):
            yield from _settings(value, at, origins)
        elif value and _element_struct(field.type)[0] is not None:
            for index, item in enumerate(value):
                yield from _settings(item, (*at, index), origins)
        else:
            origin = origins.get(at, "default")
            shown, default = msgspec.to_builtins((value, default_of(field)))
            yield Setting(_join(at), shown, default, origin)


def default_of(field: FieldInfo) -> Any:
    """Return a key's default, None if it has none."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return None if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def unread_variables(
    kind: type[msgspec.Struct], environment: Mapping[str, str], *, prefix: str, known: Iterable[str]
) -> dict[str, str | None]:
    """Return the variables that begin with ``prefix`` but are not read, with the likely name.

    ``known`` are variables that are read elsewhere. A wrong ``MOTELOG__`` variable is a fault
    instead.
    """
    read = [*known, *_variables_of(kind, ENVIRONMENT_PREFIX)]
    unread: dict[str, str | None] = {}
    for name in sorted(environment):
        is_ours = name.upper().startswith(prefix)
        if is_ours and name not in known and not name.startswith(ENVIRONMENT_PREFIX):
            close = difflib.get_close_matches(name.upper(), read, n=1, cutoff=0.8)
            unread[name] = close[0] if close else None
    return unread


class _Loader:
    """One load: the faults found so far and where each value came from."""

    def __init__(self, name: str, lines: Mapping[KeyPath, int], check: LeafCheck | None) -> None:
        self.faults: list[ConfigFault] = []
        self._name = name
        self._lines = lines
        self._check = check
        self._variables: dict[KeyPath, str] = {}
        self._below: dict[KeyPath, str] = {}
        self._failed: set[KeyPath] = set()
        #: The place of each key that is set.
        self.origins: dict[KeyPath, str] = {}

    def fill(self, table: dict[str, Any], kind: type[msgspec.Struct], below: Below) -> None:
        """Lay ``table`` over the keys of ``below``."""
        for key, text in below.texts.items():
            path = tuple(key.split("."))
            target: Any = table
            for part in path[:-1]:
                target = target.setdefault(part, {}) if isinstance(target, dict) else None
            if isinstance(target, dict) and path[-1] not in target:
                target[path[-1]] = _read_variable(_type_at(kind, path), text)
                self._below[path] = below.name

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
                continue  # the file's value is not a table, which is reported as such
            target[path[-1]] = _read_variable(_type_at(kind, path), environment[variable])
            for end in range(1, len(path) + 1):
                if path[:end] not in self._lines:
                    self._variables.setdefault(path[:end], variable)
            self._variables[path] = variable
            self._below.pop(path, None)

    def section(
        self, kind: type[msgspec.Struct], table: Mapping[str, Any], path: KeyPath
    ) -> msgspec.Struct:
        """Return the Struct of one table, with stand-ins for values whose faults are reported."""
        fields = {field.encode_name: field for field in _fields(kind)}
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in fields:
                self._report_unknown((*path, key), list(fields))
                continue
            at = (*path, key)
            self.origins[at] = self._source(at)
            read = self._value(fields[key].type, value, at)
            if at not in self._failed:
                values[fields[key].name] = read
        for key, field in fields.items():
            if not field.required or field.name in values:
                continue
            if key not in table:
                unit = _unit_at(field.type, (key,))
                self._report((*path, key), "missing", describe(field.type, unit))
            values[field.name] = _stand_in(field.type)
        try:
            return kind(**values)
        except SectionFaultsError as exc:
            for fault in exc.faults:
                self._report_relation(path, fault)
            return exc.section

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
        unit = _unit_at(kind, path)
        try:
            number = _number(value, kind, unit) if unit is not None else value
            # A variable is text, so "8" is accepted as an integer there and nowhere else.
            is_text = path in self._variables or path in self._below
            leaf = msgspec.convert(number, kind, strict=not is_text)
        except (msgspec.ValidationError, ValueError):
            close = difflib.get_close_matches(str(value), _choices(kind), n=1)
            nearest = json.dumps(close[0]) if close else None
            self._report(path, f"{_show(value)} is not accepted", describe(kind, unit), nearest)
            return _stand_in(kind)
        refusal = self._check(path, leaf) if self._check is not None else None
        if refusal is not None:
            self._report(path, refusal)
        return leaf

    def _report_relation(self, section: KeyPath, fault: SectionFault) -> None:
        """Report a section's fault at the last of its keys that is set, unless one of the keys has
        already been reported."""
        paths = [(*section, *key.split(".")) for key in fault.keys]
        for path in paths:
            if any(path[:end] in self._failed for end in range(1, len(path) + 1)):
                return
        written = [path for path in paths if path in self._lines or path in self._variables]
        at = max(written or paths[:1], key=lambda path: self._lines.get(path, 0))
        self._report(at, fault.message)

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
        self._failed.add(path)
        self.faults.append(ConfigFault(self._source(path), _join(path), message, expected, nearest))

    def _source(self, path: KeyPath) -> str:
        for end in range(len(path), 0, -1):
            if path[:end] in self._variables:
                return f"environment variable {self._variables[path[:end]]}"
            if path[:end] in self._below:
                return self._below[path[:end]]
            if path[:end] in self._lines:
                return f"{self._name}:{self._lines[path[:end]]}"
        return self._name


def _reading_order(fault: ConfigFault) -> int:
    """Return the fault's line; faults without a line come last."""
    line = fault.source.rpartition(":")[2]
    return int(line) if line.isdigit() else sys.maxsize


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
    """Return the Struct of ``kind``, which may be ``Struct | None``."""
    info = _info(kind)
    if isinstance(info, inspect.UnionType):
        structs = [part for part in info.types if isinstance(part, inspect.StructType)]
        info = structs[0] if len(structs) == 1 else info
    return info.cls if isinstance(info, inspect.StructType) else None


def _element_struct(kind: Any) -> tuple[type[msgspec.Struct] | None, type]:
    """Return the Struct that an array holds (None if it holds none), and the array's type."""
    info = _info(kind)
    if isinstance(info, inspect.ListType | inspect.VarTupleType) and isinstance(
        info.item_type, inspect.StructType
    ):
        return info.item_type.cls, list if isinstance(info, inspect.ListType) else tuple
    return None, list


def _stand_in(kind: Any) -> Any:
    """Return a value of this type, to replace one that cannot be used."""
    struct = _as_struct(kind)
    if struct is not None:
        return _Loader("", {}, None).section(struct, {}, ())
    match _info(kind):
        case inspect.StrType():
            return ""
        case inspect.IntType() | inspect.FloatType():
            return 0
        case _:
            return None


def _variables_of(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """Yield the variable of each key that a single variable can set."""
    for field in _fields(kind):
        name = prefix + field.encode_name.upper()
        struct = _as_struct(field.type)
        if struct is None:
            yield name
        else:
            yield from _variables_of(struct, f"{name}__")


def _unit_at(kind: Any, path: KeyPath) -> Unit | None:
    """Return the unit of the number at ``path``, None if it is not a number or a plain count."""
    is_number = isinstance(_info(kind), inspect.IntType | inspect.FloatType)
    return unit_of(str(path[-1])) if is_number else None


def _number(value: Any, kind: Any, unit: Unit) -> Any:
    """Return a text with a unit as a plain number; any other value unchanged."""
    if not isinstance(value, str) or value.strip()[-1:].isdigit():
        return value
    amount = unit.parse(value)
    if amount.denominator == 1:
        return int(amount)
    if isinstance(_info(kind), inspect.FloatType):
        return float(amount)
    raise ValueError(f"{value!r} is not a whole number of {unit.name}")


def _type_at(kind: type[msgspec.Struct], path: tuple[str, ...]) -> Any:
    """Return the type of the field at ``path``, or None if there is none."""
    found: Any = kind
    for part in path:
        struct = _as_struct(found) if found is not None else None
        if struct is None:
            return None
        fields = {field.encode_name: field.type for field in _fields(struct)}
        found = fields.get(part)
    return found


def _read_variable(kind: Any, text: str) -> Any:
    """Return a variable's text as the value to check; arrays and tables are in TOML."""
    if kind is None:
        return text
    info = _info(kind)
    is_text = isinstance(info, inspect.StrType | inspect.LiteralType | inspect.EnumType)
    if is_text or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _choices(kind: Any) -> list[str]:
    """Return the texts that a field with a closed set accepts; empty for any other field."""
    match _info(kind):
        case inspect.LiteralType() as info:
            return [str(value) for value in info.values]
        case inspect.EnumType() as info:
            return [str(member.value) for member in info.cls]
        case _:
            return []


def describe(kind: Any, unit: Unit | None) -> str:
    """Return a description of the values that a key of this type and unit accepts."""
    text = _describe_info(_info(kind))
    return text if unit is None else f'{unit.name}: {text}, or a text such as "{unit.example}"'


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
