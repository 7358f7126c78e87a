"""TLS of accepted connections, as a codec; the certificates, read again when their files change.

Owns: TlsCodec, TlsContexts, which versions and options are offered, how TLS begins, the texts of
failed handshakes. Must not touch: sockets, what a peer's certificate allows.
Invariants: if a certificate cannot be read, the previous one stays in use. A session is resumed
only by the context that made it, and so with the same certificates and authorities.
Spec: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2).
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Callable
from time import monotonic, time
from typing import Any, Final

from motelog.core.errors import CertificateError
from motelog.core.net.codec import Certificate, Decoded, Stream

logger = logging.getLogger(__name__)

#: A handshake takes some kilobytes; chains of client certificates may be long.
HANDSHAKE_BYTES_MAX: Final = 65_536
RECORD_BYTES: Final = 16_384
#: The first byte of every TLS connection: a record of a handshake.
HANDSHAKE_RECORD: Final = b"\x16"
#: The interval of the checks whether the files have changed.
RELOAD_INTERVAL_S: Final = 1.0

_Times = tuple[tuple[int, int, int], ...]


class TlsContexts:
    """The TLS of one listener: the context for the next connection."""

    def __init__(
        self,
        certificate: str,
        key: str,
        *,
        client_ca: str = "",
        client_crl: str = "",
        is_client_optional: bool = False,
        monotonic_s: Callable[[], float] = monotonic,
    ) -> None:
        """Read the files; CertificateError names the one that cannot be used.

        With ``client_ca`` each client needs a certificate, unless ``is_client_optional``.
        Certificates listed in ``client_crl`` are refused.
        """
        self._is_client_optional = is_client_optional
        self._certificate = certificate
        self._key = key or certificate
        self._client_ca = client_ca
        self._client_crl = client_crl
        self._monotonic_s = monotonic_s
        self._looked_s = monotonic_s()
        self._times = self._look()
        self._context = self._read()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, each once."""
        named = (self._certificate, self._key, self._client_ca, self._client_crl)
        return tuple(dict.fromkeys(filter(None, named)))

    def current(self) -> ssl.SSLContext:
        """Return the context; it has the files as they were at most a second ago."""
        now_s = self._monotonic_s()
        if now_s - self._looked_s >= RELOAD_INTERVAL_S:
            self._looked_s = now_s
            self._reload()
        return self._context

    def reload(self) -> CertificateError | None:
        """Read the files now, whether or not they have changed; return why they cannot be used."""
        self._times = self._look()
        try:
            self._context = self._read()
        except CertificateError as exc:
            logger.warning("a certificate cannot be read again, the previous one stays: %s", exc)
            return exc
        logger.info("a certificate was read again path=%s", self._certificate)
        return None

    def _reload(self) -> None:
        if self._look() != self._times:
            self.reload()

    def _look(self) -> _Times:
        return tuple(_time_of(path) for path in self.paths)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        # As for plain TCP: a peer that leaves without closing TLS has simply left.
        context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
        try:
            # OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        except (OSError, ValueError) as exc:
            raise _unusable(exc, self._certificate, self._key) from exc
        if self._client_ca:
            context.verify_mode = (
                ssl.CERT_OPTIONAL if self._is_client_optional else ssl.CERT_REQUIRED
            )
            # An intermediate authority may be trusted without its issuer: then clients of the
            # issuer's other authorities are refused.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as exc:
                raise _unusable(exc, self._client_ca) from exc
        if self._client_crl:
            self._load_revoked(context)
        return context

    def _load_revoked(self, context: ssl.SSLContext) -> None:
        # OpenSSL reads authorities and revocation lists by the same call: an authority in this file
        # would be trusted as an issuer of clients' certificates.
        before = context.cert_store_stats()
        try:
            context.load_verify_locations(self._client_crl)
        except OSError as exc:
            raise _unusable(exc, self._client_crl) from exc
        after = context.cert_store_stats()
        if after["crl"] == before["crl"] or after["x509"] != before["x509"]:
            reason = "it must contain lists of revoked certificates (X509 CRL) and nothing else"
            text = f"cannot use {self._client_crl}: {reason}"
            raise CertificateError(text, self._client_crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


class _RefusedError(Exception):
    """A handshake that OpenSSL would accept, but that is refused."""


class TlsCodec:
    """One TLS connection over memory buffers; or a plain one, if that is allowed."""

    __slots__ = (
        "_handshake_bytes",
        "_in",
        "_is_closed",
        "_is_open",
        "_is_over",
        "_may_be_plain",
        "_now_s",
        "_out",
        "_tls",
        "fault",
    )

    peer: Final = None

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        may_be_plain: bool = False,
        now_s: Callable[[], float] = time,
    ) -> None:
        self._may_be_plain = may_be_plain
        self._now_s = now_s
        self.fault = ""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._handshake_bytes = 0
        self._is_open = False
        self._is_over = False
        self._is_closed = False

    @property
    def identity(self) -> Certificate | None:
        shown = self._tls.getpeercert() if self._is_open else None
        return _certificate_of(shown) if shown else None

    def receive(self, data: bytes) -> Decoded:
        if self._is_over:
            return Decoded(b"")
        if self._may_be_plain:
            if data[:1] != HANDSHAKE_RECORD:
                return Decoded(data, b"", Stream.PLAIN)
            self._may_be_plain = False
        self._in.write(data)
        parts = []
        stream = Stream.OPEN
        try:
            if not self._is_open:
                self._shake_hands(len(data))
            # A read without a whole record costs more than one with a record, so it is left out if
            # there is no input. A record is larger than its content, so a read can return as much
            # as it asked for only if the record began earlier: then there may be more.
            is_filled = False
            while is_filled or self._in.pending:
                size = RECORD_BYTES if is_filled else self._in.pending
                part = self._tls.read(size)
                if not part:
                    stream = Stream.ENDED
                    break
                parts.append(part)
                is_filled = len(part) == size
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            stream = Stream.ENDED
        except (ssl.SSLError, _RefusedError) as exc:
            stream = Stream.FAULTY
            self.fault = _fault_of(exc, is_open=self._is_open)
        self._is_over = stream is not Stream.OPEN
        self._is_closed |= stream is Stream.FAULTY
        return Decoded(b"".join(parts), self._out.read(), stream)

    def _shake_hands(self, received: int) -> None:
        self._handshake_bytes += received
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                raise _RefusedError("the handshake is too long") from None
            raise
        # OpenSSL checks a certificate when a session is made, and each resumption makes a new
        # session: so a client could resume for ever with a certificate that has expired.
        if self._tls.session_reused and self._has_expired():
            raise _RefusedError("the session's certificate has expired")
        self._is_open = True

    def _has_expired(self) -> bool:
        shown = self._tls.getpeercert()
        if not shown:
            return False  # the session has no certificate
        return _end_of(shown) < self._now_s()

    def send(self, data: bytes) -> bytes:
        if not self._is_open or self._is_closed:
            return b""
        sent = self._tls.write(data)
        while sent < len(data):
            sent += self._tls.write(memoryview(data)[sent:])
        return self._out.read()

    def close(self) -> bytes:
        if not self._is_open or self._is_closed:
            return b""
        self._is_closed = True
        with contextlib.suppress(ssl.SSLError):  # it waits for the peer's close too; not needed
            self._tls.unwrap()
        return self._out.read()


