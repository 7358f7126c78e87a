"""Reads of the log that may wait, for readers at individual offsets.

Owns: what the log returned for a read that is tried again, which reads wait for the log now.
Must not touch: cursors, records.
Invariant: a reader has at most one read of a queue, and what the log returned for it is passed
only to the next attempt at the same offset.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle, Waiting

Reader = TypeVar("Reader", bound=Hashable)


class _Attempt:
    """A read whose records have to be fetched first."""

    __slots__ = ("is_waiting", "queue_offset", "waited")

    def __init__(self, queue_offset: int, waited: Waiting) -> None:
        self.queue_offset = queue_offset
        self.waited = waited
        self.is_waiting = False


class Reads(Generic[Reader]):
    """The reads of one kind of reader; ``read_again`` is called with a reader that may retry."""

    def __init__(self, log: LogPort, *, read_again: Callable[[Reader], None]) -> None:
        self._log_port = log
        self._read_again = read_again
        self._attempts: dict[Reader, dict[QueueHandle, _Attempt]] = {}

    def read(
        self,
        reader: Reader,
        queue: QueueHandle,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
    ) -> LogRead | None:
        """Read, or return None if the records have to be fetched: ``read_again`` is called later.

        It is called at once if too many reads wait for the log.
        """
        last = self._attempts.get(reader, {}).get(queue)
        waited: Waiting | None = None
        if last is not None:
            if last.is_waiting:
                return None
            if last.queue_offset == queue_offset:
                waited = last.waited
            self._drop(reader, queue)
        read = self._log_port.read(
            queue,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            waited=waited,
        )
        if isinstance(read, LogRead):
            return read
        attempt = _Attempt(queue_offset, read)
        self._attempts.setdefault(reader, {})[queue] = attempt
        at_hand = partial(self._at_hand, reader, queue, attempt)
        attempt.is_waiting = self._log_port.when_at_hand(read, at_hand)
        if not attempt.is_waiting:
            self._read_again(reader)
        return None

    def forget(self, reader: Reader) -> None:
        """Forget the reads of ``reader``, which no longer reads."""
        self._attempts.pop(reader, None)

    def _at_hand(self, reader: Reader, queue: QueueHandle, attempt: _Attempt) -> None:
        attempt.is_waiting = False
        if self._attempts.get(reader, {}).get(queue) is attempt:
            self._read_again(reader)

    def _drop(self, reader: Reader, queue: QueueHandle) -> None:
        attempts = self._attempts[reader]
        del attempts[queue]
        if not attempts:
            del self._attempts[reader]
