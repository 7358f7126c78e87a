"""Certificates for tests: an authority, a server's and a client's, made by the openssl command.

Owns: the files, made once for a process; those of an authority in between, what an
authority has revoked. Must not touch: what is
done with them.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

DAY = timedelta(days=1)
CLIENT_NAME = "meter-7"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files; the server's certificate is for localhost and 127.0.0.1."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def server(self) -> str:
        return str(self.folder / "server.pem")

    @property
    def server_key(self) -> str:
        return str(self.folder / "server.key")

    @property
    def client(self) -> str:
        return str(self.folder / "client.pem")

    @property
    def client_key(self) -> str:
        return str(self.folder / "client.key")


@cache
def _shared() -> tuple[tempfile.TemporaryDirectory[str], Certificates]:
    folder = tempfile.TemporaryDirectory(prefix="motelog-certificates-")
    return folder, make_certificates(Path(folder.name))


def certificates() -> Certificates:
    """Return those that all tests of this process share."""
    return _shared()[1]


def make_certificates(folder: Path) -> Certificates:
    """Make new ones in a folder, in place of those that may be there."""
    _make_root(folder)
    for name, (subject, alternatives) in _LEAVES.items():
        _make_leaf(folder, name, "ca", subject, alternatives)
    return Certificates(folder)


_LEAVES = {
    "server": ("localhost", "DNS:localhost,IP:127.0.0.1"),
    "client": (CLIENT_NAME, f"DNS:{CLIENT_NAME}.example"),
}
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Chain(Certificates):
    """The same, issued by an authority in between; ``ca`` has made that, and ``direct``."""

    @property
    def issuer(self) -> str:
        return str(self.folder / "issuer.pem")

    @property
    def direct(self) -> str:
        """Certificate and key of a client, in one file."""
        return str(self.folder / "direct.pem")

    def joined(self, *paths: str) -> str:
        """Return a file with the certificates of others, in their order."""
        made = self.folder / "-".join(Path(path).stem for path in paths)
        made.write_text("".join(Path(path).read_text() for path in paths))
        return str(made)


def make_chain(folder: Path) -> Chain:
    """Make new certificates of an authority in between, in a folder."""
    _make_root(folder)
    _openssl(
        folder, "req", "-x509", *_KEY, "-keyout", "issuer.key", "-out", "issuer.pem", "-days", "2",
        "-subj", "/CN=Test issuer", "-addext", "basicConstraints=critical,CA:TRUE,pathlen:0",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-CA", "ca.pem", "-CAkey", "ca.key",
    )  # fmt: skip
    for name, (subject, alternatives) in _LEAVES.items():
        _make_leaf(folder, name, "issuer", subject, alternatives)
    _make_leaf(folder, "direct", "ca", "direct", "DNS:direct.example")
    with (folder / "direct.pem").open("a") as file:
        file.write((folder / "direct.key").read_text())
    return Chain(folder)


def _make_root(folder: Path) -> None:
    _openssl(
        folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
        "-subj", "/CN=Test CA",
    )  # fmt: skip


def _make_leaf(folder: Path, name: str, authority: str, subject: str, alternatives: str) -> None:
    _openssl(
        folder, "req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
        "-days", "2", "-subj", f"/CN={subject}", "-addext", f"subjectAltName={alternatives}",
        "-addext", "basicConstraints=critical,CA:FALSE",
        "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
    )  # fmt: skip


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_crl(folder: Path, *revoked: str, valid_days: int = 1) -> str:
    """Write what the authority of a folder has revoked; return the file's path."""
    issuer = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    end = now + timedelta(days=valid_days)
    builder = x509.CertificateRevocationListBuilder(issuer.subject, min(now, end) - DAY, end)
    for path in revoked:
        serial = x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number
        one = x509.RevokedCertificateBuilder(serial, now).build()
        builder = builder.add_revoked_certificate(one)
    made = folder / "revoked.new"
    made.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return str(made.replace(folder / "revoked.pem"))
