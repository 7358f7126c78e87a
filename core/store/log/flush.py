"""When bytes reach the disk: group commit for waiting callers, an interval for the rest.

Owns: GroupFlusher, i.e. the durable offset, its waiting callers, and the thread that waits for the
disk; Committer, for bytes that first wait in memory. Must not touch: files; both receive functions
that block until the log is on disk, or in the page cache.

Invariants: ``durable_offset`` only grows, and only after such a call has returned without error;
one call releases all callers that waited for what was appended before it began. After an error
nothing is retried: the kernel may have dropped the dirty pages, and a second fdatasync could report
a false success (threats.md 12).
Concurrency: all state belongs to the trio thread; the flush thread receives and returns values. It
lives as long as ``run``: passing it a flush and receiving the result costs a third of the CPU time
of a trio worker thread per flush. Results come through a pipe on which ``run`` waits, which takes
half of trio's own way from a thread (54 us against 106 us of CPU time for a flush, including
fdatasync, 2026-11-21, x86_64, busy); callers without a task are called back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import trio

from motelog.core.errors import StoreFencedError
from motelog.core.flag import Flag
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.threads import run_in_thread, start_thread

logger = logging.getLogger(__name__)

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
        on_flushed: Callable[[int], None],
        interval_ms: int,
    ) -> None:
        self._sync = sync
        self._end_offset = end_offset
        self._on_failure = on_failure
        self._on_flushed = on_flushed
        self._interval_s = interval_ms / 1000
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        # Results of the flush thread; each comes with a byte in the pipe.
        self._done: deque[tuple[int, Exception | None]] = deque()
        self._wake: int | None = None  # the end of the pipe to write to, while run is running
        self._is_syncing = False
        self._is_gathering = False
        self._lacks_memory = False
        self._were_many = False  # more than one task waited for the last sync
        self._wanted_offset = 0
        self._flushed = Flag()
        self._fence: str | None = None
        self.durable_offset = 0
        #: Called whenever durable_offset grows, and at the fence.
        self.listeners: list[Callable[[], None]] = []

    def start_at(self, offset: int) -> None:
        self.durable_offset = offset

    def fence(self, reason: str) -> None:
        """Release all waiters with StoreFencedError, now and from now on."""
        self._fence = reason
        self._tell()
        if self._wake is not None:
            os.write(self._wake, b"\0")

    @property
    def is_fenced(self) -> bool:
        return self._fence is not None

    def want(self, physical_offset: int) -> None:
        """Request that everything below ``physical_offset`` becomes durable; see ``listeners``."""
        self._wanted_offset = max(self._wanted_offset, physical_offset)
        self._request()

    async def wait(self, physical_offset: int) -> None:
        """Return when everything below ``physical_offset`` is on disk, or StoreFencedError."""
        has_gathered = False
        while self.durable_offset < physical_offset:
            if self._fence is not None:
                raise StoreFencedError(self._fence)
            self._wanted_offset = max(self._wanted_offset, physical_offset)
            if self._is_gathering or self._is_syncing:
                await self._flushed.wait()
            elif self._were_many and not has_gathered:
                has_gathered = True
                await self._gather()
            else:
                self._request()
                await self._flushed.wait()

    async def _gather(self) -> None:
        """Request a sync after all callers that were released together have run.

        Otherwise the first of them would get a sync of its own, and all others would wait for it.
        """
        self._is_gathering = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._is_gathering = False
            self._request()

    async def flush(self) -> None:
        """Make everything appended so far durable; return when it is, or when fenced.

        Also works without ``run``, which must not be started meanwhile.
        """
        if self._wake is None:
            begin, end = self.durable_offset, self._end_offset()
            if end > begin and self._fence is None:
                error = await run_in_thread(_attempt, self._sync, begin, end)
                self._finished(end, error)
                if isinstance(error, NO_MEMORY):
                    raise error
            return
        with contextlib.suppress(StoreFencedError):
            await self.wait(self._end_offset())

    async def run(self) -> None:
        """Flush when a caller waits, and the rest each interval; ends when fenced."""
        heard, self._wake = os.pipe()
        os.set_blocking(heard, False)
        thread = threading.Thread(
            target=_serve,
            args=(self._jobs, self._sync, self._done, self._wake),
            name="store-flush",
            daemon=True,
        )
        try:
            await start_thread(thread)
            while self._fence is None:
                # One scope for all flushes of an interval: a scope costs as much as a flush.
                with trio.move_on_after(self._interval_s):
                    while self._fence is None:
                        await trio.lowlevel.wait_readable(heard)
                        os.read(heard, 64)
                        await self._hear()
                self._request()
        finally:
            self._jobs.put(_STOP)
            with trio.CancelScope(shield=True):
                if thread.ident is not None:
                    await run_in_thread(thread.join, or_here=True)
            wake, self._wake = self._wake, None
            os.close(wake)
            os.close(heard)
            while self._done:
                self._finished(*self._done.popleft())
            # Requests after the stop are not executed.
            self._jobs = SimpleQueue()
            self._is_syncing = False

    def _request(self) -> None:
        """Request a sync of everything appended so far, unless a sync is in progress."""
        begin, end = self.durable_offset, self._end_offset()
        if end > begin and self._fence is None and not self._is_syncing:
            self._is_syncing = True
            self._jobs.put((begin, end))

    async def _hear(self) -> None:
        while self._done:
            self._finished(*self._done.popleft())
        if (
            self._wanted_offset > self.durable_offset
            and not self._is_syncing
            and not self._lacks_memory
        ):
            # Callers that were just released often append more at once: after two rounds of other
            # tasks it is in the log, and the next sync includes it.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            self._request()

    def _finished(self, end: int, error: Exception | None) -> None:
        self._is_syncing = False
        if isinstance(error, NO_MEMORY):
            # No disk call has failed, so the next interval may request the same again.
            self._lacks_memory = True
            logger.warning("there is no memory for a flush of the log; it is retried: free memory")
            return
        self._lacks_memory = False
        if error is not None:
            self._on_failure(f"flushing the log failed: {error}")
            return
        self.durable_offset = max(self.durable_offset, end)
        self._on_flushed(self.durable_offset)
        self._tell()

    def _tell(self) -> None:
        self._were_many = self._flushed.pulse() > 1
        for listener in self.listeners:
            listener()


class Committer:
    """Runs ``commit`` each interval, in a thread: for write-buffer mode.

    Not in the flush thread, where it would wait for the disk.
    """

    def __init__(
        self, *, commit: Callable[[], None], on_failure: Callable[[str], None], interval_ms: int
    ) -> None:
        self._commit = commit
        self._on_failure = on_failure
        self._interval_s = interval_ms / 1000
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Commit until cancelled, or until it fails; the caller handles the rest."""
        while True:
            await trio.sleep(self._interval_s)
            if not await self.commit():
                return

    async def commit(self) -> bool:
        """Commit what has been appended so far; return False if that failed."""
        try:
            await run_in_thread(self._commit, limiter=self._limiter)
        except OSError as exc:
            self._on_failure(f"committing the write buffer failed: {exc}")
            return False
        return True


def _serve(
    jobs: SimpleQueue[_Job],
    sync: Callable[[int, int], None],
    done: deque[tuple[int, Exception | None]],
    wake: int,
) -> None:
    """Execute one job after the other; runs in the flush thread."""
    while (job := jobs.get()) is not _STOP:
        done.append((job[1], _attempt(sync, *job)))
        os.write(wake, b"\0")


def _attempt(sync: Callable[[int, int], None], begin: int, end: int) -> Exception | None:
    try:
        sync(begin, end)
    except Exception as exc:  # after any error these bytes may not be on disk
        return exc
    return None
