"""docs/reference/commands.md: each command with its arguments and options, as typer has them.

Owns: that page's text. Must not touch: what a command does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from motelog.cli.main import app
from tests.reference.markdown import prose

if TYPE_CHECKING:
    from typer._click import Command, Context

#: An option that so many commands have in the same words is described once.
COMMON_FROM: Final = 10

_HEAD: Final = """\
# Commands

Each command with its arguments and options, as `motelog COMMAND --help` has them.
[commands.md](../commands.md) has exit statuses, contexts and completion.

This page is written by `python -m tests.reference`.
"""


class Found(NamedTuple):
    command: Command
    context: Context
    options: list[tuple[str, str]]
    """Names and text of each argument and option."""


def page() -> str:
    root = typer.main.get_command(app)
    context = root.make_context("motelog", ["version"], resilient_parsing=True)
    found = list(_commands_below(root, context))
    counts = Counter(option for command in found for option in command.options)
    common = {
        option: f"`{option[0].split()[0]}`" for option in counts if _is_common(option, counts)
    }
    lines = [_HEAD, "## Common options", "", *_list(common)]
    for command in found:
        lines += _command(command, common)
    return "\n".join(lines)


def _is_common(option: tuple[str, str], counts: Counter[tuple[str, str]]) -> bool:
    return option[0].startswith("-") and counts[option] >= COMMON_FROM


def _commands_below(group: Command, context: Context) -> Iterator[Found]:
    for name in group.list_commands(context):  # type: ignore[attr-defined]  # a group has it
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        below = type(context)(command, parent=context, info_name=name)
        if hasattr(command, "list_commands"):
            yield from _commands_below(command, below)
        else:
            records = (param.get_help_record(below) for param in command.get_params(below))
            options = [(names, prose(text)) for names, text in filter(None, records)]
            yield Found(command, below, [one for one in options if "--help" not in one[0]])


def _command(found: Found, common: Mapping[tuple[str, str], str]) -> Iterator[str]:
    command, context, options = found
    yield f"## {context.command_path}"
    yield ""
    yield from (f"{prose(part)}\n" for part in (command.help or "").split("\n\n"))
    usage = command.collect_usage_pieces(context)
    if usage != ["[OPTIONS]"]:
        yield f"Usage: `{' '.join([context.command_path, *usage])}`\n"
    own = [option for option in options if option not in common]
    if own:
        yield from _list(own)
    shared = ", ".join(common[option] for option in options if option in common)
    if shared:
        yield f"Common options: {shared}.\n"
    if command.epilog:
        yield f"{command.epilog.replace('Example: ', 'Example: `')}`\n"


def _list(options: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield from (f"- `{names}`: {text}" for names, text in options)
    yield ""
