"""Remoting frames: encoding and decoding the requests and answers of all roles and clients.

Owns: RemotingCommand, the frame with its two header forms, the items of a batch send; re-exports
the codes (core.remoting.codes) and the JSON dialect of bodies (core.remoting.dialect).
Must not touch: sockets, clocks, trio, the meaning of a request.
Invariants: no length field is used before it is compared with the available bytes.
Spec: RocketMQ RemotingCommand, RocketMQSerializable, MessageDecoder.decodeMessages. Big-endian.

    frame     0  u32  bytes that follow: 4 + header + body
              4  u8   serialize type: 0 JSON, 1 ROCKETMQ
              5  u24  header bytes
              8       header, body
    ROCKETMQ  0  i16  code     2  u8  language     3  i16  version     5  i32  opaque
              9  i32  flag    13  i32  remark bytes, remark
                   i32  ext bytes, then entries: i16 key bytes, key, i32 value bytes, value
    batch     0  i32  item bytes     4  i32  0 (magic)     8  i32  0 (crc)     12  i32  flag
             16  i32  body bytes, body, i16  property bytes, properties
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    VERSION_CURRENT,
    VERSION_STANDARD_JSON,
    Language,
    Permission,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    Serialize,
)
from motelog.core.remoting.dialect import DEPTH_MAX, dumps, loads, loads_as

__all__ = [
    "DEPTH_MAX",
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "FRAME_BYTES_MAX",
    "FRAME_BYTES_MIN",
    "VERSION_CURRENT",
    "VERSION_STANDARD_JSON",
    "BatchItem",
    "Language",
    "Permission",
    "PullSysFlag",
    "RemotingCommand",
    "RequestCode",
    "ResponseCode",
    "Serialize",
    "decode",
    "decode_batch_items",
    "decode_head",
    "dumps",
    "encode",
    "encode_batch_items",
    "encode_head",
    "loads",
    "loads_as",
]

FRAME_BYTES_MIN: Final = 8

# (flag, body, property text): one message of a batch send.
BatchItem = tuple[int, bytes, bytes]

_BINARY_FIXED: Final = struct.Struct(">hBhii")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_FRAME_HEAD: Final = struct.Struct(">II")
_BATCH_HEAD: Final = struct.Struct(">iiiii")
_BATCH_FIXED_BYTES: Final = _BATCH_HEAD.size + _I16.size

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LANGUAGES: Final[Mapping[str, Language]] = Language.__members__
# Tables for each frame, since an enumeration's own lookup of a member or its name is slow.
_JSON: Final = Serialize.JSON
_BINARY: Final = Serialize.ROCKETMQ
_NAMES: Final = {language: language.name for language in Language}


@dataclass(slots=True)
class RemotingCommand:
    """One request or answer. ``ext`` has the request's own header fields, all as str."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = VERSION_CURRENT
    language: Language = Language.PYTHON
    remark: str | None = None
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    serialize: Serialize = Serialize.JSON
    #: The sender of an answer; not on the wire.
    peer: str = ""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return a response to this request, with its opaque number and header form."""
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            ext={} if ext is None else ext,
            body=body,
            serialize=self.serialize,
        )


def encode(command: RemotingCommand) -> bytes:
    """Return the whole frame, including the length; errors are those of ``encode_head``."""
    return b"".join((encode_head(command), command.body))


def encode_head(command: RemotingCommand) -> bytes:
    """Return the frame's bytes before the body; their length field includes the body.

    ValueError if a number does not fit its field or the frame is larger than peers accept.
    """
    try:
        header = _encode_json(command) if command.serialize is _JSON else _encode_binary(command)
    except struct.error as exc:
        raise ValueError(f"remoting header field out of range: {exc}") from exc
    following = 4 + len(header) + len(command.body)
    if following + 4 > FRAME_BYTES_MAX:
        raise ValueError(f"remoting frame of {following + 4} bytes, at most {FRAME_BYTES_MAX}")
    return _FRAME_HEAD.pack(following, command.serialize << 24 | len(header)) + header


def decode(frame: bytes | memoryview) -> RemotingCommand:
    """Return the command of exactly one whole frame; RemotingDecodeError for anything else."""
    command, body_begin = decode_head(frame)
    command.body = bytes(frame[body_begin:])
    return command


def decode_head(frame: bytes | memoryview) -> tuple[RemotingCommand, int]:
    """Return a whole frame's command without its body, and where the body begins.

    This avoids a copy of large bodies; errors are those of ``decode``.
    """
    if len(frame) < FRAME_BYTES_MIN:
        raise RemotingDecodeError(f"frame of {len(frame)} bytes, at least {FRAME_BYTES_MIN}")
    following, type_and_bytes = _FRAME_HEAD.unpack_from(frame)
    if following != len(frame) - 4:
        raise RemotingDecodeError(f"frame announces {following} bytes, {len(frame) - 4} follow")
    header_end = FRAME_BYTES_MIN + (type_and_bytes & 0xFFFFFF)
    if header_end > len(frame):
        raise RemotingDecodeError(f"header ends at byte {header_end} of a {len(frame)} byte frame")
    header = bytes(frame[FRAME_BYTES_MIN:header_end])
    kind = type_and_bytes >> 24
    if kind == _JSON:
        command = _decode_json(header)
    elif kind == _BINARY:
        command = _decode_binary(header)
    else:
        raise RemotingDecodeError(f"unknown serialize type {kind}")
    return command, header_end


class _JsonHeader(msgspec.Struct, gc=False):
    """The header as peers write it; unknown keys are ignored."""

    code: _Int32
    opaque: _Int32 = 0
    flag: _Int32 = 0
    version: _Int32 = 0
    language: str | None = None
    remark: str | None = None
    extFields: dict[str, str] | None = None


class _LooseJsonHeader(_JsonHeader, gc=False):
    """The same header with values that are not strings; some clients (ali-ons) send these."""

    extFields: dict[str, str | bool | int | float | None] | None = None  # type: ignore[assignment]


_json_header = msgspec.json.Decoder(_JsonHeader)
_loose_json_header = msgspec.json.Decoder(_LooseJsonHeader)
_json = msgspec.json.Encoder()


def _encode_json(command: RemotingCommand) -> bytes:
    header: dict[str, Any] = {
        "code": int(command.code),
        "extFields": command.ext,
        "flag": command.flag,
        "language": _NAMES[command.language],
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return _json.encode(header)


def _decode_json(text: bytes) -> RemotingCommand:
    try:
        try:
            header = _json_header.decode(text)
            ext = header.extFields or {}
        except msgspec.ValidationError:
            # Half as fast, so it is used only for the few headers with other values than strings.
            header = loose = _loose_json_header.decode(text)
            ext = _as_text(loose.extFields or {})
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise RemotingDecodeError(f"header is not a remoting header: {exc}") from exc
    return RemotingCommand(
        code=header.code,
        opaque=header.opaque,
        flag=header.flag,
        version=header.version,
        language=_LANGUAGES.get(header.language or "", Language.OTHER),
        remark=header.remark,
        ext=ext,
    )


def _as_text(ext: Mapping[str, str | float | None]) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else _plain_text(value)
        for key, value in ext.items()
        if value is not None
    }


def _plain_text(value: bool | float) -> str:
    """Return an unquoted JSON value as text, as Java's string conversion does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode()
    entries = []
    for key, value in command.ext.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        entries += [_I16.pack(len(key_bytes)), key_bytes, _I32.pack(len(value_bytes)), value_bytes]
    ext = b"".join(entries)
    fixed = _BINARY_FIXED.pack(
        command.code, command.language, command.version, command.opaque, command.flag
    )
    return b"".join((fixed, _I32.pack(len(remark)), remark, _I32.pack(len(ext)), ext))


