from collections.abc import Set as AbstractSet
from typing import Any

# Any is an object with the buffer protocol, which Python 3.11 cannot name.
# ``view`` may be a mapped file: OSError (EIO) if one of its pages is inaccessible, because the file
# was cut or the disk failed.

def select_units(
    units: Any,
    count_max: int,
    bytes_max: int,
    tag_codes: AbstractSet[int] | None,
    physical_begin: int,
) -> tuple[bytes, int, int, int]:
    """Choose units to read.

    Returns the chosen units, how many were examined, how many name nothing, and how many bytes the
    records of the chosen ones have.

    The first that matches is chosen whatever its size. Units below ``physical_begin`` and fillers
    name nothing; a unit without size ends the walk.
    """

def gather(
    view: Any, file_base: int, units: bytes, begin: int, end: int, verify: bool = False
) -> bytes:
    """Return the records that units[begin:end] (counted in units) name, one after the other.

    RecordError if a unit names anything but a record of that size at that place; ``verify`` also
    checks the record's lengths and the CRC of its body.
    """

def copy_out(view: Any, begin: int, end: int) -> bytes:
    """Return view[begin:end]."""
