"""An event that is set and cleared again, for tasks of one trio run.

Owns: Flag. Must not touch: what is waited for.
trio's Event has no ``clear``, since it is easily misused: one that clears after it has looked
misses what came in between. So ``take`` clears at the moment in which the wait ends, before its
caller looks. Tasks that wait when a flag is cleared are woken by the next ``set``.
"""

from __future__ import annotations

import trio


class Flag:
    """Set or not; begins as not set. Trio's thread alone may call it."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake all that wait, and have nobody wait until ``clear``."""
        self._event.set()

    def clear(self) -> None:
        """Have ``wait`` wait again."""
        if self._event.is_set():
            self._event = trio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def pulse(self) -> int:
        """Wake those who wait now, and leave the flag cleared; return how many they are."""
        event, self._event = self._event, trio.Event()
        woken = event.statistics().tasks_waiting
        event.set()
        return woken

    async def wait(self) -> None:
        """Return when it is set."""
        await self._event.wait()

    async def take(self, within_s: float | None = None) -> bool:
        """Return when it is set, or after ``within_s``; say which, and clear it.

        For one task: of several, the first to run takes it, and the others may hear False.
        """
        if within_s is None:
            await self._event.wait()
        else:
            with trio.move_on_after(within_s):
                await self._event.wait()
        is_set = self._event.is_set()
        self.clear()
        return is_set
