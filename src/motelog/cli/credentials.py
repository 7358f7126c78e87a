"""``--credentials`` of the commands that are native clients.

Owns: the option, reading its file, a warning if all users may read it.
Must not touch: what is signed (core.remoting.credentials).
A secret is never passed as an option or a variable: other users of the machine can see options,
and every child process inherits variables.
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
        help="File with accessKey and secretKey, for servers that check access.",
    ),
]


def credentials_of(file: str | None) -> Credentials | None:
    """Return the credentials in the file; ConfigError if it cannot be used."""
    from motelog.core.acl.files import read_credentials

    if not file:
        return None
    found = read_credentials(file)
    if Path(file).stat().st_mode & stat.S_IROTH:
        write_error(READ_BY_OTHERS.format(file=file), f"chmod 600 {file}")
    return found
