"""Work that a command waits for, until it is done or interrupted.

Owns: where Ctrl-C interrupts it. Must not touch: what it does, exit statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def run_interruptibly(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` and return what it returns; KeyboardInterrupt comes where it waits.

    Anywhere else it would break off calls that have just begun, and Python warns of some of these.
    """
    import trio

    return trio.run(work, restrict_keyboard_interrupt_to_checkpoints=True)
