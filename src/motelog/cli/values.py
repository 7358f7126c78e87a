"""How options and arguments become values, with plain error texts and without pydantic.

Owns: parsing the types that our commands use, the error texts, the bounds in help, default
metavars. Must not touch: what a command does with its values. typer would parse each value with
pydantic, whose import takes as long as the rest of a command's start, and whose error texts are
written for programmers.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer._click import Command, Context, Parameter

METAVARS: Final[dict[type, str]] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}


def read_plainly(command: Command) -> None:
    """Make ``command`` and its subcommands parse their values here."""
    readers = _readers(command)
    for param in command.params:
        if param.metavar is None and param.name in readers:
            param.metavar = _metavar(param, readers[param.name].kind)
    made = command.get_params

    def get_params(ctx: Context) -> list[Parameter]:
        params = made(ctx)
        for param in params:
            if "process_value" not in vars(param):
                reader = readers.get(param.name or "")
                process = partial(_process, param, param.process_value, reader)
                vars(param)["process_value"] = process
                if reader is not None:
                    vars(param)["_get_number_range_help_str"] = reader.range_text
                if param.param_type_name == "argument":  # its name says more than "<str>" after it
                    vars(param)["display_type_rich"] = lambda ctx: ""
        return params

    vars(command)["get_params"] = get_params
    for below in getattr(command, "commands", {}).values():
        read_plainly(below)


class Reader:
    """Parses the texts of one parameter; ``kind`` is a key of METAVARS or an Enum of texts."""

    def __init__(
        self, kind: type[Any], low: float | None = None, high: float | None = None
    ) -> None:
        self.kind = kind
        self._low = -math.inf if low is None else low
        self._high = math.inf if high is None else high

    def read(self, text: str) -> Any:
        """Return the parsed value; ValueError has a text for the person who typed it."""
        if issubclass(self.kind, Enum):
            names = [str(member.value) for member in self.kind]
            if text not in names:
                raise ValueError(f"{text!r} is not {' or '.join(names)}")
        if not issubclass(self.kind, int | float):
            return self.kind(text)
        try:
            number = self.kind(text)
        except ValueError:
            number = math.nan
        if not self._low <= number <= self._high:
            what = "a whole number" if issubclass(self.kind, int) else "a number"
            raise ValueError(f"{text!r} is not {what}{self._bounds()}")
        return number

    def range_text(self) -> str:
        """Return the bounds as help shows them, "" if there are none."""
        return self._bounds().removeprefix(" of").lstrip()

    def _bounds(self) -> str:
        if math.isinf(self._high):
            return "" if math.isinf(self._low) else f" of at least {self._low:g}"
        if math.isinf(self._low):
            return f" of at most {self._high:.15g}"
        return f" from {self._low:g} to {self._high:.15g}"


def _process(
    param: Any,
    original: Callable[[Context, Any], Any],
    reader: Reader | None,
    ctx: Context,
    value: Any,
) -> Any:
    """Do what ``param.process_value`` does: parse the value, check that it is given, call back."""
    is_missing = value is None or (param.multiple and not value)
    is_text = isinstance(value, str | list | tuple)
    if (param.required and is_missing) or (reader is None and is_text):
        return original(ctx, value)  # reports a missing value, or handles a type that we do not
    if reader is not None:
        try:
            if isinstance(value, str):
                value = reader.read(value)
            elif isinstance(value, list | tuple):
                value = tuple(reader.read(one) if isinstance(one, str) else one for one in value)
        except ValueError as exc:
            raise typer.BadParameter(str(exc), ctx=ctx, param=param) from exc
    if value is None and param.multiple:
        value = ()
    return param.callback(ctx, param, value) if param.callback is not None else value


def _readers(command: Command) -> dict[str, Reader]:
    """Return a reader for each parameter whose type we handle."""
    if command.callback is None:
        return {}
    hints = get_type_hints(command.callback, include_extras=True)
    return {name: made for name, hint in hints.items() if (made := _reader(hint)) is not None}


def _reader(hint: Any) -> Reader | None:
    low = high = None
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        for extra in extras:
            if isinstance(extra, ParameterInfo):
                low, high = extra.min, extra.max
    if get_origin(hint) in (Union, UnionType):
        some = [part for part in get_args(hint) if part is not type(None)]
        hint = some[0] if len(some) == 1 else None
    if get_origin(hint) is list:
        (hint,) = get_args(hint)
    is_known = isinstance(hint, type) and (hint in METAVARS or issubclass(hint, Enum))
    return Reader(hint, low, high) if is_known else None


def _metavar(param: Parameter, kind: type) -> str:
    if param.param_type_name == "argument":
        return (param.name or "").upper()
    return "|".join(one.value for one in kind) if issubclass(kind, Enum) else METAVARS[kind]
