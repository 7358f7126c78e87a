from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from motelog.core.records._record_py import ScanStop, UnitRun
from motelog.core.records.record import AppendMessage

# Any stands for an object with the buffer protocol, which Python 3.11 cannot name. ``view`` and
# ``target`` may be mapped files: OSError (EIO) when one of their pages cannot be had, because the
# file was cut or the disk failed; what was written by then stays.

class QueueTail:
    """Where the next record of one queue goes, and its newest units: those not on file yet.

    It holds the units of [first_offset, next_offset); ``pending`` is how many these are.
    """

    def __init__(self, topic: bytes, queue_id: int, next_offset: int) -> None: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def units(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units from ``offset`` on; ValueError below first_offset."""

    def extend(self, units: bytes) -> None:
        """Add units behind the last one."""

    def drop(self, end_offset: int) -> None:
        """Forget the units below ``end_offset``: they are on file."""

    def take_back(self, physical_end: int) -> None:
        """Give up the last units as long as their records begin at ``physical_end`` or later."""

    def reset(self, next_offset: int) -> None:
        """Forget all units; the next one will be ``next_offset``."""

    def take_put(self) -> tuple[int, int]:
        """Return (messages, bytes of their records) that were put into it since the last call."""

def measure(messages: list[AppendMessage], begin: int, body_bytes_max: int) -> tuple[int, int]:
    """Check messages[begin:] and return how many bytes they take at most: (total, largest record).

    Raises RecordTooLargeError, TypeError, ValueError or OverflowError; what passes here can be
    encoded.
    """

def encode_batch(
    target: Any,
    position: int,
    limit: int,
    physical_base: int,
    messages: list[AppendMessage],
    begin: int,
    store_timestamp_ms: int,
    store_host: bytes,
    dirty: list[QueueTail],
    placed: list[tuple[int, int]] | None,
    batch_begin: int | None = None,
    fresh: list[QueueTail] | None = None,
) -> tuple[int, int]:
    """Write messages[begin:] at ``position`` until one does not fit below ``limit`` less 8 bytes.

    ``physical_base`` is the physical offset of target[0]. Returns (index of the first message not
    written, new position). Appends to ``dirty`` each tail that got its first unit since the
    physical offset ``batch_begin`` (here, unless given), to ``fresh`` each that held no units
    before, and (physical offset, queue offset) of each message to ``placed``.
    """

def encode_blank(target: Any, position: int, limit: int) -> None:
    """Write the blank record that fills ``position`` up to ``limit``, the end of the file."""

def copy_out(view: Any, begin: int, end: int) -> bytes:
    """Return view[begin:end]."""

def copy_in(target: Any, position: int, data: bytes) -> None:
    """Write ``data`` at ``position``."""

def crc32_31(data: Any) -> int:
    """Return zlib's CRC-32 without its highest bit, as records hold it."""

def decode(records: Any, count_max: int = ..., verify: bool = False) -> list[tuple[Any, ...]]:
    """Return the fields of concatenated records; RecordError for anything that is not one.

    (topic, queue_id, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host, store_ms,
    store_host, reconsume_times, prepared_transaction_offset, properties, body); text as bytes.
    ``verify`` checks the CRC of each body too.
    """

def decode_brief(
    records: Any, name: bytes
) -> list[tuple[int, bytes | None, bytes, bytes, bytes, int, int, int]]:
    """Return what delivery needs of concatenated records, with the value of property ``name``.

    (queue_offset, value or None, topic, properties, body, sys_flag, store_ms, stored_bytes)
    """

def decode_values(records: Any, names: tuple[str, ...]) -> list[tuple[int, int, dict[str, str]]]:
    """Return (queue_offset, stored_bytes, values) of concatenated records.

    ``values`` has the properties among ``names`` that there are: the last value that is not empty.
    """

def in_queue(records: Any, topic: bytes, queue_id: int, begin: int, end: int) -> bool:
    """Say whether these are whole records of one queue, with rising queue offsets in [begin, end).

    Only for memory that no file is mapped into.
    """

def scan(
    view: Any, begin: int, end: int, physical_base: int, count_max: int
) -> tuple[list[tuple[bytes, int, int, int, int, int, int, int, bytes]], int, ScanStop]:
    """Walk records from ``begin``, checking layout, CRC and that each names its own place.

    ``physical_base`` is the physical offset of view[0]; ``end`` is the end of the file, which a
    blank record must reach. A record with nothing behind it whose text ends with zeros is torn:
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
    log. Other threads run while the records are looked at. Records of
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

def gather(
    view: Any, file_base: int, units: bytes, begin: int, end: int, verify: bool = False
) -> bytes:
    """Return the records that units[begin:end] (counted in units) name, one after the other.

    RecordError if a unit names anything but a record of that size at that place; ``verify`` also
    checks the record's lengths and the CRC of its body.
    """

def select_units(
    units: Any,
    count_max: int,
    bytes_max: int,
    tag_codes: AbstractSet[int] | None,
    physical_begin: int,
) -> tuple[bytes, int, int]:
    """Choose units to read: (the chosen units, how many were looked at, how many name nothing).

    The first that matches is chosen whatever its size. Units below ``physical_begin`` and fillers
    name nothing; a unit without size ends the walk.
    """
