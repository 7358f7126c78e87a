"""``--tls`` of the commands that are native clients.

Owns: the option, reading its file. Must not touch: what a handshake does (core.remoting.tls).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from motelog.core.remoting.tls import Tls

VARIABLE = "MOTELOG_TLS"

TlsFile = Annotated[
    str | None,
    typer.Option(
        "--tls",
        metavar="FILE",
        envvar=VARIABLE,
        help="Use TLS: file of trusted authorities (PEM), or RocketMQ's tls.properties.",
    ),
]


def tls_of(file: str | None) -> Tls | None:
    """Return the TLS settings in the file; ConfigError if it cannot be used."""
    from motelog.core.remoting.tls import read_tls

    return read_tls(file) if file else None
