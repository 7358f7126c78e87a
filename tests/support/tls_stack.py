"""A name server and a broker of ours that have TLS.

Owns: server_keys, secured. Must not touch: expectations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.broker_stack import Stack, eventually, started_stack
from tests.support.certificates import Certificates, certificates


def server_keys(files: Certificates, **keys: str) -> dict[str, Any]:
    return {"tls_certificate": files.server, "tls_key": files.server_key, **keys}


@asynccontextmanager
async def secured(
    directory: Path, files: Certificates | None = None, /, **keys: str
) -> AsyncIterator[Stack]:
    """Run a name server and a broker that have ``keys`` of TLS, and register by it."""
    files = files or certificates()
    tls = directory / "tls.properties"
    tls.write_text(
        f"tls.client.trustCertPath={files.ca}\ntls.client.certPath={files.client}\n"
        f"tls.client.keyPath={files.client_key}\n"
    )
    section = server_keys(files, **keys)
    async with started_stack(
        directory / "store", namesrv_fields=section, tls_file=str(tls), **section
    ) as stack:
        await eventually(lambda: stack.broker.is_registered)
        yield stack
