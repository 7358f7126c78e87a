"""TLS of a remoting client: its trusted authorities, and its own certificate.

Owns: Tls, its file, the texts for a failed handshake. Must not touch: connections, a server's TLS
(core.net.tls). Spec: RocketMQ TlsSystemConfig (tls.client.*), RFC 8446.

The file is either the authorities as PEM, or RocketMQ's tls.properties:

    tls.client.trustCertPath=/etc/motelog/ca.pem
    tls.client.certPath=/etc/motelog/app.pem          if servers ask for certificates
    tls.client.keyPath=/etc/motelog/app.key
    tls.client.authServer=true                        false: accept any certificate
    tls.client.checkName=true                         false: accept any name, as RocketMQ does

By default RocketMQ does not verify servers. Here they are verified by default: a client that
accepts any certificate can be intercepted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from motelog.core.errors import ConfigError
from motelog.core.net.tls import tls_fault

_PEM: Final = "-----BEGIN "
_PATHS: Final = {"trustCertPath": "ca", "certPath": "certificate", "keyPath": "key"}
_SWITCHES: Final = {"authServer": "verify", "checkName": "check_name"}
_PREFIX: Final = "tls.client."
#: OpenSSL's error numbers: a certificate's issuer is unknown, or known but not trusted.
_ISSUER_MISSING: Final = frozenset((2, 20, 21))
_UNKNOWN_ISSUER: Final = (
    "the authority that issued it is not trusted here, or the server lacks an intermediate one"
)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a client; ``Tls()`` trusts the system's authorities.

    ``ca`` is a PEM file of authorities, or of servers' own certificates; ``certificate`` and
    ``key`` are the client's own, if servers ask for a certificate. Files are read for each
    connection, so a renewed one is used for the next. A server's certificate must be valid for the
    address that is connected to, unless ``check_name`` is false; without ``verify`` any certificate
    is accepted.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify: bool = True
    check_name: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; ConfigError if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION
        # The file may contain a server's own certificate instead of its authority's.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = self.verify and self.check_name
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        try:
            if self.ca:
                context.load_verify_locations(self.ca)
            elif self.verify:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        except OSError as exc:
            raise _unusable(self.ca, exc) from exc
        if self.certificate:
            try:
                context.load_cert_chain(
                    self.certificate, self.key or None, password=_refuse_password
                )
            except (OSError, ValueError) as exc:
                raise _unusable(", ".join(filter(None, (self.certificate, self.key))), exc) from exc
        return context


def read_tls(path: str | Path) -> Tls:
    """Return the settings in a file; ConfigError if it, or a file it names, cannot be used."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise ConfigError(f"{path}: cannot read: {reason or exc}") from exc
    tls = Tls(ca=str(path)) if _PEM in text else _parse_properties(text, str(path))
    tls.context()
    return tls


def _parse_properties(text: str, path: str) -> Tls:
    values: dict[str, str | bool] = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line[0] in "#!":
            continue
        name, _, value = map(str.strip, line.partition("="))
        if not name.startswith(_PREFIX):
            continue  # a server's settings in the same file
        name = name.removeprefix(_PREFIX)
        if name in _PATHS:
            values[_PATHS[name]] = value
        elif name in _SWITCHES and value.lower() in ("true", "false"):
            values[_SWITCHES[name]] = value.lower() == "true"
        elif name == "keyPassword" and not value:
            continue
        elif name == "keyPassword":
            raise ConfigError(f"{path}: {_PREFIX}keyPassword: keys must not be encrypted here")
        else:
            known = ", ".join((*_PATHS, *_SWITCHES))
            raise ConfigError(f"{path}: {line!r} is not valid; {_PREFIX}* is one of {known}")
    if not values:
        raise ConfigError(f"{path}: neither PEM certificates nor lines {_PREFIX}NAME=VALUE")
    return Tls(**values)  # type: ignore[arg-type]  # each value is of its field's type


def handshake_fault(exc: BaseException) -> str:
    """Return why a handshake failed, and what to check, as text."""
    while not isinstance(exc, ssl.SSLError | OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, ssl.SSLCertVerificationError):
        text = f"its certificate is not accepted: {exc.verify_message}"
        return f"{text}; {_UNKNOWN_ISSUER}" if exc.verify_code in _ISSUER_MISSING else text
    if isinstance(exc, ssl.SSLEOFError):
        return "it ended the TLS handshake: it may have no TLS"
    return f"the TLS handshake failed: {tls_fault(exc)}"


def _unusable(path: str, exc: Exception) -> ConfigError:
    is_system = isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError)
    reason = (exc.strerror if is_system and isinstance(exc, OSError) else None) or tls_fault(exc)
    return ConfigError(f"{path or 'the authorities of the system'}: cannot be used: {reason}")


def _refuse_password() -> str:
    raise ValueError("the key is encrypted, which is not supported")
