"""Certificates for tests: an authority, a server's and a client's, made by the openssl command.

Owns: the files, made once for a process. Must not touch: what is done with them.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
    _openssl(
        folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
        "-subj", "/CN=Test CA",
    )  # fmt: skip
    names = {
        "server": ("localhost", "DNS:localhost,IP:127.0.0.1"),
        "client": (CLIENT_NAME, f"DNS:{CLIENT_NAME}.example"),
    }
    for name, (subject, alternatives) in names.items():
        _openssl(
            folder, "req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-days", "2", "-subj", f"/CN={subject}", "-addext", f"subjectAltName={alternatives}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-CA", "ca.pem", "-CAkey", "ca.key",
        )  # fmt: skip
    return Certificates(folder)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
