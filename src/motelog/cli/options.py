"""How commands share options, and groups of commands their settings.

Owns: ``takes_options``, ``commands``. Must not touch: any option (``native``, ``admin``,
``mqtt_options``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer

Command = Callable[..., None]


def commands(purpose: str) -> typer.Typer:
    """Return an empty group of commands that prints its help when none is named."""
    return typer.Typer(
        help=purpose, no_args_is_help=True, rich_markup_mode=None, add_completion=False
    )


def takes_options(command: Command) -> Command:
    """Give a command an option for each field of its parameters that are dataclasses.

    They take the place of the parameter among the command's own. A field that is a dataclass is
    replaced by its fields too.
    """

    @wraps(command)
    def run(**given: Any) -> None:
        _call(command, given)

    options = list(_options(command))
    vars(run)["__signature__"] = inspect.Signature(options)
    run.__annotations__ = {one.name: one.annotation for one in options}
    return run


def _options(target: Any) -> Iterator[inspect.Parameter]:
    """Yield the options of a command or a dataclass."""
    for one in _parameters(target):
        if is_dataclass(one.annotation):
            yield from _options(one.annotation)
        else:
            yield one.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _call(target: Any, given: dict[str, Any]) -> Any:
    """Call a command or a dataclass with its share of the options."""
    values = {
        one.name: _call(one.annotation, given) if is_dataclass(one.annotation) else given[one.name]
        for one in _parameters(target)
    }
    return target(**values)


def _parameters(target: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(target, include_extras=True)
    parameters = inspect.signature(target).parameters.values()
    return [one.replace(annotation=hints[one.name]) for one in parameters]
