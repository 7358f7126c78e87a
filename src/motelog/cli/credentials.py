"""``--credentials`` of the commands that are native clients.

Owns: the option, reading its file. Must not touch: what is signed (core.remoting.credentials).
A secret is no option and no variable: other users of the machine see the ones, and every program
that is started gets the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from motelog.core.remoting.credentials import Credentials

VARIABLE = "MOTELOG_CREDENTIALS"

CredentialsFile = Annotated[
    str | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        envvar=VARIABLE,
        help="File with accessKey and secretKey, for servers with access control; mode 600.",
    ),
]


def credentials_of(file: str | None) -> Credentials | None:
    """Return what the file of the option says; ConfigError or CliError if it cannot be used."""
    from motelog.cli.contexts import check_private
    from motelog.core.acl.files import read_credentials

    if not file:
        return None
    check_private(file)
    return read_credentials(file)
