"""When bytes reach the disk: group commit for those who wait, an interval for the rest.

Owns: GroupFlusher, i.e. the durable offset and who waits for it. Must not touch: files; it is given
a function that blocks until the log is on disk, and runs it in a thread.

Invariants: ``durable_offset`` only grows, and only after such a call has returned without error;
one call releases everybody who waited for what was appended before it began. After an error
nothing is tried again: the kernel may have dropped the dirty pages, and a second fdatasync could
report a false success (threats.md 12).
Concurrency: all state belongs to the trio thread; the blocking call gets values, not this object.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from core.errors import StoreFencedError


class GroupFlusher:
    """Runs ``sync(begin, end)`` so that [begin, end) of the log is durable when it returns."""

    def __init__(
        self,
        *,
        sync: Callable[[int, int], None],
        end_offset: Callable[[], int],
        on_failure: Callable[[str], None],
        interval_ms: int,
    ) -> None:
        self._sync = sync
        self._end_offset = end_offset
        self._on_failure = on_failure
        self._interval_s = interval_ms / 1000
        self._limiter = trio.CapacityLimiter(1)
        self._wanted = trio.Event()
        self._flushed = trio.Event()
        self._fence: str | None = None
        self.durable_offset = 0

    def start_at(self, offset: int) -> None:
        self.durable_offset = offset

    def fence(self, reason: str) -> None:
        """Release all waiters with StoreFencedError, now and from now on."""
        self._fence = reason
        self._flushed.set()
        self._wanted.set()

    async def wait(self, physical_offset: int) -> None:
        """Return when everything below ``physical_offset`` is on disk; StoreFencedError if not."""
        while self.durable_offset < physical_offset:
            if self._fence is not None:
                raise StoreFencedError(self._fence)
            self._wanted.set()
            await self._flushed.wait()

    async def run(self) -> None:
        """Flush when somebody waits, and what is left each interval; ends when fenced."""
        while self._fence is None:
            with trio.move_on_after(self._interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Make all that has been appended so far durable, or fence."""
        begin, end = self.durable_offset, self._end_offset()
        if end > begin and self._fence is None:
            try:
                await trio.to_thread.run_sync(self._sync, begin, end, limiter=self._limiter)
            except OSError as exc:
                self._on_failure(f"flushing the log failed: {exc}")
                return
            self.durable_offset = max(self.durable_offset, end)
        flushed, self._flushed = self._flushed, trio.Event()
        flushed.set()
