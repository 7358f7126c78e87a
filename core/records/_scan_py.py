"""Reference of the scan kernel: the same answers as _scan.pyx in plain Python.

Owns: deciding which bytes of a log are valid, in short code. Must not touch: files, clocks,
sockets. scan.py has the docstrings, layout.py the layout.
Unlike the kernel it has no guard: an unreadable page of a mapped file ends the process.
Spec: RocketMQ CommitLog.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from motelog.core.message import tags_code
from motelog.core.records._properties_py import find_property, has_keys
from motelog.core.records.dispatch import dispatch_places
from motelog.core.records.layout import (
    MAGIC_V1,
    RECORD_BYTES_MIN,
    UNIT,
    UNIT_BYTES,
    ScanStop,
    has_unit,
    is_rolled_back,
    parse_in_log,
)

SECTOR_BYTES: Final = 512  # a disk writes this much atomically
# The common first bytes of both versions' magics.
_MAGIC_FIRST: Final = re.compile(re.escape(bytes((MAGIC_V1 >> 24,))))


class UnitRun(NamedTuple):
    """Units of one queue with consecutive queue offsets from ``first_offset`` on."""

    topic: bytes
    queue_id: int
    first_offset: int
    units: bytes


def scan(
    view: Any, begin: int, end: int, physical_base: int, count_max: int
) -> tuple[list[Any], int, ScanStop]:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= end <= len(data):
        raise ValueError("begin and end lie outside the view")
    found: list[Any] = []
    at = begin
    while at < end:
        if len(found) >= count_max:
            return found, at, ScanStop.COUNT
        r = parse_in_log(data, at, end, physical_base)
        if isinstance(r, ScanStop):
            return found, at, r
        if not r.is_intact:
            return found, at, ScanStop.BAD_CRC
        if _is_torn(data, at + r.size, end, r.topic, r.properties):
            return found, at, ScanStop.BAD_LAYOUT
        tags = find_property(r.properties, b"TAGS")
        code = tags_code(tags.decode(errors="replace")) if tags else 0
        found.append(
            (r.topic, r.queue_id, r.queue_offset, r.physical_offset, r.size, code, r.sys_flag,
             r.store_ms, r.properties)
        )  # fmt: skip
        at += r.size
    return found, at, ScanStop.END


def _is_torn(data: memoryview, record_end: int, end: int, topic: bytes, properties: bytes) -> bool:
    """Return whether a crash has torn a record in topic or properties, which no CRC covers.

    A torn write leaves zeros up to the end of a sector; neither text contains zeros.
    """
    if b"\0" in topic:
        return True
    if not properties:
        return False
    begin = record_end - len(properties)
    sector_end = (begin | (SECTOR_BYTES - 1)) + 1
    while sector_end <= record_end:
        if data[sector_end - 1] == 0:
            return True
        sector_end += SECTOR_BYTES
    return properties.endswith(b"\0") and not any(data[record_end : min(sector_end, end)])


def collect(
    view: Any, begin: int, end: int, physical_base: int, count_max: int,
    timed_topics: tuple[bytes, ...], due_time: Callable[[bytes, int], int],
    keyed: list[tuple[int, int, bytes, bytes]] | None = None, keyed_bytes_max: int = 1 << 26,
) -> tuple[list[UnitRun], int, ScanStop, int, int]:  # fmt: skip
    if not all(isinstance(timed, bytes) for timed in timed_topics):
        raise TypeError("a topic is bytes")
    found, at, stop = scan(view, begin, end, physical_base, count_max)
    if keyed_bytes_max < 0:
        raise ValueError("keyed_bytes_max is negative")
    if keyed is not None:
        count = _take_keyed(found, keyed, keyed_bytes_max)
        if count is not None:
            found, at, stop = scan(view, begin, end, physical_base, count)
    runs: list[tuple[bytes, int, int, bytearray]] = []
    current: dict[tuple[bytes, int], tuple[bytes, int, int, bytearray]] = {}
    further: list[UnitRun] = []
    last_ms = 0
    for topic, queue_id, queue_offset, physical, size, code, sys_flag, ms, properties in found:
        last_ms = max(last_ms, ms)
        if not has_unit(sys_flag):
            continue
        if topic in timed_topics:
            code = due_time(properties, ms) or code
        run = current.get((topic, queue_id))
        if run is None or run[2] + len(run[3]) // UNIT_BYTES != queue_offset:
            run = current[(topic, queue_id)] = (topic, queue_id, queue_offset, bytearray())
            runs.append(run)
        unit = UNIT.pack(physical, size, code)
        run[3].extend(unit)
        further += [
            UnitRun(name, 0, place, unit) for name, place in dispatch_places(topic, properties)
        ]
    own = [UnitRun(*run[:3], bytes(run[3])) for run in runs]
    return own + further, at, stop, len(found), last_ms


def _take_keyed(
    found: list[tuple[Any, ...]], keyed: list[tuple[int, int, bytes, bytes]], bytes_max: int
) -> int | None:
    """Add the records with keys; stop if the texts are too long; return how many were seen."""
    for number, record in enumerate(found):
        topic, _, _, physical, _, _, sys_flag, ms, properties = record
        if has_keys(properties) and not is_rolled_back(sys_flag):
            keyed.append((physical, ms, topic, properties))
            bytes_max -= len(topic) + len(properties)
            if bytes_max < 0:
                return number + 1
    return None


def find_record(view: Any, begin: int, stop: int, end: int, physical_base: int) -> int:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= stop <= end <= len(data):
        raise ValueError("begin, stop and end lie outside the view")
    last = min(stop, end - RECORD_BYTES_MIN + 1)
    # A loop over each byte of a file would take seconds for a megabyte.
    for magic in _MAGIC_FIRST.finditer(data, begin + 4, max(begin, last) + 4):
        at = magic.start() - 4
        if scan(data, at, end, physical_base, 1)[0]:
            return at
    return -1


def zeros_from(view: Any, begin: int, end: int) -> int:
    data = memoryview(view).cast("B")
    if not 0 <= begin <= end <= len(data):
        raise ValueError("begin and end lie outside the view")
    return begin + len(bytes(data[begin:end]).rstrip(b"\0"))
