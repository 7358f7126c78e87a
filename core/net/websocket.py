"""WebSocket of accepted connections, as a codec: the opening request, then frames.

Owns: WebSocketCodec, what a request must contain. Must not touch: sockets, frames
(``websocket_frames``). Invariant: at most REQUEST_BYTES_MAX of a request are kept.
Spec: RFC 6455 section 4; MQTT 5.0 chapter 6 (subprotocol mqtt). Clients of MQTT 3.1 offer mqttv3.1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from motelog.core.net.codec import Certificate, Decoded, Stream
from motelog.core.net.websocket_frames import Frames

REQUEST_BYTES_MAX: Final = 8192
#: The first that a client offers is selected.
SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
_ACCEPT_SALT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class _RefusedError(Exception):
    """The opening request is not accepted; carries the answer."""

    def __init__(self, status: str, why: str, header: str = "") -> None:
        super().__init__(why)
        body = why + "\n"
        self.answer = (
            f"HTTP/1.1 {status}\r\n{header}Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        ).encode("ascii")


class WebSocketCodec:
    """One connection: waits for a request of ``path``, then for frames.

    ``is_welcome`` is called with the origin of the web page that connects; programs may send none.
    """

    __slots__ = ("_frames", "_is_welcome", "_path", "_refusal", "_rest")

    peer: Final = None
    identity: Certificate | None = None

    def __init__(self, path: str, is_welcome: Callable[[str], bool] = lambda _: True) -> None:
        self._path = path
        self._is_welcome = is_welcome
        self._rest = b""
        self._refusal = ""  # why the request was refused
        self._frames: Frames | None = None  # set once the request is accepted

    @property
    def fault(self) -> str:
        # This is the innermost codec, so once there are frames only a frame can be wrong.
        return self._refusal or "a WebSocket frame breaks RFC 6455"

    def receive(self, data: bytes) -> Decoded:
        if self._frames is not None:
            return self._frames.receive(data)
        if self._refusal:
            return Decoded(b"")
        data = self._rest + data
        self._rest = b""
        end = data.find(b"\r\n\r\n", 0, REQUEST_BYTES_MAX)
        try:
            if end < 0:
                if len(data) >= REQUEST_BYTES_MAX:
                    raise _RefusedError(
                        "431 Request Header Fields Too Large", "the request is too long"
                    )
                self._rest = data
                return Decoded(b"")
            answer = self._accept(data[:end])
        except _RefusedError as exc:
            self._refusal = str(exc)
            return Decoded(b"", exc.answer, Stream.FAULTY)
        self._frames = Frames()
        first = self._frames.receive(data[end + 4 :])
        return first._replace(answer=answer + first.answer)

    def send(self, data: bytes) -> bytes:
        return b"" if self._frames is None else self._frames.send(data)

    def close(self) -> bytes:
        return b"" if self._frames is None else self._frames.close()

    # --- the opening request -------------------------------------------------------------

    def _accept(self, request: bytes) -> bytes:
        """Return the answer that opens the connection; _RefusedError for any other request."""
        line, *lines = request.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _RefusedError("400 Bad Request", "this is not an HTTP request")
        headers: dict[str, str] = {}
        for text in lines:
            name, colon, value = text.partition(":")
            if not colon or not name or name != name.strip():
                raise _RefusedError("400 Bad Request", "a header has no name")
            key = name.lower()
            headers[key] = f"{headers[key]},{value.strip()}" if key in headers else value.strip()
        if words[0] != "GET" or "websocket" not in _tokens(headers.get("upgrade", "")):
            raise _RefusedError(
                "426 Upgrade Required", "this is a WebSocket for MQTT", "Upgrade: websocket\r\n"
            )
        if urlsplit(words[1]).path != self._path:
            raise _RefusedError("404 Not Found", "the WebSocket has another path")
        if headers.get("sec-websocket-version") != "13":
            raise _RefusedError(
                "426 Upgrade Required", "the version is 13", "Sec-WebSocket-Version: 13\r\n"
            )
        if "upgrade" not in _tokens(headers.get("connection", "")):
            raise _RefusedError("400 Bad Request", "there is no Connection: Upgrade")
        key = headers.get("sec-websocket-key", "")
        try:
            is_key = len(base64.b64decode(key, validate=True)) == 16
        except (binascii.Error, ValueError):
            is_key = False
        if not is_key:
            raise _RefusedError("400 Bad Request", "Sec-WebSocket-Key is not 16 bytes in base64")
        offered = _tokens(headers.get("sec-websocket-protocol", ""))
        selected = next((name for name in SUBPROTOCOLS if name in offered), None)
        if selected is None:  # [MQTT-6.0.0-3]
            raise _RefusedError("400 Bad Request", "the client does not offer subprotocol mqtt")
        origin = headers.get("origin")
        if origin is not None and not self._is_welcome(origin):
            raise _RefusedError("403 Forbidden", "pages of this origin may not connect")
        accept = base64.b64encode(hashlib.sha1(key.encode("ascii") + _ACCEPT_SALT).digest())
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: %b\r\nSec-WebSocket-Accept: %b\r\n\r\n"
            % (selected.encode(), accept)
        )


def _tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",")]
