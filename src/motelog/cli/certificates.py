"""Whether the server of a configuration can use its certificates and keys, file by file.

Owns: which files those are, the remedy for each. Must not touch: addresses (``advertised``).
It looks with the rights of whoever runs it: run it as the user that the server runs as.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from motelog.cli.finding import Finding
from motelog.core.net.tls import TlsContexts

if TYPE_CHECKING:
    from motelog.config import MotelogConfig

MISSING = "name a file that is there; `motelog cert dev-ca` makes some for a try"
UNREADABLE = "let the server's user read it: chgrp GROUP {path} && chmod 640 {path}"
UNFIT = (
    "it takes PEM files: the certificate with the chain above it, and its key, not encrypted; see"
    " both with openssl x509 -in {certificate} -noout -pubkey and openssl pkey -in {key} -pubout"
)


def certificate_findings(config: MotelogConfig) -> list[Finding]:
    """Return what is to say of each section that has TLS."""
    return [_look(title, *paths) for title, paths in _sections(config)]


def _sections(config: MotelogConfig) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield what is called how, and its files: certificate, key and clients' authority."""
    if "namesrv" in config.roles and (certificate := config.namesrv.tls_certificate):
        yield "[namesrv]", (certificate, config.namesrv.tls_key, config.namesrv.tls_client_ca)
    broker = config.broker if "broker" in config.roles else None
    if broker is not None and broker.tls_certificate:
        yield "[broker]", (broker.tls_certificate, broker.tls_key, broker.tls_client_ca)
    for one in config.listener if "gateway" in config.roles else ():
        if one.tls_certificate:
            yield f"listener {one.name}", (one.tls_certificate, one.tls_key, one.tls_client_ca)
    if "console" in config.roles and config.admin.tls_certificate:
        yield "[admin]", (config.admin.tls_certificate, config.admin.tls_key, "")


def _look(title: str, certificate: str, key: str, client_ca: str) -> Finding:
    name = f"TLS of {title}"
    for path in filter(None, (certificate, key, client_ca)):
        try:
            with Path(path).open("rb"):
                pass
        except OSError as exc:
            is_missing = isinstance(exc, FileNotFoundError)
            remedy = MISSING if is_missing else UNREADABLE.format(path=path)
            return Finding(name, "fault", f"cannot read {path}: {exc.strerror}", remedy)
    try:
        TlsContexts(certificate, key, client_ca=client_ca)
    except OSError as exc:
        remedy = UNFIT.format(certificate=certificate, key=key or certificate)
        return Finding(name, "fault", exc.strerror or str(exc), remedy)
    return Finding(name, "ok", f"{certificate} can be used")
