from typing import Any

from core.record import AppendMessage
from core.record import ScanStop as ScanStop
from core.store._index_py import IndexItem

# Any stands for an object with the buffer protocol, which Python 3.11 cannot name.

def keyed(messages: list[AppendMessage]) -> list[int]:
    """Return which messages have a key and are not rolled back, by their position in the list."""

def put(
    view: Any, slots: int, entries: int, items: list[IndexItem], item: int, key: int
) -> tuple[int, int]:
    """Add the keys of items[item:], beginning with key number ``key``, until the file is full.

    Returns (item, key) of the first that did not fit, (len(items), 0) when all did. A file whose
    count is not one counts as full.
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

    ``number`` is 0 at first, then what the call before returned; 0 says that there are no more. The
    times are compared by the second: what is stored in [begin_ms, end_ms] is among them, and some
    that is not may be.
    """

def relink(view: Any, slots: int, entries: int, count: int, physical_end: int) -> tuple[int, int]:
    """Make all slots and chains anew from entries [1, count); the header is left alone.

    Stops at the first entry that no put has written or that names a place at or behind
    ``physical_end``. Returns (number of that entry, slots in use).
    """

def collect_keyed(
    view: Any, begin: int, end: int, physical_base: int, count_max: int
) -> tuple[list[IndexItem], int, ScanStop]:
    """Walk records from ``begin`` and return those that have keys, where the walk ended, and why.

    Only the layout is checked and that each record names its own place: no CRC. ``physical_base``
    is the physical offset of view[0].
    """
