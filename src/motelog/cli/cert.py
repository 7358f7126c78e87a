"""``motelog cert``: a development authority for trying TLS, and reloading certificates.

Owns: what is in these certificates, their files. Must not touch: how servers and clients use them.
The authority's key is kept beside the certificates: anyone who can read it can issue more. A fleet
needs an authority whose key is kept elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from motelog.cli.admin import ADMIN, Admin, ask
from motelog.cli.options import commands
from motelog.cli.output import CliError, stop, table, write, write_json
from motelog.cli.status import Status
from motelog.core.private_files import make_folders

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    Signed = tuple[x509.Certificate, EllipticCurvePrivateKey]

cert = commands("Create certificates for trying TLS; reload a server's certificates.")

AUTHORITY_DAYS: Final = 3650
#: The clocks of devices may be slow.
_BEFORE: Final = timedelta(days=1)


@cert.callback()
def group() -> None:
    """Create certificates for trying TLS; reload a server's certificates."""


@cert.command(epilog="Example: motelog cert reload --admin 127.0.0.1:8080")
def reload(
    admin: Admin = ADMIN,
    json: Annotated[
        bool, typer.Option("--json", help="JSON, one object per file and line.")
    ] = False,
) -> None:
    """Have a running server reload its certificates now, and print the result for each file.

    The server reloads them by itself within seconds of a change; this shows whether that worked.
    New connections use the new files. The exit status is 1 if a file cannot be used: then the
    previous ones stay in use.
    """
    files = ask(admin, "POST", "/api/v1/certificates/reload", {})["files"]
    for one in files if json else ():
        write_json(one)
    if not json:
        rows = [(one["listener"], one["path"], one["fault"] or "reloaded") for one in files]
        write(table(rows) if rows else "no listener uses TLS")
    stop(Status.FAILED if any(one["fault"] for one in files) else Status.DONE)


@cert.command("dev-ca", epilog="Example: motelog cert dev-ca certs --host localhost --client dev42")
def dev_ca(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the files; created if missing.")
    ] = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name or IP address that clients connect to. May be repeated."
            " [default: localhost, 127.0.0.1, ::1]",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Create a certificate for this client. May be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=AUTHORITY_DAYS, help="Validity in days.")] = 365,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Create an authority, a certificate for the server, and one for each client.

    An authority that is already in the folder is used again, so that you can add clients later; the
    server's certificate is created again. The authority's key is not encrypted: a fleet needs one
    that is kept elsewhere.
    """
    hosts = host or ["localhost", "127.0.0.1", "::1"]
    for name in client or ():
        if not name or name in ("ca", "server") or "/" in name or name.startswith("."):
            raise CliError(f"--client {name!r} cannot be used as a file name", status=Status.USAGE)
    try:
        make_folders(directory)
        authority = _authority(directory)
        _make(directory, "server", authority, days, hosts=hosts)
        for name in client or ():
            _make(directory, name, authority, days)
    except OSError as exc:
        raise CliError(f"{exc.filename or directory}: {exc.strerror or exc}") from exc
    at = directory.absolute()
    if json:
        write_json({"directory": str(at), "hosts": hosts, "clients": client or []})
        return
    write(f"{directory}: ca.pem, server.pem for {', '.join(hosts)}")
    for name in client or ():
        write(f"{directory}: {name}.pem, {name}.key")
    write(f"""
For the configuration:

[[listener]]
name = "tls"
address = "127.0.0.1:8883"
tls_certificate = "{at}/server.pem"
tls_key = "{at}/server.key"
tls_client_ca = "{at}/ca.pem"
""")


def _authority(directory: Path) -> Signed:
    """Return the authority of the folder; it is created if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate, key = directory / "ca.pem", directory / "ca.key"
    if not certificate.exists() and not key.exists():
        return _make(directory, "ca", None, AUTHORITY_DAYS)
    try:
        found = load_pem_private_key(key.read_bytes(), password=None)
        made = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError) as exc:
        raise CliError(
            f"{certificate} and {key} are not an authority that this command created: {exc}"
        ) from exc
    if not isinstance(found, ec.EllipticCurvePrivateKey) or made.public_key() != found.public_key():
        raise CliError(f"{key} is not the key of {certificate}")
    return made, found


def _make(
    directory: Path,
    name: str,
    authority: Signed | None,
    days: int,
    *,
    hosts: list[str] | None = None,
) -> Signed:
    """Create a certificate and its key: for a server if ``hosts`` are given, else for a client.

    Without ``authority`` the certificate is an authority itself.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    title = hosts[0] if hosts else "Motelog development authority" if authority is None else name
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    issuer, issuer_key = (
        (subject, key) if authority is None else (authority[0].subject, authority[1])
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(authority is None, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(_usage(is_authority=authority is None), critical=True)
    )
    if authority is not None:
        kind = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([kind]), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_alternative(one) for one in hosts])
        builder = builder.add_extension(names, critical=False)
    made = builder.sign(issuer_key, hashes.SHA256())
    _write(directory / f"{name}.pem", made.public_bytes(Encoding.PEM), 0o644)
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(directory / f"{name}.key", plain, 0o600)
    return made, key


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as exc:
        raise CliError(f"--host {host!r}: {exc}", status=Status.USAGE) from exc


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
