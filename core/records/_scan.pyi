from collections.abc import Callable
from typing import Any

from motelog.core.records._scan_py import UnitRun
from motelog.core.records.layout import ScanStop

# Any is an object with the buffer protocol, which Python 3.11 cannot name.
# ``view`` may be a mapped file: OSError (EIO) if one of its pages is inaccessible, because the file
# was cut or the disk failed.

def scan(
    view: Any, begin: int, end: int, physical_base: int, count_max: int
) -> tuple[list[tuple[bytes, int, int, int, int, int, int, int, bytes]], int, ScanStop]:
    """Walk records from ``begin``, checking layout, CRC and that each names its own place.

    ``physical_base`` is the physical offset of view[0]; ``end`` is the end of the file, which a
    blank record must reach. A record with nothing after it whose text ends with zeros is torn:
    no CRC covers that part. Returns the records, where the walk ended, and why:
    (topic, queue_id, queue_offset, physical_offset, size, tags_code, sys_flag, store_ms,
    properties)
    """

def collect(
    view: Any,
    begin: int,
    end: int,
    physical_base: int,
    count_max: int,
    timed_topics: tuple[bytes, ...],
    due_time: Callable[[bytes, int], int],
    keyed: list[tuple[int, int, bytes, bytes]] | None = None,
    keyed_bytes_max: int = 1 << 26,
) -> tuple[list[UnitRun], int, ScanStop, int, int]:
    """Scan as ``scan`` does, but return the ConsumeQueue units of the records, run by run.

    A queue whose offsets jump has several runs; they come in the order in which they begin in the
    log. After them come the units of further queues (core/records/dispatch.py), in the log's
    order, each a run. Other threads run while the records are examined. Records of
    ``timed_topics`` get due_time(properties, store_ms) instead of their tag hash, unless that is 0.
    ``keyed`` gets (physical offset, store_ms, topic, properties) of each that has a key and is not
    rolled back; with more than ``keyed_bytes_max`` of these texts the walk ends as if by count_max.
    Returns (runs, where the walk ended, why, records seen, latest store timestamp).
    """

def find_record(view: Any, begin: int, stop: int, end: int, physical_base: int) -> int:
    """Return the first position in [begin, stop) of an intact record that names its place; or -1.

    The record may reach up to ``end``.
    """

def zeros_from(view: Any, begin: int, end: int) -> int:
    """Return the position from which on [begin, end) holds nothing but zeros."""
