"""Decode: concatenated records, as in a pull's answer, become messages for readers.

Picks the compiled kernel (_decode.pyx) or, where the installation was built without kernels, the
reference (_decode_py.py); ``COMPILED`` says which.
Owns: which fields are handed out in which shape, and inflating bodies. Must not touch: files,
clocks, sockets; the layout (layout). Spec: RocketMQ MessageDecoder.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from motelog.core import kernels
from motelog.core.message import SYS_FLAG_COMPRESSED, StoredMessage

COMPILED: Final = kernels.COMPILED

if TYPE_CHECKING:
    from motelog.core.records import _decode as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "COMPILED",
    "decode",
    "decode_brief",
    "decode_fields",
    "decode_messages",
    "decode_values",
    "in_queue",
    "inflate",
]

BODY_BYTES_MAX: Final = 16_777_216  # the most that one remoting frame holds

decode = _kernel.decode
decode_fields = _kernel.decode_fields
decode_brief = _kernel.decode_brief
decode_values = _kernel.decode_values
in_queue = _kernel.in_queue


def decode_messages(records: Any, *, body_bytes_max: int = BODY_BYTES_MAX) -> list[StoredMessage]:
    """Return concatenated records as messages, bodies inflated to at most ``body_bytes_max``.

    A body that cannot be inflated within that size stays as it is stored, and its message
    ``is_compressed``: one producer's message must not keep a consumer from the messages behind it.
    Raises RecordError for bytes that are no record.
    """
    messages = [StoredMessage(*fields) for fields in decode_fields(records)]
    for index, message in enumerate(messages):
        if message.sys_flag & SYS_FLAG_COMPRESSED:
            messages[index] = _inflated(message, body_bytes_max)
    return messages


def inflate(body: bytes, bytes_max: int) -> bytes | None:
    """Return a compressed body as it was before compression, or None.

    None for damaged bytes, for compression other than zlib (Java's producers have LZ4 and ZSTD),
    and for a body that would be larger than ``bytes_max``; it takes no memory for more.
    """
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed tells "exactly as much" from "more".
        inflated = inflater.decompress(body, bytes_max + 1)
    except zlib.error:
        return None
    return inflated if inflater.eof and len(inflated) <= bytes_max else None


def _inflated(message: StoredMessage, body_bytes_max: int) -> StoredMessage:
    body = inflate(message.body, body_bytes_max)
    if body is None:
        return message
    sys_flag = message.sys_flag & ~SYS_FLAG_COMPRESSED
    return msgspec.structs.replace(message, body=body, sys_flag=sys_flag)
