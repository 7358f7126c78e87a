"""``motelog config``: look at a configuration file without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli.output import stop, write, write_error, write_json
from motelog.cli.status import Status

config = typer.Typer(
    help="Check configuration files.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@config.callback()
def group() -> None:
    """Check configuration files."""


@config.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Report everything that is wrong with a file and the environment.

    It is what `motelog up` checks before it starts. The exit status is 78 if anything is wrong.
    Sizes and times may have units: "64MiB", "1GB", "500ms", "72h".
    """
    from motelog.config import load_config, unread_variables
    from motelog.core.config import ConfigFaultsError

    unread = unread_variables()
    faults: list[dict[str, object]] = []
    try:
        loaded = load_config(file)
    except ConfigFaultsError as exc:
        if not json:
            tell_unread(unread)
            raise
        faults = [asdict(fault) for fault in exc.faults]
    if json:
        write_json({"valid": not faults, "faults": faults, "unread_variables": unread})
        stop(Status.CONFIG if faults else Status.DONE)
    tell_unread(unread)
    write(f"{file}: valid; roles {', '.join(loaded.roles)}")


def tell_unread(variables: Mapping[str, str | None]) -> None:
    """Name the variables that look like ours and have no effect."""
    for name, nearest in variables.items():
        hint = f"did you mean {nearest}?" if nearest else "keys are set by MOTELOG__SECTION__KEY"
        write_error(f"environment variable {name} has no effect; {hint}")
