"""Whether a server with this configuration can use its certificates and keys, file by file.

Owns: which files those are, whether clients can verify a certificate up to an authority that they
trust, the remedy for each fault. Must not touch: addresses (``advertised``).
The files are read with the rights of the caller: run it as the server's user.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from motelog.cli.finding import Finding
from motelog.core.errors import CertificateError
from motelog.core.net.listeners import tls_contexts

if TYPE_CHECKING:
    from cryptography import x509

    from motelog.config import MotelogConfig
    from motelog.core.net.config import TlsKeys

MISSING = "name an existing file; `motelog cert dev-ca` creates certificates for trying TLS"
UNREADABLE = "let the server's user read it: chgrp GROUP {path} && chmod 640 {path}"
UNFIT = (
    "give PEM files: the certificate followed by its chain, and its unencrypted key; compare them"
    " with openssl x509 -in {certificate} -noout -pubkey and openssl pkey -in {key} -pubout"
)
RENEW = (
    "renew the file in place: new connections use it within seconds, and no client is disconnected"
)
ORDER = (
    "put the server's certificate first, then after each the one of the authority that issued it"
)
APPEND = (
    "append the certificate of {issuer} to {path}: clients that trust only the authority above it"
    " reject the server"
)
#: By then an automatic renewal has been overdue for weeks.
SOON: Final = timedelta(days=14)


def certificate_findings(config: MotelogConfig) -> list[Finding]:
    """Return the findings on each section that uses TLS."""
    return [_look(title, keys) for _, title, keys in _sections(config)]


def certificate_faults(config: MotelogConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong) for each file that would stop a start."""
    for place, _, keys in _sections(config):
        found = list(_unreadable(keys))
        yield from ((f"{place}.{name}", text) for name, text, _ in found)
        if not found:
            try:
                tls_contexts(keys)
            except CertificateError as exc:
                named = (name for name, path in _paths(keys) if path in exc.paths)
                yield f"{place}.{next(named, 'tls_certificate')}", str(exc)


def _sections(config: MotelogConfig) -> Iterator[tuple[str, str, TlsKeys]]:
    """Yield (place in the file, title, keys) of each section that uses TLS."""
    if "namesrv" in config.roles and config.namesrv.tls_certificate:
        yield "namesrv", "[namesrv]", config.namesrv
    broker = config.broker if "broker" in config.roles else None
    if broker is not None and broker.tls_certificate:
        yield "broker", "[broker]", broker
    if "console" in config.roles and config.admin.tls_certificate:
        yield "admin", "[admin]", config.admin
    for index, one in enumerate(config.listener):
        if one.tls_certificate and one in config.listeners:
            yield f"listener[{index}]", f"listener {one.name}", one


def _paths(keys: TlsKeys) -> Iterator[tuple[str, str]]:
    for name in ("tls_certificate", "tls_key", "tls_client_ca", "tls_client_crl"):
        if getattr(keys, name):
            yield name, getattr(keys, name)


def _unreadable(keys: TlsKeys) -> Iterator[tuple[str, str, str]]:
    """Yield (key, text, remedy) for each file that is missing or unreadable."""
    for name, path in _paths(keys):
        try:
            with Path(path).open("rb"):
                pass
        except OSError as exc:
            is_missing = isinstance(exc, FileNotFoundError)
            remedy = MISSING if is_missing else UNREADABLE.format(path=path)
            yield name, f"cannot read {path}: {exc.strerror}", remedy


def _look(title: str, keys: TlsKeys) -> Finding:
    name = f"TLS of {title}"
    certificate, key = keys.tls_certificate, keys.tls_key
    for _, text, remedy in _unreadable(keys):
        return Finding(name, "fault", text, remedy)
    try:
        tls_contexts(keys)
    except CertificateError as exc:
        remedy = UNFIT.format(certificate=certificate, key=key or certificate)
        return Finding(name, "fault", str(exc), remedy)
    return _follow(name, certificate, keys.tls_client_ca)


def _follow(name: str, path: str, client_ca: str) -> Finding:
    """Check when a certificate is valid, and whether clients can verify it up to an authority."""
    chain = _read(path)
    own = chain[0]
    now = datetime.now(UTC)
    until = f"{own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if own.not_valid_after_utc <= now:
        return Finding(name, "fault", f"{path} expired at {until}", RENEW)
    if own.not_valid_before_utc > now:
        since = f"{own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        return Finding(name, "fault", f"{path} is not valid before {since}", "check the clock")
    for one, above in pairwise(chain):
        if not _has_issued(above, one):
            text = f"{path}: {_name(one.subject)} is followed by {_name(above.subject)}, which did"
            return Finding(name, "fault", f"{text} not issue it", ORDER)
    if len(chain) == 1 and client_ca:
        _lengthen(chain, _read(client_ca))
    authority = _name(chain[-1].issuer)
    if len(chain) == 1 and _names_its_issuer(own):
        append = APPEND.format(issuer=authority, path=path)
        return Finding(
            name, "note", f"{path} works only for clients that trust {authority}", append
        )
    if own.not_valid_after_utc - now < SOON:
        return Finding(name, "note", f"{path} expires at {until}", RENEW)
    text = f"{path} is valid until {until}, for clients that trust {authority}"
    return Finding(name, "ok", text)


def _read(path: str) -> list[x509.Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    return load_pem_x509_certificates(Path(path).read_bytes())


def _lengthen(chain: list[x509.Certificate], known: list[x509.Certificate]) -> None:
    """Add what OpenSSL sends when the file has one certificate: its issuers in the client CA."""
    while chain[-1].issuer != chain[-1].subject:
        above = next((one for one in known if _has_issued(one, chain[-1])), None)
        if above is None:
            return
        chain.append(above)


def _has_issued(issuer: x509.Certificate, one: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        one.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _names_its_issuer(one: x509.Certificate) -> bool:
    """Return whether a certificate links to its issuer's; few certificates below a root do."""
    from cryptography import x509
    from cryptography.x509.oid import AuthorityInformationAccessOID

    try:
        access = one.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    except x509.ExtensionNotFound:
        return False
    return any(one.access_method == AuthorityInformationAccessOID.CA_ISSUERS for one in access)


def _name(name: x509.Name) -> str:
    from cryptography.x509.oid import NameOID

    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return repr(str(common[0].value) if common else name.rfc4514_string())
