"""When bytes reach the disk: group commit for those who wait, an interval for the rest.

Owns: GroupFlusher, i.e. the durable offset, who waits for it, and the thread that waits for the
disk. Must not touch: files; it is given a function that blocks until the log is on disk.

Invariants: ``durable_offset`` only grows, and only after such a call has returned without error;
one call releases everybody who waited for what was appended before it began. After an error
nothing is tried again: the kernel may have dropped the dirty pages, and a second fdatasync could
report a false success (threats.md 12).
Concurrency: all state belongs to the trio thread; the flush thread gets and returns values. It
lives as long as ``run``: handing it a flush and hearing of its end costs a third of the CPU time
that a trio worker thread per flush does (53 us against 150 us, 2026-11-21, x86_64).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

import trio

from core.errors import StoreFencedError

_Job = tuple[int, int]
_STOP: _Job = (0, -1)


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
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._is_running = False
        self._is_syncing = False
        self._wanted_offset = 0
        self._flushed = trio.Event()
        self._fenced = trio.Event()
        self._fence: str | None = None
        self.durable_offset = 0

    def start_at(self, offset: int) -> None:
        self.durable_offset = offset

    def fence(self, reason: str) -> None:
        """Release all waiters with StoreFencedError, now and from now on."""
        self._fence = reason
        self._flushed.set()
        self._fenced.set()

    async def wait(self, physical_offset: int) -> None:
        """Return when everything below ``physical_offset`` is on disk; StoreFencedError if not."""
        while self.durable_offset < physical_offset:
            if self._fence is not None:
                raise StoreFencedError(self._fence)
            self._wanted_offset = max(self._wanted_offset, physical_offset)
            self._request()
            await self._flushed.wait()

    async def flush(self) -> None:
        """Make all that has been appended so far durable; returns when it is, or when fenced.

        Works without ``run`` too, which nobody else may start meanwhile.
        """
        if not self._is_running:
            begin, end = self.durable_offset, self._end_offset()
            if end > begin and self._fence is None:
                error = await trio.to_thread.run_sync(_attempt, self._sync, begin, end)
                self._finished(end, error)
            return
        with contextlib.suppress(StoreFencedError):
            await self.wait(self._end_offset())

    async def run(self) -> None:
        """Flush when somebody waits, and what is left each interval; ends when fenced."""
        token = trio.lowlevel.current_trio_token()

        def finished(end: int, error: Exception | None) -> None:
            # Nobody is left to hear it when the trio run has ended.
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._finished, end, error)

        thread = threading.Thread(
            target=_serve, args=(self._jobs, self._sync, finished), name="store-flush", daemon=True
        )
        self._is_running = True
        thread.start()
        try:
            while self._fence is None:
                with trio.move_on_after(self._interval_s):
                    await self._fenced.wait()
                self._request()
        finally:
            self._jobs.put(_STOP)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(thread.join)
            # What was asked for behind the stop will not be done.
            self._jobs = SimpleQueue()
            self._is_syncing = False
            self._is_running = False

    def _request(self) -> None:
        """Have what has been appended so far synced, unless a sync is under way."""
        begin, end = self.durable_offset, self._end_offset()
        if end > begin and self._fence is None and not self._is_syncing:
            self._is_syncing = True
            self._jobs.put((begin, end))

    def _finished(self, end: int, error: Exception | None) -> None:
        self._is_syncing = False
        if error is not None:
            self._on_failure(f"flushing the log failed: {error}")
            return
        self.durable_offset = max(self.durable_offset, end)
        flushed, self._flushed = self._flushed, trio.Event()
        flushed.set()
        if self._wanted_offset > self.durable_offset:
            self._request()


def _serve(
    jobs: SimpleQueue[_Job],
    sync: Callable[[int, int], None],
    finished: Callable[[int, Exception | None], None],
) -> None:
    """Carry out one job after the other; the flush thread."""
    while (job := jobs.get()) is not _STOP:
        finished(job[1], _attempt(sync, *job))


def _attempt(sync: Callable[[int, int], None], begin: int, end: int) -> Exception | None:
    try:
        sync(begin, end)
    except Exception as exc:  # whatever went wrong, these bytes may not be on the disk
        return exc
    return None
