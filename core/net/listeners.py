"""Listeners, made from their configuration: the one way in which a role opens them.

Owns: a listener's socket and certificates once they are opened, reading the latter on command,
which codecs stack and in which order, which web pages may connect, how errors name a listener.
Must not touch: accepting, what codecs do, the protocol behind a listener.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec

from motelog.core.addresses import format_address
from motelog.core.errors import CertificateError, MotelogError
from motelog.core.net.codec import Codec, Stacked
from motelog.core.net.config import UNIX, ListenerConfig, TlsKeys, is_loopback
from motelog.core.net.listen import is_refused_for_good, open_listener, open_unix_listener
from motelog.core.net.proxy_protocol import ProxyCodec
from motelog.core.net.tls import TlsCodec, TlsContexts
from motelog.core.net.websocket import WebSocketCodec

#: The fault of a file that could be read, if another one could not.
NOT_ALONE: Final = "is not used, as another file of this listener cannot be: the previous ones stay"


class ListenerError(MotelogError):
    """One of the further listeners of a role cannot be opened."""

    def __init__(self, name: str, exc: OSError) -> None:
        super().__init__(f"the listener {name} cannot be used: {exc.strerror or exc}")
        self.comes_again = is_refused_for_good(exc)


@dataclass(frozen=True, slots=True)
class OpenListener:
    """A listening socket, and the codecs of its connections."""

    config: ListenerConfig
    sock: socket.socket
    tls: TlsContexts | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Its (host, port); for a Unix socket its file and 0."""
        name = self.sock.getsockname()
        return (name, 0) if isinstance(name, str) else name[:2]

    @property
    def text(self) -> str:
        """Its address as a text, for clients."""
        path = self.config.unix_path
        at = f"{UNIX}{path}" if path is not None else format_address(*self.address)
        return self.config.text_of(at)

    def codec(self) -> Callable[[], Codec] | None:
        """Return the maker of each connection's codec; None if its bytes are the frames."""
        return codec_maker(self.config, self.tls)

    def close(self) -> None:
        """Close it, and remove the file of a Unix socket. A second call has no effect."""
        self.sock.close()
        if self.config.unix_path is not None:
            with suppress(OSError):
                os.unlink(self.config.unix_path)


class CertificateFile(msgspec.Struct, frozen=True):
    """A file of a listener that was read again; ``fault`` is why it is not used, "" if it is."""

    listener: str
    path: str
    fault: str = ""


def reload_certificates(listeners: Iterable[OpenListener]) -> list[CertificateFile]:
    """Read the files of all listeners now, and return the result for each file.

    A listener takes all of its files, or keeps the previous ones.
    """
    found: dict[tuple[str, str], CertificateFile] = {}
    for one in listeners:
        if one.tls is None:
            continue
        exc = one.tls.reload()
        for path in one.tls.paths:
            fault = "" if exc is None else str(exc) if path in exc.paths else NOT_ALONE
            name = one.config.name
            found[name, path] = CertificateFile(name, path, fault)
    return list(found.values())


def open_listeners(
    first: ListenerConfig, further: Sequence[ListenerConfig] = (), *, is_shared: bool = False
) -> list[OpenListener]:
    """Open the sockets of a role and read its certificates: for all listeners, or for none.

    OSError or CertificateError is about ``first``. For the others a ListenerError or a
    CertificateError names the listener. ``is_shared``: see ``listen.open_listener``.
    """
    with ExitStack() as opened:
        listeners = [opened.enter_context(closing(_open_one(first, is_shared=is_shared)))]
        for one in further:
            listener = _open_named(one, is_shared=is_shared)
            listeners.append(opened.enter_context(closing(listener)))
        opened.pop_all()
    return listeners


def _open_named(config: ListenerConfig, *, is_shared: bool) -> OpenListener:
    try:
        return _open_one(config, is_shared=is_shared)
    except CertificateError as exc:
        raise CertificateError(f"the listener {config.name}: {exc}") from exc
    except OSError as exc:
        raise ListenerError(config.name, exc) from exc


def _open_one(config: ListenerConfig, *, is_shared: bool) -> OpenListener:
    tls = tls_contexts(config) if config.tls_certificate else None
    path = config.unix_path
    if path is not None:
        sock = open_unix_listener(path)
    else:
        sock = open_listener(config.address, is_shared=is_shared)
    return OpenListener(config, sock, tls)


def tls_contexts(keys: TlsKeys) -> TlsContexts:
    """Return the TLS contexts of a listener with ``tls_certificate``.

    CertificateError names the file that cannot be used.
    """
    return TlsContexts(
        keys.tls_certificate,
        keys.tls_key,
        client_ca=keys.tls_client_ca,
        client_crl=keys.tls_client_crl,
        is_client_optional=not keys.needs_client_certificates,
    )


def codec_maker(config: ListenerConfig, tls: TlsContexts | None) -> Callable[[], Codec] | None:
    """Return the maker of each connection's codec; None if its bytes are the frames."""
    makers: list[Callable[[], Codec]] = []
    if config.proxy_protocol:
        makers.append(ProxyCodec)
    if tls is not None:
        may_be_plain = not config.takes_tls_alone
        makers.append(lambda: TlsCodec(tls.current(), may_be_plain=may_be_plain))
    if config.websocket:
        makers.append(lambda: WebSocketCodec(config.websocket, partial(_is_welcome, config)))
    if not makers:
        return None

    def make() -> Codec:
        *outer, codec = [one() for one in makers]
        for one in reversed(outer):
            codec = Stacked(one, codec)
        return codec

    return make


def _is_welcome(config: ListenerConfig, origin: str) -> bool:
    """Return whether a web page may connect.

    A browser on this machine lets pages from anywhere connect to addresses that only this machine
    can reach.
    """
    if config.websocket_origins:
        return origin in config.websocket_origins
    if config.needs_client_certificates or config.is_reached_from_afar:
        return True
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
