"""Reference of the read kernel: the same answers as _read.pyx in plain Python.

Owns: selecting units and reading the records that they name, in short code. Must not touch: files,
clocks, sockets. read.py has the docstrings, layout.py the layout.
Unlike the kernel it has no guard: an unreadable page of a mapped file ends the process.
Spec: RocketMQ ConsumeQueue, DefaultMessageStore.getMessage.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from motelog.core.errors import RecordError
from motelog.core.records.layout import (
    FILLER_SIZE,
    REASONS,
    RECORD_BYTES_MIN,
    UNIT,
    UNIT_BYTES,
    Record,
    ScanStop,
    names_itself,
    parse,
)


def gather(
    view: Any, file_base: int, units: bytes, begin: int, end: int, verify: bool = False
) -> bytes:
    data = memoryview(view).cast("B")
    if not (0 <= begin <= end and end * UNIT_BYTES <= len(units)):
        raise ValueError("begin and end lie outside the units")
    parts = []
    for index in range(begin, end):
        physical_offset, size, _ = UNIT.unpack_from(units, index * UNIT_BYTES)
        at = physical_offset - file_base
        if at < 0 or size < RECORD_BYTES_MIN or at + size > len(data):
            raise RecordError("a unit names bytes outside the file", offset_bytes=max(at, 0))
        if not names_itself(data, at, size, physical_offset):
            raise RecordError("a unit names no record", offset_bytes=at)
        if verify:
            record = parse(data, at, at + size)
            if isinstance(record, Record) and not record.is_intact:
                record = ScanStop.BAD_CRC
            if isinstance(record, ScanStop):
                raise RecordError(REASONS[record], offset_bytes=at)
        parts.append(data[at : at + size])
    return b"".join(parts)


def select_units(
    units: Any, count_max: int, bytes_max: int, tag_codes: AbstractSet[int] | None,
    physical_begin: int,
) -> tuple[bytes, int, int, int]:  # fmt: skip
    selected = bytearray()
    looked = removed = total = 0
    for physical_offset, size, code in UNIT.iter_unpack(
        bytes(memoryview(units)[: len(units) // UNIT_BYTES * UNIT_BYTES])
    ):
        if size <= 0:
            break
        if physical_offset < physical_begin or size == FILLER_SIZE:
            looked += 1
            removed += 1
            continue
        # Java compares the low 32 bits as a signed number.
        code32 = ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000
        if tag_codes is not None and code32 not in tag_codes:
            looked += 1
            continue
        if len(selected) >= count_max * UNIT_BYTES or (selected and total + size > bytes_max):
            break
        selected += UNIT.pack(physical_offset, size, code)
        total += size
        looked += 1
    return bytes(selected), looked, removed, total


def copy_out(view: Any, begin: int, end: int) -> bytes:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= end <= len(data):
        raise ValueError("begin and end lie outside the view")
    return bytes(data[begin:end])
