"""An event that is set and cleared again, for tasks of one trio run.

Owns: Flag. Must not touch: what tasks wait for.
trio's Event has no ``clear`` because it is easily misused: a task that looks first and then clears
misses events in between. So ``take`` clears the flag at the moment when the wait ends, before
its caller looks. Tasks that wait when a flag is cleared are woken by the next ``set``.
"""

from __future__ import annotations

import trio


class Flag:
    """Set or not; begins as not set. Trio's thread alone may call it."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake all waiting tasks; ``wait`` returns at once until ``clear``."""
        self._event.set()

    def clear(self) -> None:
        """Make ``wait`` wait again."""
        if self._event.is_set():
            self._event = trio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def pulse(self) -> int:
        """Wake the tasks that wait now, and leave the flag cleared; return their number."""
        event, self._event = self._event, trio.Event()
        woken = event.statistics().tasks_waiting
        event.set()
        return woken

    async def wait(self) -> None:
        """Return when it is set."""
        await self._event.wait()

    async def take(self, within_s: float | None = None) -> bool:
        """Return True when it is set, or False after ``within_s``; clear it.

        Meant for one task: if several wait, the first to run takes it, and the others may get
        False.
        """
        if within_s is None:
            await self._event.wait()
        else:
            with trio.move_on_after(within_s):
                await self._event.wait()
        is_set = self._event.is_set()
        self.clear()
        return is_set
