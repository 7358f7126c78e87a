"""Running a command's work until it is done or interrupted.

Owns: where Ctrl-C interrupts the work. Must not touch: what the work does, exit statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def run_interruptibly(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` and return its result; Ctrl-C raises KeyboardInterrupt only while it waits.

    Elsewhere it would abort calls that have just begun, and Python warns about some of these.
    """
    import trio

    return trio.run(work, restrict_keyboard_interrupt_to_checkpoints=True)
