"""Decode: concatenated records, as in a pull's answer, become messages for readers.

Picks the compiled kernel (_decode.pyx) or, where the installation was built without kernels, the
reference (_decode_py.py); ``COMPILED`` says which.
Owns: which fields are handed out in which shape, and inflating bodies. Must not touch: files,
clocks, sockets; the layout (layout). Spec: RocketMQ MessageDecoder.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from motelog.core import kernels
from motelog.core.message import SYS_FLAG_COMPRESSED, StoredMessage, decode_host, decode_properties

COMPILED: Final = kernels.COMPILED

if TYPE_CHECKING:
    from motelog.core.records import _decode as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "COMPILED",
    "decode",
    "decode_brief",
    "decode_messages",
    "decode_values",
    "in_queue",
    "inflate",
]

BODY_BYTES_MAX: Final = 16_777_216  # the most that one remoting frame holds

decode = _kernel.decode
decode_brief = _kernel.decode_brief
decode_values = _kernel.decode_values
in_queue = _kernel.in_queue


def decode_messages(records: Any, *, body_bytes_max: int = BODY_BYTES_MAX) -> list[StoredMessage]:
    """Return concatenated records as messages, bodies inflated to at most ``body_bytes_max``.

    A body that cannot be inflated within that size stays as it is stored, and its message
    ``is_compressed``: one producer's message must not keep a consumer from the messages behind it.
    Raises RecordError for bytes that are no record.
    """
    view = memoryview(records).cast("B")
    messages = []
    at = 0
    for fields in decode(view):
        size = int.from_bytes(view[at : at + 4], "big")
        messages.append(_message(fields, size, body_bytes_max))
        at += size
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


def _message(fields: tuple[Any, ...], size: int, body_bytes_max: int) -> StoredMessage:
    (
        topic, queue_id, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host,
        store_ms, store_host, reconsume_times, prepared, properties, body,
    ) = fields  # fmt: skip
    if sys_flag & SYS_FLAG_COMPRESSED:
        inflated = inflate(body, body_bytes_max)
        if inflated is not None:
            body = inflated
            sys_flag &= ~SYS_FLAG_COMPRESSED
    return StoredMessage(
        topic=topic.decode(errors="replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties=decode_properties(properties),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_host=decode_host(born_host),
        store_timestamp_ms=store_ms,
        store_host=decode_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        stored_bytes=size,
    )
