from typing import Any

from motelog.core.records.append import AppendMessage
from motelog.core.records.layout import ScanStop as ScanStop
from motelog.core.store.index._index_py import IndexItem

# Any is an object with the buffer protocol, which Python 3.11 cannot name.

def any_keyed(messages: list[AppendMessage]) -> bool:
    """Return whether there is a message that has a key and is not rolled back."""

def put(
    view: Any, slots: int, entries: int, items: list[IndexItem], item: int, key: int
) -> tuple[int, int]:
    """Add the keys of items[item:], beginning with key number ``key``, until the file is full.

    Returns (item, key) of the first that did not fit, (len(items), 0) if all did. A file whose
    count is invalid counts as full.
    """

def put_records(
    view: Any,
    slots: int,
    entries: int,
    log: Any,
    begin: int,
    end: int,
    physical_base: int,
    key: int,
    count_max: int,
) -> tuple[int, int, ScanStop | None]:
    """Add the keys of the log file's records from ``begin`` on, as ``put`` does, until it is full.

    ``key`` is the first one's number among those of the first record; ``physical_base`` is the
    physical offset of log[0]. Only a record's layout is checked, and that it names its own place,
    not its CRC. At most ``count_max`` records are walked. Returns where the walk ended, and why;
    (position of a record, number of its key that did not fit, None) if the file is full. At a page
    that cannot be read the walk ends as if by ``count_max``; OSError if it is in the first record.
    """

def select(
    view: Any,
    slots: int,
    entries: int,
    hashed: int,
    number: int,
    begin_ms: int,
    end_ms: int,
    count_max: int,
) -> tuple[list[int], int]:
    """Return up to ``count_max`` physical offsets under a hash, newest first, and where to go on.

    ``number`` is 0 at first, then what the previous call returned; 0 means that there are no more.
    The times are compared by the second: all records stored in [begin_ms, end_ms] are among them,
    and perhaps some others.
    """

def relink(view: Any, slots: int, entries: int, count: int, physical_end: int) -> tuple[int, int]:
    """Rebuild all slots and chains from entries [1, count); the header is not changed.

    Stops at the first entry that no put has written or that names a place at or after
    ``physical_end``. Returns (number of that entry, slots in use).
    """
