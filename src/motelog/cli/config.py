"""``motelog config``: look at a configuration file without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motelog.cli.output import stop, write, write_json

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

    The exit status is 78 if anything is.
    """
    from motelog.config import load_config
    from motelog.core.config import CONFIG_EXIT_STATUS, ConfigFaultsError

    try:
        loaded = load_config(file)
    except ConfigFaultsError as exc:
        if not json:
            raise
        faults = [
            {
                "source": fault.source,
                "key": fault.key,
                "message": fault.message,
                "expected": fault.expected,
                "nearest": fault.nearest,
            }
            for fault in exc.faults
        ]
        write_json({"valid": False, "faults": faults})
        stop(CONFIG_EXIT_STATUS)
    if json:
        write_json({"valid": True, "faults": []})
    else:
        write(f"{file}: valid; roles {', '.join(loaded.roles)}")
