"""Peers of a reactor whose listener has a codec: the other end of TLS and of WebSocket.

Owns: WebSocketClient and TlsClient (bytes in, bytes out), CodedPeer (one of them on a socket).
Must not touch: expectations.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Protocol

from tests.support.certificates import certificates
from tests.support.reactor_loop import ReactorLoop

KEY = base64.b64encode(bytes(range(16)))
MASK = b"\x5a\x01\xfe\x80"


def opening_request(path: str = "/mqtt", *lines: str) -> bytes:
    """A request that opens a WebSocket, with further header lines."""
    headers = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        f"Sec-WebSocket-Key: {KEY.decode()}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
        *lines,
    ]
    return "\r\n".join(headers).encode() + b"\r\n\r\n"


def client_frame(
    payload: bytes, opcode: int = 2, *, is_last: bool = True, mask: bytes = MASK, width: int = 0
) -> bytes:
    """A frame as clients send it; ``width`` is how many bytes more its length takes."""
    first = (0x80 if is_last else 0) | opcode
    size = len(payload)
    if width == 8 or size > 65_535:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    elif width == 2 or size > 125:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BB", first, 0x80 | size)
    return head + mask + bytes(byte ^ mask[i & 3] for i, byte in enumerate(payload))


def server_frames(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return (opcode, payload) of each whole frame that a server has sent, and what is behind."""
    frames = []
    at = 0
    while len(data) - at >= 2:
        size, head = data[at + 1], 2
        assert size < 128, "a server masks nothing"
        if size >= 126:
            head = 4 if size == 126 else 10
            size = int.from_bytes(data[at + 2 : at + head], "big")
        if len(data) - at < head + size:
            break
        frames.append((data[at] & 0x0F, data[at + head : at + head + size]))
        at += head + size
    return frames, data[at:]


class CodedClient(Protocol):
    """One end of a stream, without its socket."""

    @property
    def is_open(self) -> bool: ...

    def begin(self) -> bytes: ...

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the plain bytes, and what is to be sent for them."""
        ...


class WebSocketClient:
    """A client that checks what it gets."""

    def __init__(self) -> None:
        self.is_open = False
        self._received = b""
        self.closed_with: int | None = None

    def begin(self) -> bytes:
        return opening_request()

    def encode(self, data: bytes) -> bytes:
        return client_frame(data)

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        self._received += data
        if not self.is_open:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return b"", b""
            assert head.startswith(b"HTTP/1.1 101 "), head
            self.is_open = True
            self._received = rest
        frames, self._received = server_frames(self._received)
        for opcode, payload in frames:
            if opcode == 8:
                self.closed_with = int.from_bytes(payload[:2], "big")
        return b"".join(payload for opcode, payload in frames if opcode == 2), b""


class TlsClient:
    """A client that trusts the tests' authority, or has a context of its own."""

    def __init__(
        self,
        *,
        has_certificate: bool = False,
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        files = certificates()
        if context is None:
            context = ssl.create_default_context(cafile=files.ca)
            if has_certificate:
                context.load_cert_chain(files.client, files.client_key)
        self.is_open = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_hostname="localhost", session=session
        )

    @property
    def session(self) -> ssl.SSLSession | None:
        """What a later connection may resume."""
        return self._tls.session

    @property
    def is_resumed(self) -> bool | None:
        return self._tls.session_reused

    def begin(self) -> bytes:
        return self.decode(b"")[1]

    def encode(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._out.read()

    def end(self) -> bytes:
        """Return what says that nothing more comes."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._out.read()

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        self._in.write(data)
        parts = []
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            while part := self._tls.read(65_536):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts), self._out.read()


class Stacked:
    """Clients one inside the other, the outer one first."""

    def __init__(self, outer: CodedClient, inner: CodedClient) -> None:
        self._outer, self._inner = outer, inner
        self._has_begun = False

    @property
    def is_open(self) -> bool:
        return self._outer.is_open and self._inner.is_open

    def begin(self) -> bytes:
        return self._outer.begin()

    def encode(self, data: bytes) -> bytes:
        return self._outer.encode(self._inner.encode(data))

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        data, answer = self._outer.decode(data)
        if self._outer.is_open and not self._has_begun:
            self._has_begun = True
            answer += self._outer.encode(self._inner.begin())
        data, more = self._inner.decode(data)
        return data, answer + (self._outer.encode(more) if more else b"")


class CodedPeer:
    """A peer's socket with a client on it; polls the reactor whenever it waits for it."""

    def __init__(self, loop: ReactorLoop, sock: socket.socket, client: CodedClient) -> None:
        self._loop = loop
        self.sock = sock
        self._client = client
        self._plain = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # tests poll without waiting
        sock.sendall(client.begin())
        while not client.is_open:
            assert self._pull(), "the reactor ended the connection"
        loop.settle()  # it takes the last of what has opened the stream

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(self._client.encode(data))

    def recv(self, size: int) -> bytes:
        while not self._plain and self._pull():
            pass
        data, self._plain = self._plain[:size], self._plain[size:]
        return data

    def _pull(self) -> bool:
        """Take what there is; False at the end of the stream."""
        self._loop.until(lambda: select.select([self.sock], [], [], 0)[0])
        got = self.sock.recv(65_536)
        plain, answer = self._client.decode(got)
        self._plain += plain
        if answer:
            self.sock.sendall(answer)
        return bool(got)


def split_at(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return the pieces of ``data`` between positions, taken modulo its size."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]
