"""WebSocket of accepted connections, as a codec: the opening request, then binary messages.

Owns: WebSocketCodec. Must not touch: sockets, what the bytes in the messages mean.
Invariants: a message is handed over as its bytes come, whatever its length; what is kept is at most
a request, a frame's header or a control frame.
Spec: RFC 6455; MQTT 5.0 chapter 6 (subprotocol mqtt, binary messages, packets cut anywhere).

     0        1         2            2, 4 or 10      +4
    +--------+---------+------------+---------------+---------+
    | F  op  | M length| length 2/8 | mask, from    | payload |
    |        |         |            | clients only  |         |
    +--------+---------+------------+---------------+---------+
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final
from urllib.parse import urlsplit

from motelog.core.net.codec import Certificate, Decoded, Stream

REQUEST_BYTES_MAX: Final = 8192
SUBPROTOCOL: Final = "mqtt"
CONTROL_BYTES_MAX: Final = 125
_HEADER_BYTES_MAX: Final = 14
_ACCEPT_SALT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN, _MASKED = 0x80, 0x80
_NORMAL, _PROTOCOL_ERROR, _NO_TEXT = 1000, 1002, 1003


class _Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class _RefusedError(Exception):
    """The opening request is not accepted; carries the answer."""

    def __init__(self, status: str, why: str, header: str = "") -> None:
        super().__init__(why)
        body = why + "\n"
        self.answer = (
            f"HTTP/1.1 {status}\r\n{header}Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        ).encode("ascii")


class _MalformedError(Exception):
    """The peer's frames break the protocol; carries the code of the closing frame."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class WebSocketCodec:
    """One connection: waits for a request of ``path``, then for frames.

    ``is_welcome`` is asked about the origin of the web page that connects; programs may have none.
    """

    __slots__ = (
        "_at",
        "_in_message",
        "_is_closed",
        "_is_open",
        "_is_over",
        "_is_welcome",
        "_left",
        "_mask",
        "_opcode",
        "_path",
        "_rest",
    )

    peer: Final = None
    identity: Certificate | None = None

    def __init__(self, path: str, is_welcome: Callable[[str], bool] = lambda _: True) -> None:
        self._path = path
        self._is_welcome = is_welcome
        self._rest = b""
        self._is_open = False
        self._is_closed = False  # nothing more is sent
        self._is_over = False  # nothing more is read
        self._in_message = False  # a message's first frame has come, its last one not
        self._opcode = 0  # of the frame whose payload comes
        self._left = 0  # bytes of it that are to come
        self._mask = b""
        self._at = 0  # of its payload, for the mask

    def receive(self, data: bytes) -> Decoded:
        if self._is_over:
            return Decoded(b"")
        data = self._rest + data
        self._rest = b""
        answer = b""
        if not self._is_open:
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
                self._is_over = self._is_closed = True
                return Decoded(b"", exc.answer, Stream.FAULTY)
            self._is_open = True
            data = data[end + 4 :]
        parts: list[bytes] = []
        answers = [answer]
        try:
            stream = self._read_frames(data, parts, answers)
        except _MalformedError as exc:
            self._is_over = True
            stream = Stream.FAULTY
            if not self._is_closed:
                self._is_closed = True
                answers.append(_frame(_Opcode.CLOSE, exc.code.to_bytes(2, "big")))
        return Decoded(b"".join(parts), b"".join(answers), stream)

    def send(self, data: bytes) -> bytes:
        if not self._is_open or self._is_closed:
            return b""
        return _frame(_Opcode.BINARY, data)

    def close(self) -> bytes:
        if not self._is_open or self._is_closed:
            return b""
        self._is_closed = True
        return _frame(_Opcode.CLOSE, _NORMAL.to_bytes(2, "big"))

    # --- frames --------------------------------------------------------------------------

    def _read_frames(self, data: bytes, parts: list[bytes], answers: list[bytes]) -> Stream:
        """Put the payload of messages into ``parts``, what control frames are answered beside."""
        begin = 0
        while True:
            if self._left and self._opcode < _Opcode.CLOSE:
                part = data[begin : begin + self._left]
                if not part:
                    break
                parts.append(self._unmask(part))
                begin += len(part)
                continue
            if self._opcode >= _Opcode.CLOSE:
                if len(data) - begin < self._left:
                    break
                payload = self._unmask(data[begin : begin + self._left])
                begin += len(payload)
                opcode, self._opcode = self._opcode, 0
                if opcode == _Opcode.PING and not self._is_closed:
                    answers.append(_frame(_Opcode.PONG, payload))
                elif opcode == _Opcode.CLOSE:
                    if len(payload) == 1:
                        raise _MalformedError(_PROTOCOL_ERROR)
                    self._is_over = True
                    if not self._is_closed:
                        self._is_closed = True
                        answers.append(_frame(_Opcode.CLOSE, payload[:2]))
                    return Stream.ENDED
                continue
            size = self._read_header(data[begin : begin + _HEADER_BYTES_MAX])
            if not size:
                break
            begin += size
        self._rest = data[begin:]
        return Stream.OPEN

    def _read_header(self, header: bytes) -> int:
        """Take a frame's header; return its size, 0 if it is not whole yet."""
        if len(header) < 2:
            return 0
        opcode, length = header[0] & 0x0F, header[1] & 0x7F
        if header[0] & 0x70 or opcode not in _OPCODES or not header[1] & _MASKED:
            raise _MalformedError(_PROTOCOL_ERROR)
        if opcode == _Opcode.TEXT:
            raise _MalformedError(_NO_TEXT)  # [MQTT-6.0.0-1]
        is_last = bool(header[0] & _FIN)
        if opcode >= _Opcode.CLOSE:
            if not is_last or length > CONTROL_BYTES_MAX:
                raise _MalformedError(_PROTOCOL_ERROR)
        elif (opcode == _Opcode.CONTINUATION) is not self._in_message:
            raise _MalformedError(_PROTOCOL_ERROR)
        size = 2
        if length >= 126:
            width = 2 if length == 126 else 8
            size += width
            if len(header) < size:
                return 0
            length = int.from_bytes(header[2:size], "big")
            if length >> 63:
                raise _MalformedError(_PROTOCOL_ERROR)
        if len(header) < size + 4:
            return 0
        if opcode < _Opcode.CLOSE:
            self._in_message = not is_last
        self._opcode = opcode
        self._left = length
        self._mask = header[size : size + 4]
        self._at = 0
        return size + 4

    def _unmask(self, data: bytes) -> bytes:
        """Take off the mask of the next bytes of the frame's payload."""
        size = len(data)
        begin = self._at & 3
        mask = (self._mask * (size // 4 + 2))[begin : begin + size]
        self._at += size
        self._left -= size
        # One operation on two large numbers is fifty times as fast as one for each byte.
        plain = int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")
        return plain.to_bytes(size, "little")

    # --- the opening request -------------------------------------------------------------

    def _accept(self, request: bytes) -> bytes:
        """Return the answer that opens the connection; _RefusedError if the request is no such."""
        line, *lines = request.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _RefusedError("400 Bad Request", "this is no HTTP request")
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
        if SUBPROTOCOL not in _tokens(headers.get("sec-websocket-protocol", "")):  # [MQTT-6.0.0-3]
            raise _RefusedError("400 Bad Request", "the client does not offer subprotocol mqtt")
        origin = headers.get("origin")
        if origin is not None and not self._is_welcome(origin):
            raise _RefusedError("403 Forbidden", "pages of this origin may not connect")
        accept = base64.b64encode(hashlib.sha1(key.encode("ascii") + _ACCEPT_SALT).digest())
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )


_OPCODES: Final = frozenset(_Opcode)


def _tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",")]


def _frame(opcode: _Opcode, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return struct.pack(">BB", _FIN | opcode, size) + payload
    if size < 65_536:
        return struct.pack(">BBH", _FIN | opcode, 126, size) + payload
    return struct.pack(">BBQ", _FIN | opcode, 127, size) + payload
