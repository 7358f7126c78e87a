"""The admin API's endpoint for certificates: all roles reload theirs.

Owns: its answer. Must not touch: what is read, and automatic reloads
(``motelog.core.net.tls``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from motelog.console.api import Endpoint, NoParameters
from motelog.console.gate import Role
from motelog.core.net.listeners import CertificateFile

Reload = Callable[[], Awaitable[list[CertificateFile]]]


class CertificateFiles(msgspec.Struct, frozen=True):
    """The result for each file."""

    files: list[CertificateFile]


class CertificateApi:
    """Asks the running roles; each adds its function to ``reloads``."""

    def __init__(self) -> None:
        self.reloads: list[Reload] = []

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/certificates/reload",
                "Reload the certificates, keys, authorities and revocation lists",
                NoParameters,
                CertificateFiles,
                self.reload_certificates,
                method="POST",
                role=Role.ADMIN,
            )
        ]

    async def reload_certificates(self, query: NoParameters) -> CertificateFiles:
        return CertificateFiles([file for reload in self.reloads for file in await reload()])
