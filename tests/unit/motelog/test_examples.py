"""Each command's help ends with an example, and the command takes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import typer

from motelog.cli.main import app

if TYPE_CHECKING:
    from typer._click import Command, Context

BEGINS = "Example: motelog "


def below(group: Command, context: Context) -> Iterator[tuple[str, Command, Context]]:
    """Yield each command with its name and the context that it would be called in."""
    for name in group.list_commands(context):  # type: ignore[attr-defined]  # a group has it
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        inner = type(context)(command, parent=context, info_name=name)
        if hasattr(command, "list_commands"):
            yield from below(command, inner)
        else:
            yield inner.command_path.removeprefix("motelog "), command, inner


def test_help_of_each_command_ends_with_an_example_that_it_takes() -> None:
    # In the test, as a tree of commands takes as long as hundreds of tests to collect.
    root: Any = typer.main.get_command(app)
    context = root.make_context("motelog", ["version"], resilient_parsing=True)
    for name, command, inner in below(root, context):
        assert command.epilog is not None, name
        assert command.epilog.startswith(f"{BEGINS}{name}")
        words = shlex.split(command.epilog.removeprefix(BEGINS))[len(name.split()) :]
        # What follows is the shell's.
        arguments = list(takewhile(lambda word: word not in (">", ">>", "||"), words))
        command.make_context(name, arguments, parent=inner.parent)  # it is read, and not called
