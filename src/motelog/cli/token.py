"""``motelog token``: the tokens of a server's admin listener.

Owns: the text and JSON output. Must not touch: the file's lines (``console.tokens``).
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli.admin import Json
from motelog.cli.configured_file import configured_file
from motelog.cli.options import commands, taking
from motelog.cli.output import CliError, table, write, write_json, write_note
from motelog.cli.status import Status

token = commands("Manage the tokens of an admin listener.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token's bearer.")]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="The tokens file.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Take the tokens file from admin.tokens_file of this TOML file.",
    ),
]
_DAY_S = 86_400


class RoleName(StrEnum):
    VIEW = "view"
    OPERATE = "operate"
    ADMIN = "admin"


def path(file: File = None, config: Config = None) -> str:
    return configured_file(file, config, key="admin.tokens_file", what="file of tokens")


_of_file = taking(path)


@token.callback()
def group() -> None:
    """Manage the tokens of an admin listener.

    A running server applies a change at once. The file does not contain the tokens themselves:
    `create` prints a token once. The role view may look; operate may disconnect clients, end
    sessions, delete and send messages, and reset groups; admin may do everything.
    """


@token.command(epilog="Example: motelog token create alice --role operate --file tokens")
@_of_file
def create(
    name: Name,
    role: Annotated[RoleName, typer.Option(help="What its bearer may do.")] = RoleName.VIEW,
    days: Annotated[int, typer.Option(min=0, help="Days until the token expires; 0: never.")] = 0,
    *,
    path: str,
    json: Json = False,
) -> None:
    """Create a token and print it; the file is created if there is none."""
    from motelog.console import tokens
    from motelog.console.gate import Role

    expires_s = time.time() + days * _DAY_S if days else None
    try:
        text = tokens.create(path, name, Role[role.name], expires_s)
    except tokens.TokenNameError as exc:
        raise CliError(str(exc), status=Status.USAGE) from None
    except ValueError as exc:
        raise CliError(str(exc), status=Status.REFUSED) from None
    if json:
        write_json({"name": name, "role": role.value, "token": text})
    else:
        write(text)
        write_note(
            f"{name} may {role.value}; keep this token: it is not stored and shown only once"
        )


@token.command("list", epilog="Example: motelog token list --file tokens")
@_of_file
def list_tokens(*, path: str, json: Json = False) -> None:
    """List the tokens by name, with their roles and expiry."""
    from motelog.console.tokens import read_tokens

    rows: list[tuple[str, ...]] = [("name", "role", "expires")]
    for one in read_tokens(path):
        if json:
            write_json(
                {"name": one.name, "role": one.role.name.lower(), "expires": one.expires_text()}
            )
        rows.append((one.name, one.role.name.lower(), one.expires_text()))
    if not json:
        write(table(rows) if len(rows) > 1 else "no tokens")


@token.command(epilog="Example: motelog token delete alice --file tokens")
@_of_file
def delete(name: Name, *, path: str, json: Json = False) -> None:
    """Delete a token; its bearers are logged out."""
    from motelog.console import tokens

    if not tokens.delete(path, name):
        raise CliError(f"there is no token {name!r}", status=Status.NOT_FOUND)
    if json:
        write_json({"deleted": name})
    else:
        write(f"deleted {name}")
