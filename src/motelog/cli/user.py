"""``motelog user``: the users of a password file.

Owns: the words and the JSON, where a password is read from. Must not touch: the file's lines.
A password is never an argument: everyone on the machine sees those, and the shell keeps them.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli.admin import Json
from motelog.cli.configured_file import configured_file
from motelog.cli.options import commands, taking
from motelog.cli.output import CliError, write, write_json
from motelog.cli.status import Status

user = commands("Keep the users of a password file.")

Name = Annotated[str, typer.Argument(metavar="USER", help="User name.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="The password file.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file whose access.password_file it is."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-from",
        metavar="FILE",
        help="File with the password; otherwise it is asked for,"
        " or the first line of standard input if that is no terminal.",
    ),
]


Scram = Annotated[
    bool,
    typer.Option(
        "--scram", help="Keep what SCRAM-SHA-256 needs: MQTT 5 clients prove that they know it."
    ),
]


def path(file: File = None, config: Config = None) -> str:
    return configured_file(file, config, key="access.password_file", what="password file")


_of_file = taking(path)


@user.callback()
def group() -> None:
    """Keep the users of a password file.

    A server that runs takes a change within five seconds. A password is never an argument.
    """


@user.command(epilog="Example: motelog user add dev42 --file passwords")
@_of_file
def add(
    name: Name,
    *,
    path: str,
    password_from: PasswordFile = None,
    scram: Scram = False,
    json: Json = False,
) -> None:
    """Add a user; the file is made if there is none."""
    from motelog.gateway.access.password_file import changing

    _check(name)
    made = _hash(password_from, scram=scram)
    with changing(path) as users:
        if name in users:
            raise CliError(
                f"there is a user {name!r} already",
                remedy=f"motelog user passwd {name} changes the password",
                status=Status.REFUSED,
            )
        users[name] = made
    _tell("added", name, json)


@user.command(epilog="Example: motelog user passwd dev42 --file passwords")
@_of_file
def passwd(
    name: Name,
    *,
    path: str,
    password_from: PasswordFile = None,
    scram: Scram = False,
    json: Json = False,
) -> None:
    """Change the password of a user; whoever is connected by the old one is disconnected."""
    from motelog.gateway.access.password_file import changing

    made = _hash(password_from, scram=scram)
    with changing(path) as users:
        _find(users, name)
        users[name] = made
    _tell("changed", name, json)


@user.command("list", epilog="Example: motelog user list --file passwords")
@_of_file
def list_users(*, path: str, json: Json = False) -> None:
    """List the users."""
    from motelog.gateway.access.password_file import read_users

    for name in sorted(read_users(path)):
        if json:
            write_json({"user": name})
        else:
            write(name)


@user.command(epilog="Example: motelog user delete dev42 --file passwords")
@_of_file
def delete(name: Name, *, path: str, json: Json = False) -> None:
    """Delete a user; its clients are disconnected."""
    from motelog.gateway.access.password_file import changing

    with changing(path) as users:
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
    """Return the password from where it is to be read; one line end belongs to the line."""
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
        raise CliError("these are two passwords", status=Status.USAGE)
    return password.encode()


def _tell(what: str, name: str, json: bool) -> None:
    if json:
        write_json({what: name})
    else:
        write(f"{what} {name}")
