"""``motelog completion``: the script with which a shell completes commands, options and choices.

Owns: the choice of the shell. Must not touch: the script; it is typer's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from motelog.cli.output import CliError, write
from motelog.cli.status import Status

SHELLS: Final = ("bash", "zsh", "fish", "powershell")

completion = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@completion.command(epilog="Example: motelog completion bash >> ~/.bash_completion")
def print_script(
    shell: Annotated[
        str | None,
        typer.Argument(
            metavar="[bash|zsh|fish|powershell]",
            help="The shell. [default: that of $SHELL]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the script with which a shell completes commands, options and choices.

    `motelog --install-completion` installs it for the current shell.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # no other name

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise CliError(
            f"there is no script for the shell {name!r}" if name else "$SHELL names no shell",
            remedy=f"name one of {', '.join(SHELLS)}",
            status=Status.USAGE,
        )
    write(get_completion_script(prog_name="motelog", complete_var="_MOTELOG_COMPLETE", shell=name))
