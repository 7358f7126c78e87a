"""``motelog user``: the users of a password file.

Owns: the text and JSON output, where a password is read from. Must not touch: the file's format.
A password is never an argument: all users of the machine can see arguments, and the shell stores
them.
"""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli.admin import Json
from motelog.cli.configured_file import config_option, configured_file, file_option
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, write, write_done, write_json
from motelog.cli.status import Status

user = commands("Manage the users of a password file.")

Name = Annotated[str, typer.Argument(metavar="USER", help="User name.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-from",
        metavar="FILE",
        help="File with the password; otherwise it is prompted for,"
        " or read from the first line of standard input if that is not a terminal.",
    ),
]


Scram = Annotated[
    bool,
    typer.Option(
        "--scram",
        help="Store SCRAM-SHA-256 keys: MQTT 5 clients prove that they know the password.",
    ),
]


@dataclass(frozen=True, slots=True)
class UsersFile:
    """The password file, as --file or --config names it."""

    file: Annotated[Path | None, file_option("password file")] = None
    config: Annotated[Path | None, config_option("password file", "access.password_file")] = None

    @property
    def path(self) -> str:
        return configured_file(
            self.file, self.config, key="access.password_file", what="password file"
        )


@user.callback()
def group() -> None:
    """Manage the users of a password file.

    A running server applies a change within five seconds. A password is never an argument.
    """


@user.command(epilog="Example: motelog user add dev42 --file passwords")
@takes_options
def add(
    name: Name,
    *,
    file: UsersFile,
    password_from: PasswordFile = None,
    scram: Scram = False,
    json: Json = False,
) -> None:
    """Add a user; the file is created if there is none."""
    from motelog.gateway.access.password_file import changing

    path = file.path
    _check(name)
    made = _hash(password_from, scram=scram)
    with changing(path) as users:
        if name in users:
            raise CliError(
                f"the user {name!r} already exists",
                remedy=f"to change the password: motelog user passwd {name}",
                status=Status.REFUSED,
            )
        users[name] = made
    _tell("added", name, json)


@user.command(epilog="Example: motelog user passwd dev42 --file passwords")
@takes_options
def passwd(
    name: Name,
    *,
    file: UsersFile,
    password_from: PasswordFile = None,
    scram: Scram = False,
    json: Json = False,
) -> None:
    """Change a user's password; clients that logged in with the old one are disconnected."""
    from motelog.gateway.access.password_file import changing

    path = file.path
    made = _hash(password_from, scram=scram)
    with changing(path) as users:
        _find(users, name)
        users[name] = made
    _tell("changed", name, json)


@user.command("list", epilog="Example: motelog user list --file passwords")
@takes_options
def list_users(*, file: UsersFile, json: Json = False) -> None:
    """List the users."""
    from motelog.gateway.access.password_file import read_users

    for name in sorted(read_users(file.path)):
        if json:
            write_json({"user": name})
        else:
            write(name)


@user.command(epilog="Example: motelog user delete dev42 --file passwords")
@takes_options
def delete(name: Name, *, file: UsersFile, json: Json = False) -> None:
    """Delete a user; its clients are disconnected."""
    from motelog.gateway.access.password_file import changing

    with changing(file.path) as users:
        _find(users, name)
        del users[name]
    _tell("deleted", name, json)


def _check(name: str) -> None:
    from motelog.gateway.access.password_file import check_user_name

    try:
        check_user_name(name)
    except ValueError as exc:
        raise CliError(str(exc), status=Status.USAGE) from None


def _find(users: dict[str, str], name: str) -> None:
    if name not in users:
        raise CliError(f"there is no user {name!r}", status=Status.NOT_FOUND)


def _hash(password_from: Path | None, *, scram: bool) -> str:
    from motelog.gateway.access.password_file import hash_password, scram_hash

    try:
        return (scram_hash if scram else hash_password)(_password(password_from))
    except ValueError as exc:
        raise CliError(str(exc), status=Status.USAGE) from None


def _password(source: Path | None) -> bytes:
    """Return the password from its source, without one newline at its end."""
    if source is not None:
        try:
            text = source.read_bytes()
        except OSError as exc:
            raise CliError(f"cannot read {source}: {exc.strerror or exc}") from None
        return text.removesuffix(b"\n").removesuffix(b"\r")
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise CliError("the passwords do not match", status=Status.USAGE)
    return password.encode()


def _tell(what: str, name: str, json: bool) -> None:
    write_done({what: name}, f"{what} {name}", json=json)
