"""How commands share options, and groups of commands their settings.

Owns: ``taking``, ``commands``. Must not touch: any option (``native``, ``admin``,
``mqtt_options``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

import typer

Command = Callable[..., None]


def commands(purpose: str) -> typer.Typer:
    """Return an empty group of commands that prints its help when none is named."""
    return typer.Typer(
        help=purpose, no_args_is_help=True, rich_markup_mode=None, add_completion=False
    )


def taking(maker: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give commands the parameters of ``maker`` in place of their parameter that has its name.

    They are options of the command like its own. It is called with what ``maker`` makes of them.
    """
    name = maker.__name__
    shared = inspect.signature(maker).parameters
    shared_hints = get_type_hints(maker, include_extras=True)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            options = {one: given.pop(one) for one in shared}
            command(**given, **{name: maker(**options)})

        hints = get_type_hints(command, include_extras=True) | shared_hints
        taken: list[inspect.Parameter] = []
        for one in inspect.signature(command).parameters.values():
            taken += shared.values() if one.name == name else [one]
        typed = [
            one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for one in taken
        ]
        vars(run)["__signature__"] = inspect.Signature(typed)
        run.__annotations__ = {one.name: one.annotation for one in typed}
        return run

    return decorate
