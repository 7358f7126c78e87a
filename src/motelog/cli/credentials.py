"""``--credentials`` of the commands that are native clients.

Owns: the option, reading its file, a word about one that everybody may read.
Must not touch: what is signed (core.remoting.credentials).
A secret is no option and no variable: other users of the machine see the ones, and every program
that is started gets the others.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from motelog.cli.output import write_error

if TYPE_CHECKING:
    from motelog.core.remoting.credentials import Credentials

READ_BY_OTHERS: Final = "warning: all users of this machine may read the secret key in {file}"
VARIABLE = "MOTELOG_CREDENTIALS"

CredentialsFile = Annotated[
    str | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        envvar=VARIABLE,
        help="File with accessKey and secretKey, for servers with access control.",
    ),
]


def credentials_of(file: str | None) -> Credentials | None:
    """Return what the file of the option says; ConfigError if it cannot be used."""
    from motelog.core.acl.files import read_credentials

    if not file:
        return None
    found = read_credentials(file)
    if Path(file).stat().st_mode & stat.S_IROTH:
        write_error(READ_BY_OTHERS.format(file=file), f"chmod 600 {file}")
    return found
