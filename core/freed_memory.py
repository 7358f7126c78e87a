"""How much freed memory the process keeps for its next turn.

Owns: the rule. Must not touch: what the memory is for.
"""

from __future__ import annotations

from typing import Final

#: Of the heap's end; the answers of a turn to a few hundred pulls fit in.
KEPT_BYTES: Final = 4 << 20


def keep_freed_memory() -> None:
    """Have the C library keep up to KEPT_BYTES that are free, for the rest of the process's life.

    From 128 KiB on glibc gives them back to the system, and each 4 KiB of the next turn's answers
    cost a page fault then. It keeps twice the largest block that had a map of its own and was freed
    (mallopt(3), M_MMAP_THRESHOLD). To set the limit itself would end that rule, which also lets
    blocks of that size come from the heap. Elsewhere than with glibc this has no effect.
    """
    bytearray(KEPT_BYTES // 2)