def _decode_binary(header: bytes) -> RemotingCommand:
    if len(header) < _BINARY_FIXED.size:
        raise RemotingDecodeError(f"binary header of {len(header)} bytes")
    code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header)
    remark, position = _take(header, _BINARY_FIXED.size, _I32)
    ext_bytes, position = _take(header, position, _I32)
    if position != len(header):
        raise RemotingDecodeError(f"binary header continues after its end (at byte {position})")
    ext: dict[str, str] = {}
    position = 0
    try:
        while position < len(ext_bytes):
            key, position = _take(ext_bytes, position, _I16)
            value, position = _take(ext_bytes, position, _I32)
            ext[key.decode()] = value.decode()
        remark_text = remark.decode() if remark else None
    except UnicodeDecodeError as exc:
        raise RemotingDecodeError(f"binary header holds text that is not UTF-8: {exc}") from exc
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=Language(language) if language <= Language.NODE_JS else Language.OTHER,
        remark=remark_text,
        ext=ext,
        serialize=Serialize.ROCKETMQ,
    )


def _take(data: bytes, position: int, length: struct.Struct) -> tuple[bytes, int]:
    """Return the bytes after a length field at ``position``, and where they end."""
    begin = position + length.size
    if begin > len(data):
        raise RemotingDecodeError(f"length field cut off (at byte {position})")
    (count,) = length.unpack_from(data, position)
    if not 0 <= count <= len(data) - begin:
        raise RemotingDecodeError(
            f"{count} bytes announced, {len(data) - begin} present (at byte {position})"
        )
    return data[begin : begin + count], begin + count


def encode_batch_items(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a batch send (code 320); ValueError if a length does not fit its field."""
    parts = []
    try:
        for flag, body, properties in items:
            total = _BATCH_FIXED_BYTES + len(body) + len(properties)
            parts += [
                _BATCH_HEAD.pack(total, 0, 0, flag, len(body)),
                body,
                _I16.pack(len(properties)),
                properties,
            ]
    except struct.error as exc:
        raise ValueError(f"batch item field out of range: {exc}") from exc
    return b"".join(parts)


def decode_batch_items(data: bytes) -> list[BatchItem]:
    """Return the messages of a batch send's body; RemotingDecodeError if it is malformed."""
    items: list[BatchItem] = []
    position = 0
    while position < len(data):
        if len(data) - position < _BATCH_FIXED_BYTES:
            raise RemotingDecodeError(f"batch item cut off (at byte {position})")
        total, _magic, _crc, flag, _body_bytes = _BATCH_HEAD.unpack_from(data, position)
        item_end = position + total
        body, properties_at = _take(data, position + _BATCH_HEAD.size - _I32.size, _I32)
        properties, end = _take(data, properties_at, _I16)
        if end != item_end:
            raise RemotingDecodeError(
                f"batch item announces {total} bytes, has {end - position} (at byte {position})"
            )
        items.append((flag, body, properties))
        position = end
    return items
