"""``motelog token``: the tokens of a server's admin listener.

Owns: the text and JSON output. Must not touch: the file's lines (``console.tokens``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli.admin import Json
from motelog.cli.configured_file import config_option, configured_file, file_option
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, table, write, write_done, write_json, write_note
from motelog.cli.status import Status

token = commands("Manage the tokens of an admin listener.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token's bearer.")]
_DAY_S = 86_400


class RoleName(StrEnum):
    VIEW = "view"
    OPERATE = "operate"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class TokensFile:
    """The file of tokens, as --file or --config names it."""

    file: Annotated[Path | None, file_option("tokens file")] = None
    config: Annotated[Path | None, config_option("tokens file", "admin.tokens_file")] = None

    @property
    def path(self) -> str:
        return configured_file(
            self.file, self.config, key="admin.tokens_file", what="file of tokens"
        )


@token.callback()
def group() -> None:
    """Manage the tokens of an admin listener.

    A running server applies a change at once. The file does not contain the tokens themselves:
    `create` prints a token once. The role view may look; operate may disconnect clients, end
    sessions, delete and send messages, and reset groups; admin may do everything.
    """


@token.command(epilog="Example: motelog token create alice --role operate --file tokens")
@takes_options
def create(
    name: Name,
    role: Annotated[RoleName, typer.Option(help="What its bearer may do.")] = RoleName.VIEW,
    days: Annotated[int, typer.Option(min=0, help="Days until the token expires; 0: never.")] = 0,
    *,
    file: TokensFile,
    json: Json = False,
) -> None:
    """Create a token and print it; the file is created if there is none."""
    from motelog.console import tokens
    from motelog.console.gate import Role

    path = file.path
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
            f"{name} has the role {role.value}; keep this token: it is not stored or shown again"
        )


@token.command("list", epilog="Example: motelog token list --file tokens")
@takes_options
def list_tokens(*, file: TokensFile, json: Json = False) -> None:
    """List the tokens by name, with their roles and expiry."""
    from motelog.console.tokens import read_tokens

    rows: list[tuple[str, ...]] = [("name", "role", "expires")]
    for one in read_tokens(file.path):
        if json:
            write_json(
                {"name": one.name, "role": one.role.name.lower(), "expires": one.expires_text()}
            )
        rows.append((one.name, one.role.name.lower(), one.expires_text()))
    if not json:
        write(table(rows) if len(rows) > 1 else "no tokens")


@token.command(epilog="Example: motelog token delete alice --file tokens")
@takes_options
def delete(name: Name, *, file: TokensFile, json: Json = False) -> None:
    """Delete a token; its bearers are logged out."""
    from motelog.console import tokens

    if not tokens.delete(file.path, name):
        raise CliError(f"there is no token {name!r}", status=Status.NOT_FOUND)
    write_done({"deleted": name}, f"deleted {name}", json=json)
