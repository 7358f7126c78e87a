"""Reference of the WebSocket frames kernel: what core/net/_websocket_frames.pyx must return.

Owns: the frames of one open WebSocket, as its server sees them. Must not touch: the request that
opens it (``websocket``), sockets, what the bytes in the messages mean.
Invariants: a message's bytes are handed over as they come, whatever its length; only a frame's
header or a control frame is ever kept.
Spec: RFC 6455 sections 5 and 7; MQTT 5.0 chapter 6 (binary messages, packets cut anywhere).

     0        1         2            2, 4 or 10      +4
    +--------+---------+------------+---------------+---------+
    | F  op  | M length| length 2/8 | mask, from    | payload |
    |        |         |            | clients only  |         |
    +--------+---------+------------+---------------+---------+
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from motelog.core.net.codec import Decoded, Stream

CONTROL_BYTES_MAX: Final = 125
_HEADER_BYTES_MAX: Final = 14
_FIN, _MASKED = 0x80, 0x80
_NORMAL, _PROTOCOL_ERROR, _NO_TEXT = 1000, 1002, 1003


class _Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_OPCODES: Final = frozenset(_Opcode)


class _MalformedError(Exception):
    """The peer's frames break the protocol; carries the code of the closing frame."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class Frames:
    """The frames of one open WebSocket, both ways."""

    __slots__ = ("_in_message", "_is_closed", "_is_over", "_left", "_mask", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._is_closed = False  # nothing more is sent
        self._is_over = False  # nothing more is read
        self._in_message = False  # a message's first frame has come, but not its last one
        self._left = 0  # bytes of a message's frame that have not come yet
        self._mask = b""  # for these, from the next byte on

    def receive(self, data: bytes) -> Decoded:
        if self._is_over:
            return Decoded(b"")
        data = self._rest + data
        self._rest = b""
        parts: list[bytes] = []
        answers: list[bytes] = []
        stream = Stream.OPEN
        begin = 0
        try:
            while begin < len(data) and stream is Stream.OPEN:
                if self._left:
                    part = data[begin : begin + self._left]
                    parts.append(_unmasked(part, self._mask))
                    begin += len(part)
                    self._left -= len(part)
                    turn = len(part) % 4
                    self._mask = self._mask[turn:] + self._mask[:turn]
                    continue
                size = self._take(data, begin, answers)
                if not size:
                    self._rest = data[begin:]
                    break
                begin += size
                if self._is_over:
                    stream = Stream.ENDED
        except _MalformedError as exc:
            self._is_over = True
            stream = Stream.FAULTY
            self._end(exc.code.to_bytes(2, "big"), answers)
        return Decoded(b"".join(parts), b"".join(answers), stream)

    def send(self, data: bytes) -> bytes:
        return b"" if self._is_closed else _frame(_Opcode.BINARY, data)

    def close(self) -> bytes:
        answers: list[bytes] = []
        self._end(_NORMAL.to_bytes(2, "big"), answers)
        return b"".join(answers)

    def _end(self, payload: bytes, answers: list[bytes]) -> None:
        if not self._is_closed:
            self._is_closed = True
            answers.append(_frame(_Opcode.CLOSE, payload))

    def _take(self, data: bytes, begin: int, answers: list[bytes]) -> int:
        """Take a header, or a whole control frame; return its size, 0 if it is incomplete."""
        header = data[begin : begin + _HEADER_BYTES_MAX]
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
            size, length_min, length_end = (
                (4, 126, 1 << 16) if length == 126 else (10, 1 << 16, 1 << 63)
            )
            if len(header) < size:
                return 0
            length = int.from_bytes(header[2:size], "big")
            if not length_min <= length < length_end:  # the shortest form is the only one
                raise _MalformedError(_PROTOCOL_ERROR)
        if len(header) < size + 4:
            return 0
        mask = header[size : size + 4]
        size += 4
        if opcode < _Opcode.CLOSE:
            self._in_message = not is_last
            self._left = length
            self._mask = mask
            return size
        if len(data) - begin < size + length:
            return 0
        payload = _unmasked(data[begin + size : begin + size + length], mask)
        if opcode == _Opcode.PING and not self._is_closed:
            answers.append(_frame(_Opcode.PONG, payload))
        elif opcode == _Opcode.CLOSE:
            if payload and not _may_close_with(payload):
                raise _MalformedError(_PROTOCOL_ERROR)
            self._is_over = True
            self._end(payload[:2], answers)
        return size + length


def _may_close_with(payload: bytes) -> bool:
    """Return whether a closing frame begins with a code that an endpoint may send."""
    code = int.from_bytes(payload[:2], "big")
    return len(payload) >= 2 and (
        1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
    )


def _unmasked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    whole = (mask * (size // 4 + 1))[:size]
    # One operation on two large numbers is fifty times as fast as one per byte.
    plain = int.from_bytes(data, "little") ^ int.from_bytes(whole, "little")
    return plain.to_bytes(size, "little")


def _frame(opcode: _Opcode, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return struct.pack(">BB", _FIN | opcode, size) + payload
    if size < 65_536:
        return struct.pack(">BBH", _FIN | opcode, 126, size) + payload
    return struct.pack(">BBQ", _FIN | opcode, 127, size) + payload
