"""docs/reference/commands.md: each command with its arguments and options, as typer has them.

Owns: that page's text. Must not touch: what a command does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from motelog.cli.main import app
from tests.reference.markdown import prose

if TYPE_CHECKING:
    from typer._click import Command, Context

#: An argument or option that so many commands have in the same words is described once.
COMMON_FROM: Final = 5
#: Beside those: options of an MQTT client, which these commands have in the same words.
CLIENTS: Final = ("motelog pub", "motelog sub")
#: Options that commands which ask brokers have.
BROKERS: Final = ("`--namesrv`", "`--credentials`", "`--tls`")
#: Characters of a text that a group's commands do not repeat.
LONG: Final = 50

_HEAD: Final = """\
# Commands

Each command with its arguments (optional ones in brackets) and options. `motelog COMMAND --help`
has the same with an example. [commands.md](../commands.md) has exit statuses, contexts, completion.

This page is written by `python -m tests.reference`.
"""


Option = tuple[str, str]  # its names, and what it does


class Found(NamedTuple):
    command: Command
    context: Context
    options: list[Option]
    """Arguments and options."""


def page() -> str:
    root = typer.main.get_command(app)
    context = root.make_context("motelog", ["version"], resilient_parsing=True)
    found = list(_commands_below(root, context))
    counts = Counter(option for command in found for option in command.options)
    often = [option for option, count in counts.most_common() if count >= COMMON_FROM]
    # Of two with the same names the more common one.
    common = list({option[0]: option for option in reversed(often)}.values())
    clients = [one.options for one in found if one.context.command_path in CLIENTS]
    mqtt = [
        one for one in clients[0] if one not in common and all(one in all_of for all_of in clients)
    ]
    lines = [_HEAD, "## Common arguments and options", "", *_list(common)]
    lines += [f"{', '.join(BROKERS)} are the options for brokers.\n"]
    lines += ["## Options of MQTT clients", "", *_list(mqtt)]
    said: dict[tuple[str, Option], str] = {}
    for command in found:
        lines += _command(command, common, mqtt, said)
    return "\n".join(lines)


def _commands_below(group: Command, context: Context) -> Iterator[Found]:
    for name in group.list_commands(context):  # type: ignore[attr-defined]  # a group has it
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        below = type(context)(command, parent=context, info_name=name)
        if hasattr(command, "list_commands"):
            yield from _commands_below(command, below)
        else:
            records = (param.get_help_record(below) for param in command.get_params(below))
            # The usage shows which arguments are required.
            options = [
                (
                    names,
                    prose(text)
                    if names.startswith("-")
                    else prose(text).removesuffix(" [required]"),
                )
                for names, text in filter(None, records)
            ]
            yield Found(command, below, [one for one in options if "--help" not in one[0]])


def _command(
    found: Found,
    common: list[Option],
    mqtt: list[Option],
    said: dict[tuple[str, Option], str],
) -> Iterator[str]:
    """Yield a command's part; ``said`` has the long texts of options that its group has had."""
    command, context, options = found
    is_client = context.command_path in CLIENTS
    above = [*common, *(mqtt if is_client else ())]
    own = [option for option in options if option not in above]
    usage = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    usage = [piece.strip("{}") for piece in usage]
    own = [_once(option, context.command_path, said) for option in own]
    # An optional argument is in brackets.
    own = [(f"[{names}]" if f"[{names}]" in usage else names, text) for names, text in own]
    arguments = ""
    if not {names for names, _ in own}.issuperset(usage):
        arguments = f" {' '.join(usage)}"
    yield f"## {context.command_path}{arguments}"
    yield ""
    yield from (f"{prose(part)}\n" for part in (command.help or "").split("\n\n"))
    if own:
        yield from _list(own)
    # The usage names the arguments.
    shared = [f"`{names.split()[0]}`" for names, text in options if (names, text) in common]
    shared = [name for name in shared if name.startswith("`-")]
    if is_client:
        shared.append("the options of MQTT clients")
    if set(BROKERS) <= set(shared):
        shared = ["those for brokers", *(name for name in shared if name not in BROKERS)]
    if shared:
        yield f"Also {', '.join(shared)}.\n"


def _once(option: Option, command: str, said: dict[tuple[str, Option], str]) -> Option:
    """Return an option, or where its text is if another command of the group has it."""
    names, text = option
    if len(text) < LONG:
        return option
    before = said.setdefault((command.rpartition(" ")[0], option), command)
    return option if before == command else (names, f"as in `{before}`.")


def _list(options: Iterable[Option]) -> Iterator[str]:
    yield from (f"- `{names}`: {text}" for names, text in options)
    yield ""
