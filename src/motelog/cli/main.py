"""``motelog``: the list of commands, and how errors become exit statuses.

Owns: the table of commands. Must not touch: what a command does; a command's file is imported only
when that command is called, so that ``motelog --help`` takes less than 200 ms.

A command ends with a ``Status``.
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
    # What typer raises for wrong usage; typer does not export it.
    UsageError = typer.BadParameter.__bases__[0]

# Command -> what it is for; motelog/cli/<command>.py has a function or a Typer group of that name.
COMMANDS: Final = {
    "dev": "Run the whole stack in one process on loopback.",
    "demo": "Run devices, a consumer and Spark once and check that no message is lost.",
    "up": "Run the roles that a configuration file names.",
    "pub": "Publish MQTT messages.",
    "sub": "Print MQTT messages as they arrive.",
    "produce": "Send messages to a queue topic.",
    "consume": "Print the messages of a queue topic.",
    "topic": "Show, create, change and delete queue topics.",
    "group": "Show consumer groups and reset their offsets.",
    "broker": "Show brokers and their slaves, and promote a slave.",
    "message": "Show single messages of the log.",
    "dlq": "List, export and resend dead letters.",
    "bench": "Measure throughput and latency.",
    "spark": "Run Spark jobs on messages.",
    "status": "Show whether a running server is ready, and what it holds.",
    "top": "Print the rates of a running server, a line each second.",
    "client": "List, trace and disconnect connected clients.",
    "retained": "Show and delete retained messages.",
    "session": "Show and end sessions.",
    "user": "Manage the users of a password file.",
    "token": "Manage the tokens of an admin listener.",
    "acl": "Show what the rules of an ACL file allow.",
    "context": "Manage named clusters for the commands.",
    "cert": "Create certificates for trying TLS; reload a server's certificates.",
    "store": "Inspect a store folder.",
    "backup": "Back up a store while it runs, verify and restore backups.",
    "config": "Show, check and change the configuration.",
    "support-bundle": "Collect diagnostics for support in one file, without secrets.",
    "doctor": "Check this machine and the advertised addresses.",
    "completion": "Print the shell completion script.",
    "version": "Show the release, Python and kernels.",
}
# An example for each command that is a function; the commands of groups carry their own.
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
# Commands whose names are not identifiers, or are taken by other modules.
MODULES: Final = {"status": "server_status", "support-bundle": "support_bundle"}
SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The top level: knows its commands by name and imports each when it is called."""

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
    """Give a command that queries servers the context's addresses as its defaults."""
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
        typer.Option(metavar="NAME", help="Use the cluster of this context (see motelog context)."),
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
    """Run the command line and exit; an expected error is printed as one message."""
    try:
        status = app(prog_name="motelog", standalone_mode=False)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as exc:
        sys.exit(_status(exc))
    if status == Status.INTERRUPTED:  # typer's translation of KeyboardInterrupt
        sys.exit(_status(KeyboardInterrupt()))
    sys.exit(status if isinstance(status, int) else Status.DONE)


def _status(error: BaseException) -> int:
    """Print what an error means and return the exit status; raise it if it is unexpected."""
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
            # The reader of a pipe is gone; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Status.FAILED
        case _:
            raise error


def _refuse_usage(error: UsageError) -> Status:
    """Print what was typed wrong, in one line, and where the usage is described."""
    if error.ctx is not None and error.message == error.ctx.get_help():
        error.show()  # a group without a command shows its help
        return Status.USAGE
    text = error.format_message()
    words = text.split(maxsplit=1)
    text = f"{words[0].lower()} {words[1]}" if len(words) > 1 else text
    command = "motelog" if error.ctx is None else error.ctx.command_path
    write_error(text.rstrip("."), f"see: {command} --help")
    return Status.USAGE


def _telling(error: BaseException) -> BaseException:
    """Return the error that ended the command, unwrapped from each nursery's group."""
    found = [error]
    while any(isinstance(one, BaseExceptionGroup) for one in found):
        found = [
            leaf
            for one in found
            for leaf in (one.exceptions if isinstance(one, BaseExceptionGroup) else (one,))
        ]
    # The user's interrupt goes first: the other errors follow from it.
    return next((one for one in found if isinstance(one, KeyboardInterrupt)), found[0])
