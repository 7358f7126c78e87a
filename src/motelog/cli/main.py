"""``motelog``: the list of commands and how their errors end.

Owns: the table of commands. Must not touch: any subject; a command's file is
imported when that command is called, so that ``motelog --help`` stays under 200 ms.

How a command ends is a ``Status``.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperGroup

from motelog import __version__
from motelog.cli.output import CliError, write, write_error
from motelog.cli.status import Status, status_of
from motelog.cli.values import read_plainly
from motelog.core.errors import ConfigError, MotelogError

if TYPE_CHECKING:
    from typer._click import Command, Context
    from typer._click.exceptions import UsageError
    from typer._click.formatting import HelpFormatter
else:
    # What typer raises for wrong use; it has no public name of its own.
    UsageError = typer.BadParameter.__bases__[0]

# Command -> what it is for; motelog/cli/<command>.py has a function or a Typer group of that name.
COMMANDS: Final = {
    "dev": "Run the whole stack in one process on loopback.",
    "demo": "Run devices, consumer and Spark once and check that nothing is lost.",
    "up": "Run the roles that a configuration file names.",
    "pub": "Publish MQTT messages.",
    "sub": "Print MQTT messages as they arrive.",
    "produce": "Send messages to a queue topic.",
    "consume": "Print messages of a queue topic.",
    "topic": "Look at queue topics, create and delete them.",
    "group": "Look at consumer groups and reset their offsets.",
    "message": "Look at single messages of the log.",
    "dlq": "Look at dead letters and send them again.",
    "bench": "Measure throughput and latency.",
    "spark": "Run Spark jobs on messages.",
    "status": "Say whether a running server takes work, and what it has.",
    "top": "Print what a running server does, a line each second.",
    "client": "Look at connected clients and disconnect them.",
    "retained": "Look at retained messages and delete them.",
    "session": "Look at sessions and end them.",
    "user": "Keep the users of a password file.",
    "token": "Keep the tokens of an admin listener.",
    "acl": "Ask what the rules of an ACL file allow.",
    "context": "Keep the clusters that commands ask.",
    "cert": "Make certificates for trying TLS; have a server read its own again.",
    "store": "Look into a store folder.",
    "backup": "Copy a store while it runs, check the copy, put it back.",
    "config": "Look at the configuration and check it.",
    "support-bundle": "Put what somebody needs to help you into one file, without secrets.",
    "doctor": "Check this machine.",
    "completion": "Print the script that completes commands in a shell.",
    "version": "Show release, Python and kernels.",
}
# An example of each that is a function; those of groups have theirs beside them.
EXAMPLES: Final = {
    "dev": "motelog dev --data motelog-data --auto-port",
    "demo": "motelog demo",
    "up": "motelog up --config /etc/motelog/motelog.toml",
    "produce": "motelog produce telemetry --tag dev42 -m 23",
    "consume": "motelog consume telemetry --from 1h --until-end",
    "bench": "motelog bench pipe --connections 50 --seconds 10",
    "status": "motelog status --json",
    "top": "motelog top --interval 5",
    "support-bundle": "motelog support-bundle --config /etc/motelog/motelog.toml",
    "doctor": "motelog doctor --config /etc/motelog/motelog.toml",
    "version": "motelog version",
}
# Commands whose names are no names in Python, or those of other modules.
MODULES: Final = {"status": "server_status", "support-bundle": "support_bundle"}
SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The top level: knows its commands by name and imports one when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        read_plainly(self)

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = MODULES.get(cmd_name, cmd_name)
        found = getattr(import_module(f"motelog.cli.{name}"), name)
        if not isinstance(found, typer.Typer):
            command = found
            found = _typer()
            example = f"Example: {EXAMPLES[cmd_name]}"
            found.command(cmd_name, context_settings=SETTINGS, epilog=example)(command)
        made = typer.main.get_command(found)
        read_plainly(made)
        return made

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        if args[0] not in COMMANDS:
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            ctx.fail(f"there is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _typer() -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


app = typer.Typer(
    name="motelog",
    cls=LazyGroup,
    help="MQTT gateway on a CommitLog message store. Start with: motelog dev",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        write(f"motelog {__version__}")
        raise typer.Exit


def _use_context(ctx: typer.Context, name: str | None) -> None:
    """Give a command that asks servers the addresses of the context as its defaults."""
    from motelog.cli import contexts

    if name is not None:
        os.environ[contexts.VARIABLE] = name
    called = ctx.invoked_subcommand
    context = contexts.chosen() if called in contexts.CLIENTS else None
    if called is None or context is None:
        return
    command = LazyGroup.get_command(cast("LazyGroup", ctx.command), ctx, called)
    defaults: dict[str, Any] = dict(context.defaults())
    below = dict.fromkeys(getattr(command, "commands", {}), defaults)
    ctx.default_map = {called: defaults | below}


@app.callback()
def root(
    ctx: typer.Context,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Ask the cluster of this context (motelog context)."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the release and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """MQTT gateway on a CommitLog message store. Start with: motelog dev"""
    _use_context(ctx, context)


def main() -> NoReturn:
    """Run the command line and exit; an error raised on purpose ends in one message."""
    try:
        status = app(prog_name="motelog", standalone_mode=False)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as exc:
        sys.exit(_status(exc))
    if status == Status.INTERRUPTED:  # typer has made it of a KeyboardInterrupt
        sys.exit(_status(KeyboardInterrupt()))
    sys.exit(status if isinstance(status, int) else Status.DONE)


def _status(error: BaseException) -> int:
    """Say what an error means and return the exit status; raise it if nobody expected it."""
    match _telling(error):
        case UsageError() as exc:
            return _refuse_usage(exc)
        case CliError() as exc:
            write_error(str(exc), exc.remedy)
            return exc.status
        case MotelogError() as exc:
            status, remedy = status_of(exc)
            what = "the configuration cannot be used\n" if isinstance(exc, ConfigError) else ""
            write_error(f"{what}{exc}", remedy)
            return status
        case KeyboardInterrupt():
            write_error("interrupted")
            return Status.INTERRUPTED
        case BrokenPipeError():
            # The reader of a pipe has gone; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Status.FAILED
        case _:
            raise error


def _refuse_usage(error: UsageError) -> Status:
    """Say what was typed wrong, in one line, and where the right use is described."""
    if error.ctx is not None and error.message == error.ctx.get_help():
        error.show()  # a group without a command: its help
        return Status.USAGE
    text = error.format_message()
    words = text.split(maxsplit=1)
    text = f"{words[0].lower()} {words[1]}" if len(words) > 1 else text
    command = "motelog" if error.ctx is None else error.ctx.command_path
    write_error(text.rstrip("."), f"see: {command} --help")
    return Status.USAGE


def _telling(error: BaseException) -> BaseException:
    """Return the error that ended the command; each nursery has wrapped it once."""
    found = [error]
    while any(isinstance(one, BaseExceptionGroup) for one in found):
        found = [
            leaf
            for one in found
            for leaf in (one.exceptions if isinstance(one, BaseExceptionGroup) else (one,))
        ]
    # The user's interrupt goes first: the other errors follow from it.
    return next((one for one in found if isinstance(one, KeyboardInterrupt)), found[0])
