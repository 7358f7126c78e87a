"""The byte layout of records, as in the CommitLog and in a pull's answer, and of queue units.

Owns: the byte format of record, blank record and unit; the parser of the kernels' references.
(The kernels' parser is _layout.pxd, with the same names and results.) Must not touch: files,
clocks, sockets.
Invariants: parse reads nothing beyond ``end``.
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

Positions from the store timestamp on are those for two IPv4 hosts.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from motelog.core.message import PROPERTIES_BYTES_MAX, SYS_FLAG_BORN_IPV6, SYS_FLAG_STORE_IPV6

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
BLANK_BYTES_MIN: Final = 8
RECORD_BYTES_MIN: Final = 92  # with a topic of one byte; the fixed part is 91
TOPIC_V1_BYTES_MAX: Final = 127  # one byte is signed in Java
TOPIC_BYTES_MAX: Final = 255
COUNT_MAX: Final = 0x7FFFFFFF
IPV4_BYTES: Final = 8  # a host: address and port
IPV6_BYTES: Final = 20
TRANSACTION_MASK: Final = 0xC  # 0x4 prepared, 0x8 commit, 0xC rollback
COMMIT: Final = 0x8
ROLLBACK: Final = 0xC
UNIT_BYTES: Final = 20
FILLER_SIZE: Final = 0x7FFFFFFF  # size of a unit that names no record (0, this, 0)

FIRST: Final = Struct(">IIIiiqqiq")  # up to and with the born timestamp: 48 bytes
LATER: Final = Struct(">iqi")  # reconsume times, prepared offset, body bytes
UNIT: Final = Struct(">qiq")


class ScanStop(IntEnum):
    """Why a scan ended; values above EMPTY name the fault at the position where it ended."""

    END = 0
    COUNT = 1
    BLANK = 2
    EMPTY = 3
    BAD_SIZE = 4
    BAD_MAGIC = 5
    BAD_LAYOUT = 6
    BAD_CRC = 7
    BAD_OFFSET = 8


REASONS: Final = {
    ScanStop.EMPTY: "zeros where a record should be",
    ScanStop.BAD_SIZE: "the size of a record is impossible here",
    ScanStop.BAD_MAGIC: "a record's magic number is wrong",
    ScanStop.BAD_LAYOUT: "the lengths inside a record do not add up to its size",
    ScanStop.BAD_CRC: "the CRC of a record's body is wrong",
    ScanStop.BAD_OFFSET: "a record names another place than its own",
}


class Record(NamedTuple):
    """A parsed record; text and bodies as they are stored, hosts as address and port."""

    size: int
    crc: int
    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    properties: bytes
    body: bytes

    @property
    def is_intact(self) -> bool:
        # Without a body the CRC is not checked: writers differ in the CRC of nothing.
        return not self.body or crc32_31(self.body) == self.crc


def parse(view: memoryview, at: int, end: int) -> Record | ScanStop:
    """Return the record at ``at``, or why there is none."""
    if end - at < RECORD_BYTES_MIN:
        return ScanStop.BAD_SIZE
    size, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_ms = FIRST.unpack_from(
        view, at
    )
    if not RECORD_BYTES_MIN <= size <= min(end - at, COUNT_MAX):
        return ScanStop.BAD_SIZE
    if magic not in (MAGIC_V1, MAGIC_V2):
        return ScanStop.BAD_MAGIC
    if queue_id < 0 or queue_offset < 0:
        return ScanStop.BAD_LAYOUT
    born_bytes = IPV6_BYTES if sys_flag & SYS_FLAG_BORN_IPV6 else IPV4_BYTES
    store_bytes = IPV6_BYTES if sys_flag & SYS_FLAG_STORE_IPV6 else IPV4_BYTES
    head = 2 if magic == MAGIC_V2 else 1
    if FIRST.size + born_bytes + 8 + store_bytes + LATER.size + head + 2 > size:
        return ScanStop.BAD_LAYOUT
    p = FIRST.size
    born_host = bytes(view[at + p : at + (p := p + born_bytes)])
    store_ms = int.from_bytes(view[at + p : at + (p := p + 8)], "big", signed=True)
    store_host = bytes(view[at + p : at + (p := p + store_bytes)])
    reconsume_times, prepared_offset, body_bytes = LATER.unpack_from(view, at + p)
    p += LATER.size
    if not 0 <= body_bytes <= size - p - head - 2:
        return ScanStop.BAD_LAYOUT
    body = bytes(view[at + p : at + (p := p + body_bytes)])
    topic_bytes = int.from_bytes(view[at + p : at + (p := p + head)], "big")
    if not 1 <= topic_bytes <= (TOPIC_V1_BYTES_MAX if head == 1 else TOPIC_BYTES_MAX):
        return ScanStop.BAD_LAYOUT
    if topic_bytes > size - p - 2:
        return ScanStop.BAD_LAYOUT
    topic = bytes(view[at + p : at + (p := p + topic_bytes)])
    properties_bytes = int.from_bytes(view[at + p : at + (p := p + 2)], "big")
    if properties_bytes != size - p or properties_bytes > PROPERTIES_BYTES_MAX:
        return ScanStop.BAD_LAYOUT
    return Record(
        size, crc, topic, queue_id, queue_offset, physical, flag, sys_flag, born_ms, born_host,
        store_ms, store_host, reconsume_times, prepared_offset,
        bytes(view[at + p : at + size]), body,
    )  # fmt: skip


def parse_in_log(view: memoryview, at: int, end: int, physical_base: int) -> Record | ScanStop:
    """Return the record at ``at`` of a log file if it names this place; else what is there.

    ``end`` is the file's end, which a blank record must reach. No CRC is computed.
    """
    if end - at < BLANK_BYTES_MIN:
        return ScanStop.BAD_SIZE
    head = bytes(view[at : at + 8])
    if head == bytes(8):
        return ScanStop.EMPTY
    if int.from_bytes(head[4:], "big") == MAGIC_BLANK:
        return ScanStop.BLANK if int.from_bytes(head[:4], "big") == end - at else ScanStop.BAD_SIZE
    record = parse(view, at, end)
    if isinstance(record, Record) and record.physical_offset != physical_base + at:
        return ScanStop.BAD_OFFSET
    return record


def names_itself(view: memoryview, at: int, size: int, physical_offset: int) -> bool:
    """Return whether the record at ``at`` has this size and names this physical offset."""
    head = FIRST.unpack_from(view, at)
    return head[0] == size and head[1] in (MAGIC_V1, MAGIC_V2) and bool(head[6] == physical_offset)


def has_unit(sys_flag: int) -> bool:
    """Return whether the record gets a unit; prepared and rolled-back ones get none."""
    return sys_flag & TRANSACTION_MASK in (0, COMMIT)


def is_rolled_back(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK == ROLLBACK


def crc32_31(data: bytes) -> int:
    """Return the CRC-32 without its highest bit, as records hold it."""
    return crc32(data) & 0x7FFFFFFF
