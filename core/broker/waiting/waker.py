"""Holds requests, and calls them back when their queue grows or their time is over.

Owns: Waker: the task that sleeps until there is something to do. Must not touch: which requests
wait for a queue (the processor's), the registry's indexes (``long_poll``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

import trio

from motelog.core.broker.waiting.long_poll import Callback, HeldRequests
from motelog.core.clock import Clock
from motelog.core.lasting import run_again

_IDLE_MS: Final = 60_000


class Waker:
    """The task of one registry of held requests; ``wake`` calls back those that can continue."""

    def __init__(self, held: HeldRequests, clock: Clock, *, wake: Callable[[], None]) -> None:
        self._held = held
        self._clock = clock
        self._wake = wake
        # Not a Flag, which would cost another call for each held pull.
        self._wanted = trio.Event()

    def want(self) -> None:
        """Make ``run`` call ``wake`` soon."""
        self._wanted.set()

    def hold(self, key: Hashable, deadline_ms: int, callback: Callback, *, owner: Hashable) -> None:
        """Hold a request; ``run`` sleeps no longer than until its deadline."""
        due_ms = self._held.next_due_ms()
        self._held.hold(key, deadline_ms, callback, owner=owner)
        if due_ms is None or deadline_ms < due_ms:
            self._wanted.set()

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Call back until cancelled; ``after`` is called after each round."""
        task_status.started()
        await run_again(self._call_back, after)

    async def _call_back(self, after: Callable[[], None]) -> None:
        while True:
            due_ms = self._held.next_due_ms()
            wait_ms = _IDLE_MS if due_ms is None else max(0, due_ms - self._clock.monotonic_ms())
            with trio.move_on_after(wait_ms / 1000):
                await self._wanted.wait()
            self._wanted = trio.Event()
            self._wake()
            self._held.end_due(self._clock.monotonic_ms())
            after()
