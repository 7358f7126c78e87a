"""A reserve of memory, which is released when the process runs out of it.

Owns: the spare, whether it is kept. Must not touch: which peers are closed or refused if memory is
short.

After a MemoryError for a large block, such as a payload, there may be too little memory left for
basic needs, such as the 64 KiB that trio reads each time a thread wakes it. Releasing the spare
makes room for these.
"""

from __future__ import annotations

from typing import Final

#: The C library maps a block of this size by itself, so releasing it frees address space.
SPARE_BYTES: Final = 2 << 20

#: The errors of a lack of memory: if there is none for the frame of a call, CPython 3.11 sets no
#: exception, which becomes a SystemError.
NO_MEMORY: Final = (MemoryError, SystemError)

_spare: bytes | None = None


def keep() -> bool:
    """Keep the spare from now on, if there is memory for it; return whether it is kept."""
    global _spare
    try:
        _spare = _spare or bytes(SPARE_BYTES)
    except MemoryError:
        return False
    return True


def give_up() -> None:
    """Release the spare after a MemoryError."""
    global _spare
    _spare = None
