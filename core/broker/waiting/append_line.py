"""The appends of one broker: at once, or in line while the next CommitLog file is not there.

Owns: the line, how long and how much may wait in it. Must not touch: what a batch is, who is
answered; each user says that when it puts a batch into the line.

    append -> the file is there                  -> appended at once, nothing waits
           -> no file yet, or others wait        -> None
    wait   -> in line                            -> appended, in the order of the line
                                                 -> refused when the time is over

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

from motelog.core.clock import Clock
from motelog.core.errors import NextFileError, StoreError, StoreFullError
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import AppendMessage

logger = logging.getLogger(__name__)

#: Bytes of bodies that may wait. A batch above the limit is refused when its turn comes.
LINE_BYTES_MAX: Final = 67_108_864
POLL_S: Final = 0.005


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
    error: StoreError | None
    appended: Callable[[int], None]
    refused: Callable[[StoreError], None]


class AppendLine:
    """What a broker appends with, and the batches that wait."""

    def __init__(self, append: Append, *, clock: Clock, timeout_ms: int) -> None:
        self._append = append
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._batches: deque[_Batch] = deque()
        self._bytes = 0
        self._wanted = trio.Event()
        self._faults = LimitedLog(logger)

    @property
    def is_waiting(self) -> bool:
        """Whether a batch waits; then others have to wait behind it."""
        return bool(self._batches)

    def append(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None = None,
        store_timestamp_ms: int | None = None,
    ) -> int | None:
        """Append a batch and return its end offset; None if it has to ``wait`` in line.

        Raises what MessageStore.append raises.
        """
        if self._batches:
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
        appended: Callable[[int], None],
        refused: Callable[[StoreError], None],
    ) -> None:
        """Put a batch into the line; ``appended`` gets its end offset, or ``refused`` an error.

        The line owns the list from now on. ``placed`` is filled as by an append.
        """
        size = sum(len(message[1]) for message in messages)
        error = None
        if self._bytes + size > LINE_BYTES_MAX:
            error = StoreFullError("too much waits for the next CommitLog file")
            messages, size = [], 0
        self._bytes += size
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        self._batches.append(
            _Batch(
                messages, placed, store_timestamp_ms, size, deadline_ms, error, appended, refused
            )
        )
        self._wanted.set()

    def go_on(self) -> None:
        """Append the batches that can be appended, and refuse those whose time is over."""
        while self._batches:
            batch = self._batches[0]
            end_offset, error = 0, batch.error
            if error is None:
                try:
                    end_offset = self._append(
                        batch.messages,
                        batch.placed,
                        store_timestamp_ms=batch.store_timestamp_ms,
                    )
                except NextFileError:
                    if self._clock.monotonic_ms() < batch.deadline_ms:
                        return
                    error = NextFileError(
                        f"the next CommitLog file was not there within {self._timeout_ms} ms"
                    )
                except StoreError as exc:
                    error = exc
                except Exception:
                    # A failure of one batch must not end the task that serves the others.
                    self._faults.fault("an append failed, a fault of this server; it is refused")
                    error = StoreError("the append failed, the broker's log says how")
            # Removed before anybody is told: the callee may append.
            self._batches.popleft()
            self._bytes -= batch.bytes
            with self._faults.boundary("answering an append failed, a fault of this server"):
                if error is None:
                    batch.appended(end_offset)
                else:
                    batch.refused(error)

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Append or refuse what waits until cancelled; ``after`` is called after each attempt."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._batches:
                self.go_on()
                after()
                if self._batches:
                    await trio.sleep(POLL_S)
