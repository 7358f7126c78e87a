r"""Records of the CommitLog, which are also what a pull answers with: encode, decode, scan.

Picks the compiled kernel (_record.pyx) or, where the installation was built without kernels, the
reference (_record_py.py); ``COMPILED`` says which.
Owns: the byte format of record, blank record and ConsumeQueue unit. Must not touch: files, clocks,
sockets.
Spec: RocketMQ MessageDecoder, MessageExtEncoder, CommitLog, ConsumeQueue. All integers big-endian.

    record, version 1                                     blank record, ends a file
    at  bytes                                             at  bytes
     0  4    size of the whole record                      0  4  bytes up to the file's end
     4  4    magic 0xDAA320A7 (version 2: 0xDAA320AB)      4  4  magic 0xCBD43194
     8  4    CRC-32 of the body & 0x7FFFFFFF               8  .. undefined
    12  4    queue id
    16  4    flag                                         ConsumeQueue unit
    20  8    queue offset                                  0  8  physical offset
    28  8    physical offset of this record                8  4  size of the record
    36  4    sysFlag                                      12  8  tag hash, or deliver time
    40  8    born timestamp, ms
    48  8    born host: 4 address bytes, 4 port (20 when sysFlag & 0x10: 16 address bytes)
    56  8    store timestamp, ms
    64  8    store host (20 when sysFlag & 0x20)
    72  4    reconsume times
    76  8    prepared transaction offset
    84  4+n  body
     .  1+n  topic (version 2, for topics above 127 bytes: 2+n)
     .  2+n  properties, at most 32767

Positions from the store timestamp on are those of two IPv4 hosts.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from motelog.core import kernels
from motelog.core.message import SYS_FLAG_COMPRESSED, StoredMessage, decode_host, decode_properties
from motelog.core.records._record_py import (
    BLANK_BYTES_MIN,
    COUNT_MAX,
    FILLER_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    UNIT_BYTES,
    ScanStop,
    UnitRun,
)

COMPILED: Final = kernels.COMPILED

if TYPE_CHECKING:
    from motelog.core.records import _record as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "BLANK_BYTES_MIN",
    "COMPILED",
    "COUNT_MAX",
    "FILLER_SIZE",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_BYTES_MIN",
    "UNIT_BYTES",
    "AppendMessage",
    "QueueTail",
    "ScanStop",
    "UnitRun",
    "collect",
    "copy_in",
    "copy_out",
    "crc32_31",
    "decode",
    "decode_brief",
    "decode_messages",
    "decode_values",
    "encode_batch",
    "encode_blank",
    "find_record",
    "gather",
    "in_queue",
    "inflate",
    "measure",
    "scan",
    "select_units",
    "zeros_from",
]

# (tail, body, properties, tags_code, born_timestamp_ms, born_host, sys_flag, flag,
#  reconsume_times, prepared_transaction_offset)
# tags_code has to be the hash of the TAGS property (in SCHEDULE_TOPIC_XXXX the time it is due):
# the unit is not part of the record, so that is what a ConsumeQueue made anew will hold.
AppendMessage: TypeAlias = "tuple[QueueTail, bytes, bytes, int, int, bytes, int, int, int, int]"

BODY_BYTES_MAX: Final = 16_777_216  # what one remoting frame may hold

QueueTail = _kernel.QueueTail
measure = _kernel.measure
encode_batch = _kernel.encode_batch
encode_blank = _kernel.encode_blank
copy_out = _kernel.copy_out
copy_in = _kernel.copy_in
crc32_31 = _kernel.crc32_31
decode = _kernel.decode
decode_brief = _kernel.decode_brief
decode_values = _kernel.decode_values
scan = _kernel.scan
collect = _kernel.collect
find_record = _kernel.find_record
gather = _kernel.gather
in_queue = _kernel.in_queue
select_units = _kernel.select_units
zeros_from = _kernel.zeros_from


def decode_messages(records: Any, *, body_bytes_max: int = BODY_BYTES_MAX) -> list[StoredMessage]:
    """Return concatenated records as messages, bodies inflated to at most ``body_bytes_max``.

    A body that cannot be inflated so comes as it is stored, and its message ``is_compressed``: one
    producer's message must not keep a consumer from all that follow. Raises RecordError for bytes
    that are no record.
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
    """Return a compressed body as it was before, or None.

    None for damaged bytes, for compression other than zlib (Java's producers have LZ4 and ZSTD),
    and for what becomes larger than ``bytes_max``; memory for more is not taken.
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
