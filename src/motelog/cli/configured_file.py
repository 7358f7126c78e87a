"""The file that a command works on, where a configuration may name it.

Owns: which one that is, ``--file`` and ``--config``. Must not touch: what is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from motelog.cli.output import CliError
from motelog.cli.status import Status


def file_option(what: str) -> Any:
    return typer.Option("--file", "-f", metavar="FILE", help=f"The {what}.")


def config_option(what: str, key: str) -> Any:
    text = f"Take the {what} from {key} of this TOML file."
    return typer.Option("--config", metavar="FILE", help=text)


def configured_file(
    file: Path | None, config: Path | None, *, key: str, what: str, without: str = ""
) -> str:
    """Return ``file``, or what the key ("access.acl_file") of ``config`` names; CliError if none.

    ``what`` is the file's purpose in words, ``without`` what a configuration without it does.
    """
    if file is not None:
        return str(file)
    if config is None:
        text = f"which {what}?"
        raise CliError(text, remedy="--file FILE, or --config FILE", status=Status.USAGE)
    from motelog.config import load_config

    section, _, name = key.partition(".")
    path = str(getattr(getattr(load_config(config), section), name))
    if not path:
        raise CliError(
            f"{config} names no {what}{without}",
            remedy=f'add to it: [{section}] {name} = "FILE"',
            status=Status.CONFIG,
        )
    return path