def _certificate_of(shown: dict[str, Any]) -> Certificate:
    pairs = [pair for part in shown.get("subject", ()) for pair in part]
    common_name = next((value for name, value in pairs if name == "commonName"), None)
    return Certificate(common_name, tuple(shown.get("subjectAltName", ())), _end_of(shown))


def _end_of(shown: dict[str, Any]) -> int:
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


#: The alerts by which a client refuses the server's certificate.
_REFUSALS: Final = frozenset(
    (
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    )
)
_NO_TLS: Final = frozenset(("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER"))


def tls_fault(exc: BaseException) -> str:
    """Return the text of a TLS error, without OpenSSL's file names and numbers."""
    reason = getattr(exc, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(exc) or type(exc).__name__


def _fault_of(exc: ssl.SSLError | _RefusedError, *, is_open: bool) -> str:
    """Return why a stream ended, and whose certificate was refused, if one was."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {exc.verify_message}"
    reason = getattr(exc, "reason", None)
    if reason in _REFUSALS:
        return f"the client does not accept the server's certificate: {tls_fault(exc)}"
    if reason in _NO_TLS:
        return f"the client does not speak TLS: {tls_fault(exc)}"
    return f"{'TLS' if is_open else 'the TLS handshake'} failed: {tls_fault(exc)}"


def _refuse_password() -> str:
    raise ValueError("the key is encrypted: a server cannot ask for a password; decrypt the file")


def _time_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


_FILE_FAULTS: Final = {
    "KEY_VALUES_MISMATCH": "the key is another certificate's",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
    None: "one of them has no PEM of its kind",
}


def _unusable(exc: Exception, *paths: str) -> CertificateError:
    if isinstance(exc, ssl.SSLError):
        reason = _FILE_FAULTS.get(exc.reason) or tls_fault(exc)
    else:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
    return CertificateError(f"cannot use {', '.join(paths)}: {reason}", *paths)
