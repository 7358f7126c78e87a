"""The appends of one broker: at once, or in line while the next CommitLog file does not exist.

Owns: the line, how long and how much may wait in it. Must not touch: the content of a batch, the
answers: users pass callbacks with a batch.

    append -> the file exists                    -> appended at once, nothing waits
           -> no file yet, or others wait        -> None
    wait   -> in line                            -> appended, in the order of the line
                                                 -> refused after the timeout
           -> too long behind other batches           -> refused, as RocketMQ's queue of sends does

The line knows how long appends take: if its first batch has waited for ``busy_ms``, or an append
has taken that long, RocketMQ calls the page cache busy. Flow control uses this.

Invariants: a batch is appended or refused once. While one waits, all later batches wait behind it,
so that the messages of a publisher keep their order. The event loop does not wait: reads and all
other requests are served meanwhile. A worker of the store makes the file.
Concurrency: state changes between two awaits of ``run``.
Spec: RocketMQ AllocateMappedFileService; an append there waits 5 s for the next file, too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from motelog.core.broker.waiting.pauses import PAUSE_MS, Pauses
from motelog.core.clock import Clock
from motelog.core.errors import BusyError, NextFileError, StoreError, StoreFullError
from motelog.core.flag import Flag
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import AppendMessage

logger = logging.getLogger(__name__)

#: Bytes of bodies that may wait. A batch above the limit is refused when its turn comes.
LINE_BYTES_MAX: Final = 67_108_864
POLL_S: Final = 0.005
_TELLING_FAILED: Final = "answering an append failed, a fault of this server"


class Append(Protocol):
    """MessageStore.append that raises NextFileError instead of waiting."""

    def __call__(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None,
        *,
        store_timestamp_ms: int | None,
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class _Batch:
    messages: list[AppendMessage]
    placed: list[tuple[int, int]] | None
    store_timestamp_ms: int | None
    bytes: int
    deadline_ms: int
    came_ms: int
    #: How long it may wait behind other batches; None: no limit.
    behind_ms_max: int | None
    error: StoreError | None
    appended: Callable[[int], None]
    refused: Callable[[StoreError], None]


class AppendLine:
    """A broker's appends, and the waiting batches."""

    def __init__(
        self,
        append: Append,
        *,
        clock: Clock,
        timeout_ms: int,
        busy_ms: int,
        in_time: Callable[[AppendMessage], AppendMessage] = lambda message: message,
    ) -> None:
        """``in_time`` returns the message to append in place of one that has waited."""
        self._append_now = append
        self._in_time = in_time
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._busy_ms = busy_ms
        #: Batches that wait.
        self.batches: deque[_Batch] = deque()
        self._bytes = 0
        self._wanted = Flag()
        self._faults = LimitedLog(logger)
        self.pauses = Pauses(clock)
        #: When the last append that took longer than ``busy_ms`` ended; None: there was none.
        self.slow_until_ms: int | None = None
        #: Batches that were behind others for too long.
        self.overdue_count = 0

    @property
    def head_waited_ms(self) -> int:
        """The time for which the first batch has waited for the next file; 0 if none waits."""
        return self._clock.monotonic_ms() - self.batches[0].came_ms if self.batches else 0

    @property
    def is_busy(self) -> bool:
        """Whether the first batch has waited for longer than ``busy_ms``."""
        return self.head_waited_ms > self._busy_ms

    @property
    def is_waiting(self) -> bool:
        """Whether a batch waits; then others have to wait behind it."""
        return bool(self.batches)

    def append(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None = None,
        store_timestamp_ms: int | None = None,
    ) -> int | None:
        """Append a batch and return its end offset; None if it has to ``wait`` in line.

        Raises what MessageStore.append raises.
        """
        if self.batches:
            return None
        try:
            return self._append(messages, placed, store_timestamp_ms=store_timestamp_ms)
        except NextFileError:
            return None

    def wait(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None = None,
        store_timestamp_ms: int | None = None,
        *,
        behind_ms_max: int | None = None,
        appended: Callable[[int], None],
        refused: Callable[[StoreError], None],
    ) -> None:
        """Put a batch into the line; ``appended`` gets its end offset, or ``refused`` an error.

        The line owns the list from now on. ``placed`` is filled as by an append. A batch that is
        behind others for ``behind_ms_max`` is refused with BusyError.
        """
        size = sum(len(message[1]) for message in messages)
        error = None
        if self._bytes + size > LINE_BYTES_MAX:
            error = StoreFullError("too many bytes wait for the next CommitLog file")
            messages, size = [], 0
        self._bytes += size
        now_ms = self._clock.monotonic_ms()
        self.batches.append(
            _Batch(
                messages,
                placed,
                store_timestamp_ms,
                size,
                now_ms + self._timeout_ms,
                now_ms,
                behind_ms_max,
                error,
                appended,
                refused,
            )
        )
        self._wanted.set()

    def go_on(self) -> None:
        """Append the batches that can be appended, and refuse those whose time is over."""
        while self.batches:
            batch = self.batches[0]
            end_offset, error = 0, batch.error
            if error is None:
                try:
                    end_offset = self._append(
                        list(map(self._in_time, batch.messages)),
                        batch.placed,
                        store_timestamp_ms=batch.store_timestamp_ms,
                    )
                except NextFileError:
                    if self._clock.monotonic_ms() < batch.deadline_ms:
                        self._refuse_overdue()
                        return
                    error = NextFileError(
                        f"the next CommitLog file was not ready within {self._timeout_ms} ms"
                    )
                except StoreError as exc:
                    error = exc
                except Exception:
                    # A failure of one batch must not end the task that serves the others.
                    self._faults.fault("an append failed, a fault of this server; it is refused")
                    error = StoreError("the append failed, see the broker's log")
            # Removed before the callback, which may append.
            self.batches.popleft()
            self._bytes -= batch.bytes
            with self._faults.boundary(_TELLING_FAILED):
                if error is None:
                    batch.appended(end_offset)
                else:
                    batch.refused(error)

    def _append(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None,
        *,
        store_timestamp_ms: int | None,
    ) -> int:
        began_ms = self.pauses.note()
        end_offset = self._append_now(messages, placed, store_timestamp_ms=store_timestamp_ms)
        now_ms = self._clock.monotonic_ms()
        if now_ms - began_ms >= PAUSE_MS:
            self.pauses.leave_out(now_ms)
        if now_ms - began_ms > self._busy_ms:
            self.slow_until_ms = now_ms
        return end_offset

    def _refuse_overdue(self) -> None:
        """Refuse batches that have been behind the first one for too long."""
        now_ms = self._clock.monotonic_ms()
        head, *behind = self.batches
        overdue = [
            batch
            for batch in behind
            if batch.behind_ms_max is not None and now_ms - batch.came_ms >= batch.behind_ms_max
        ]
        if not overdue:
            return
        gone = set(map(id, overdue))
        self.batches = deque([head, *(batch for batch in behind if id(batch) not in gone)])
        self.overdue_count += len(overdue)
        for batch in overdue:
            self._bytes -= batch.bytes
        for batch in overdue:
            error = BusyError(waited_too_long(now_ms - batch.came_ms, len(self.batches)))
            with self._faults.boundary(_TELLING_FAILED):
                batch.refused(error)

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Append or refuse waiting batches until cancelled; ``after`` follows each attempt."""
        task_status.started()
        await run_again(self._go_on_until_empty, after)

    async def _go_on_until_empty(self, after: Callable[[], None]) -> None:
        while True:
            while self.batches:
                self.go_on()
                after()
                if self.batches:
                    await trio.sleep(POLL_S)
            await self._wanted.take()


def waited_too_long(waited_ms: int, waiting_count: int) -> str:
    """Return RocketMQ's remark for a request that has waited in a queue for too long."""
    return (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue:"
        f" {waited_ms}ms, size of queue: {waiting_count}"
    )
