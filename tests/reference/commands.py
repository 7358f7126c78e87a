"""docs/reference/commands.md: each command with its arguments and options, as typer has them.

Owns: that page's text. Must not touch: what a command does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from motelog.cli.main import app
from tests.reference.markdown import prose, table

if TYPE_CHECKING:
    from typer._click import Command, Context

_HEAD: Final = """\
# Commands

Each command with its arguments and options, as `motelog COMMAND --help` has them. What all
commands share, exit statuses and completion among it, is in [commands.md](../commands.md).

This page is written by `python -m tests.reference`.
"""


def page() -> str:
    root = typer.main.get_command(app)
    context = root.make_context("motelog", ["version"], resilient_parsing=True)
    return "\n".join([_HEAD, *_commands_below(root, context)])


def _commands_below(group: Command, context: Context) -> Iterator[str]:
    for name in group.list_commands(context):  # type: ignore[attr-defined]  # a group has it
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        below = type(context)(command, parent=context, info_name=name)
        if hasattr(command, "list_commands"):
            yield from _commands_below(command, below)
        else:
            yield from _command(command, below)


def _command(command: Command, context: Context) -> Iterator[str]:
    yield f"## {context.command_path}"
    yield ""
    yield from (f"{prose(part)}\n" for part in (command.help or "").split("\n\n"))
    yield "```text"
    yield " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield "```\n"
    records = (param.get_help_record(context) for param in command.get_params(context))
    rows = [
        (f"`{names}`", prose(text))
        for names, text in filter(None, records)
        if "--help" not in names
    ]
    if rows:
        yield from table(("argument or option", "what"), rows)
    if command.epilog:
        yield f"{command.epilog.replace('Example: ', 'Example: `')}`\n"
