"""Work in threads, even if the system refuses to start one because the process is at a limit.

Owns: what happens when no thread can be started. Must not touch: what is done in threads, the
limiters of their number.

Without a thread no part of the work has begun, so there is nothing to undo: work that can wait is
retried, other work fails with ENOMEM, like any other lack of room. Threads that an append needs are
started before it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar, TypeVarTuple

import trio
from trio._core._wakeup_socketpair import WakeupSocketpair

from motelog.core import spare_memory
from motelog.core.limited_log import LimitedLog
from motelog.core.spare_memory import NO_MEMORY

logger = logging.getLogger(__name__)

ArgumentsT = TypeVarTuple("ArgumentsT")
ResultT = TypeVar("ResultT")

RETRY_S: Final = 1.0
_LINE_PERIOD_S: Final = 60.0
_lines = LimitedLog(logger, lines_max=1, period_s=_LINE_PERIOD_S)


async def run_in_thread(
    function: Callable[[*ArgumentsT], ResultT],
    *args: *ArgumentsT,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
    or_here: bool = False,
) -> ResultT:
    """Return the result of ``function``, called in a thread when there is one for it.

    With ``or_here`` it is called in this thread if no other can be started: for a shutdown, when
    no other work has to wait.
    """
    has_begun = False

    def begin() -> ResultT:
        nonlocal has_begun
        has_begun = True
        return function(*args)

    while True:
        try:
            return await trio.to_thread.run_sync(
                begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel
            )
        except (RuntimeError, *NO_MEMORY) as exc:
            if has_begun:
                raise
            if or_here:
                return function(*args)
            _tell(exc)
        await trio.sleep(RETRY_S)


async def start_thread(thread: threading.Thread) -> None:
    """Start a thread as soon as the system has one."""
    while True:
        try:
            thread.start()
        except (RuntimeError, *NO_MEMORY) as exc:
            _tell(exc)
            await trio.sleep(RETRY_S)
        else:
            return


class Workers:
    """Threads that are started in advance, so that no later work waits for one to start."""

    def __init__(self, count: int, name: str) -> None:
        """Start ``count`` threads; OSError (ENOMEM) if the system refuses one."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        all_started = threading.Event()
        try:
            for _ in range(count):
                Workers.submit(self, all_started.wait, None)
        except BaseException:
            all_started.set()
            self.shut_down()
            raise
        all_started.set()

    def submit(
        self,
        function: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
    ) -> Future[ResultT]:
        """Call ``function`` in a thread; OSError (ENOMEM) if the call cannot be queued."""
        try:
            return self._pool.submit(function, *args)
        except (RuntimeError, *NO_MEMORY) as exc:
            raise OSError(errno.ENOMEM, f"no thread takes work ({exc!r})") from exc

    def shut_down(self) -> None:
        """Return when all submitted calls are done; blocks."""
        self._pool.shutdown(wait=True)


def hear_without_memory() -> None:
    """Let trio be woken by threads even if there is no memory for the 64 KiB that it reads into.

    It reads in a task of its own, where an error ends the run, and no other code can catch it.
    Unread bytes stay in the socket until the next time.
    """
    drain = WakeupSocketpair.drain

    def drain_if_possible(self: WakeupSocketpair) -> None:
        try:
            drain(self)
        except NO_MEMORY:
            spare_memory.give_up()

    if drain.__name__ != drain_if_possible.__name__:
        WakeupSocketpair.drain = drain_if_possible  # type: ignore[method-assign]  # no public door


def _tell(exc: BaseException) -> None:
    _lines.warning(
        "no thread can be started, and work that needs one waits: free memory, or raise the limits"
        " of threads and of address space (ulimit -u, ulimit -v) error=%r",
        exc,
    )
