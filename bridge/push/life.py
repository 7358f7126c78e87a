"""A push consumer from its start to its end: running, paused, ending, ended.

Owns: Life: which of these it is, and changes from other threads. Must not touch: queues, messages,
brokers; what follows from a change (consumer).
Concurrency: state changes on trio's thread only. The user's plain functions run in other threads
and may stop or pause the consumer; ``change`` hands that over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import trio

from motelog.bridge.push.workers import Handler, Workers


class Life:
    """The state of one consumer, which runs once."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self.handler: Handler | None = None
        self.workers: Workers | None = None
        self.started_ms = 0
        self.is_paused = False
        self.is_ending = False
        #: Why the consumer ends by itself; ``run`` raises it.
        self.failure: Exception | None = None
        self.stop_wanted = trio.Event()
        self.ended = trio.Event()

    def enter(self) -> None:
        """Note which run of trio this is."""
        self._token = trio.lowlevel.current_trio_token()

    def begin(self, handler: Handler, workers: Workers) -> None:
        """Begin to run."""
        self.handler = handler
        self.workers = workers
        self.started_ms = time.time_ns() // 1_000_000
        workers.is_paused = self.is_paused

    @property
    def has_begun(self) -> bool:
        return self.handler is not None

    def pause(self, is_paused: bool) -> None:
        """Pause or resume, also before the consumer runs."""
        self.is_paused = is_paused
        if self.workers is not None:
            self.workers.is_paused = is_paused

    def stop(self) -> None:
        """Request the end. Any thread may call it."""
        self.change(self.stop_wanted.set)

    def change(self, change: Callable[[], object]) -> None:
        """Make a change on trio's thread. Any thread may call it."""
        token = self._token
        if token is None or _is_on_thread_of(token):
            change()
        else:
            with suppress(trio.RunFinishedError):  # everything has ended
                token.run_sync_soon(change)


def _is_on_thread_of(token: trio.lowlevel.TrioToken) -> bool:
    try:
        return trio.lowlevel.current_trio_token() is token
    except RuntimeError:  # no trio on this thread
        return False
