"""Memory that is kept back for when there is none: who meets its end gives it up.

Owns: the spare, whether it is there. Must not touch: who is closed, or refused, for want of memory.

A MemoryError that a large block has met, a payload say, leaves too little for what everybody
needs, such as trio's own 64 KiB each time that it hears from a thread. With the spare given up,
that goes on.
"""

from __future__ import annotations

from typing import Final

#: A block of its own to the C library, so that giving it up makes address space free.
SPARE_BYTES: Final = 2 << 20

#: What says that there is no memory: CPython 3.11 sets no exception where a call finds none for its
#: frame, and makes a SystemError of that.
NO_MEMORY: Final = (MemoryError, SystemError)

_spare: bytes | None = None


def keep() -> bool:
    """Keep the spare from now on, if there is the memory; return whether it is kept."""
    global _spare
    try:
        _spare = _spare or bytes(SPARE_BYTES)
    except MemoryError:
        return False
    return True


def give_up() -> None:
    """Let go of the spare, as somebody has met a MemoryError."""
    global _spare
    _spare = None
