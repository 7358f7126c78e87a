"""The codec of a listener, made of what its table says.

Owns: which codecs stack and in which order, which web pages may connect.
Must not touch: sockets, what codecs do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from motelog.core.net.codec import Codec, Stacked
from motelog.core.net.config import ListenerConfig, TlsKeys, is_loopback
from motelog.core.net.proxy_protocol import ProxyCodec
from motelog.core.net.tls import TlsCodec, TlsContexts
from motelog.core.net.websocket import WebSocketCodec


def codec_maker(config: ListenerConfig) -> Callable[[], Codec] | None:
    """Return what makes the codec of each connection, None if its bytes are the frames.

    Reads the certificate: CertificateError names the file that cannot be used.
    """
    makers: list[Callable[[], Codec]] = []
    if config.proxy_protocol:
        makers.append(ProxyCodec)
    if config.tls_certificate:
        makers.append(tls_maker(config))
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


def tls_maker(keys: TlsKeys, *, may_be_plain: bool = False) -> Callable[[], Codec]:
    """Return what makes the TLS of each connection.

    CertificateError names the file that cannot be used.
    """
    contexts = TlsContexts(
        keys.tls_certificate,
        keys.tls_key,
        client_ca=keys.tls_client_ca,
        is_client_optional=not keys.needs_client_certificates,
    )
    return lambda: TlsCodec(contexts.current(), may_be_plain=may_be_plain)


def _is_welcome(config: ListenerConfig, origin: str) -> bool:
    """Return whether a web page may connect.

    A page from anywhere, in a browser on this machine, reaches what only this machine reaches.
    """
    if config.websocket_origins:
        return origin in config.websocket_origins
    if config.needs_client_certificates or config.is_reached_from_afar:
        return True
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
