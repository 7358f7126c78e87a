"""How much freed memory the process keeps for its next turn.

Owns: the rule. Must not touch: what the memory is for.
"""

from __future__ import annotations

from typing import Final

#: At the end of the heap; the answers to a few hundred pulls in one turn fit in.
KEPT_BYTES: Final = 4 << 20


def keep_freed_memory() -> None:
    """Make the C library keep up to KEPT_BYTES of free memory, for the rest of the process's life.

    By default glibc returns free memory from 128 KiB on to the system, and then each 4 KiB of the
    next turn's answers cost a page fault. It keeps twice the size of the largest freed block that
    had its own mapping (mallopt(3), M_MMAP_THRESHOLD). Setting the limit itself would turn off that
    rule, which also makes blocks of that size come from the heap. Without glibc this has no effect.
    """
    bytearray(KEPT_BYTES // 2)
