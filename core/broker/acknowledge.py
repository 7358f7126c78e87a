"""Acknowledging appends: the rule that allows it, and the answers that wait for it.

Owns: the rule (Acknowledge and its policies); AnswerQueue, the answers by end offset in the order
of the log, and how long they may wait. Must not touch: an answer's bytes, connections, the disk.

    policy        acknowledged_offset
    Appended      the end of the log                       (flush = "async")
    Durable       the end on the disk                      (flush = "sync")
    Copied        the lesser of one of these and of what a slave has   (replicate = "sync")

    append -> may_answer? -> yes: answered at once, nothing is queued
                          -> no: add -> want, once for all turns in a row
                                     -> the offset has grown: answered
                                     -> failure or timeout: refused, with the reason

Invariants: an answer is given once; a refused one is never acknowledged later. Answers leave in
the order in which they came. The clock is an argument; only ``run`` waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Generic, Protocol, TypeVar

import trio

from motelog.core.broker.replication.master import Master
from motelog.core.clock import Clock
from motelog.core.errors import (
    FlushTimeoutError,
    NoSlaveError,
    SlaveTimeoutError,
    StoredError,
    StoreError,
    StoreFencedError,
)
from motelog.core.lasting import run_again
from motelog.core.store.message_store import MessageStore

logger = logging.getLogger(__name__)

Answers = TypeVar("Answers")

_EVERYTHING: Final = (1 << 63) - 1


class Acknowledge(Protocol):
    """How far a log may be acknowledged; there is one policy for each promise of a log."""

    @property
    def timeout_ms(self) -> int:
        """Return how long an answer waits for ``acknowledged_offset`` before it is refused."""
        ...

    @property
    def acknowledged_offset(self) -> int:
        """Return the offset below which everything may be acknowledged."""
        ...

    @property
    def failure(self) -> StoreError | None:
        """Return why ``acknowledged_offset`` will not grow any more; None without a failure."""
        ...

    @property
    def failed_offset(self) -> int:
        """Return the offset up to which answers are refused because of ``failure``."""
        ...

    def lateness(self, end_offset: int) -> StoredError:
        """Return why an append that ends at ``end_offset`` is not acknowledged in time."""
        ...

    @property
    def listeners(self) -> list[Callable[[], None]]:
        """Called when ``acknowledged_offset`` has grown, and when ``failure`` is set.

        The task that flushes calls them: a listener must not append.
        """
        ...

    def want(self, end_offset: int) -> None:
        """Start the work that lets everything below ``end_offset`` be acknowledged."""
        ...


class Appended:
    """A record may be acknowledged as soon as it is in the log."""

    failed_offset = _EVERYTHING

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.timeout_ms = store.config.flush_timeout_ms
        self.listeners: list[Callable[[], None]] = []

    @property
    def acknowledged_offset(self) -> int:
        return self._store.end_offset

    @property
    def failure(self) -> StoreError | None:
        return _fence(self._store)

    def lateness(self, end_offset: int) -> StoredError:
        return _late_on_disk(self.timeout_ms)

    def want(self, end_offset: int) -> None:
        """Do nothing: appended records may be acknowledged."""


class Durable:
    """A record may be acknowledged when it is on the disk."""

    failed_offset = _EVERYTHING

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.timeout_ms = store.config.flush_timeout_ms
        self.listeners = store.on_durable
        self.want = store.want_durable

    @property
    def acknowledged_offset(self) -> int:
        return self._store.durable_offset

    @property
    def failure(self) -> StoreError | None:
        return _fence(self._store)

    def lateness(self, end_offset: int) -> StoredError:
        return _late_on_disk(self.timeout_ms)


class Copied:
    """A record may be acknowledged when ``here`` allows it and a slave has it.

    Without a slave near enough it is refused as soon as ``here`` allows it: with NoSlaveError, a
    warning, if messages ``may_be_alone``, otherwise as one that has come too late.
    """

    def __init__(
        self, here: Acknowledge, copies: Master, *, timeout_ms: int, may_be_alone: bool
    ) -> None:
        self._may_be_alone = may_be_alone
        self._here = here
        self._copies = copies
        self.timeout_ms = max(timeout_ms, here.timeout_ms if isinstance(here, Durable) else 0)
        self.listeners: list[Callable[[], None]] = []
        here.listeners.append(self._tell)
        copies.listeners.append(self._tell)

    @property
    def acknowledged_offset(self) -> int:
        return min(self._here.acknowledged_offset, self._copies.confirmed_offset)

    @property
    def failure(self) -> StoreError | None:
        fence = self._here.failure
        if fence is not None or self._copies.is_followed:
            return fence
        text = "stored, but no slave is there, or all are far behind"
        return NoSlaveError(text) if self._may_be_alone else SlaveTimeoutError(text)

    @property
    def failed_offset(self) -> int:
        here = self._here
        return here.failed_offset if here.failure is not None else here.acknowledged_offset

    def lateness(self, end_offset: int) -> StoredError:
        if self._here.acknowledged_offset < end_offset:
            return self._here.lateness(end_offset)
        return SlaveTimeoutError(
            f"stored, but at no slave within {self.timeout_ms} ms: it may be there later"
        )

    def want(self, end_offset: int) -> None:
        self._here.want(end_offset)
        if not self._copies.is_followed:
            self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()


def policy_of(store: MessageStore) -> Acknowledge:
    """Return the policy of the store's configuration, without copies."""
    return Durable(store) if store.config.flush == "sync" else Appended(store)


def _late_on_disk(timeout_ms: int) -> FlushTimeoutError:
    return FlushTimeoutError(
        f"stored, but not on the disk within {timeout_ms} ms: it may be there later"
    )


def _fence(store: MessageStore) -> StoreError | None:
    return None if store.fence_reason is None else StoreFencedError(store.fence_reason)


def _send_nothing() -> None:
    """The ``send_queued`` of a queue without connections."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Answers]):
    """The answers to one append, whose records end at ``end_offset``."""

    end_offset: int
    deadline_ms: int
    answers: Answers


class AnswerQueue(Generic[Answers]):
    """Answers that wait until they may be given; the caller chooses the type of one's answers.

    ``answer`` gets all answers that one growth has released, ``refuse`` all that share a reason.
    A broker's callbacks then call ``send_queued``, an argument of ``run``.
    """

    def __init__(
        self,
        acknowledge: Acknowledge,
        *,
        clock: Clock,
        answer: Callable[[list[Answers]], None],
        refuse: Callable[[list[Answers], StoreError], None],
    ) -> None:
        self._acknowledge = acknowledge
        self._clock = clock
        self._answer = answer
        self._refuse = refuse
        self._entries: deque[_Entry[Answers]] = deque()
        #: Sends the output that connections have queued.
        self.send_queued: Callable[[], None] = _send_nothing
        # Appends whose answers timed out since the log last kept up.
        self._late_count = 0
        acknowledge.listeners.append(self.release)

    def may_answer(self, end_offset: int) -> bool:
        """Return whether an append that ends at ``end_offset`` may be answered at once.

        It must not overtake waiting answers.
        """
        return not self._entries and self._acknowledge.acknowledged_offset >= end_offset

    def add(self, end_offset: int, answers: Answers) -> None:
        """Queue the answers to the append that ended at ``end_offset``."""
        deadline_ms = self._clock.monotonic_ms() + self._acknowledge.timeout_ms
        self._entries.append(_Entry(end_offset, deadline_ms, answers))

    @property
    def is_waiting(self) -> bool:
        """Whether any answer waits."""
        return bool(self._entries)

    def add_behind(self, answers: Answers) -> None:
        """Queue answers that do not wait for the log, after the last waiting ones."""
        last = self._entries[-1]
        self._entries.append(_Entry(last.end_offset, last.deadline_ms, answers))

    def want(self) -> None:
        """Start the work that lets all waiting answers be given.

        Not called for each append: one sync serves all turns that a reactor takes in a row.
        """
        if self._entries:
            self._acknowledge.want(self._entries[-1].end_offset)

    def release(self) -> None:
        """Give all answers that may be given now; after a failure, refuse the others."""
        entries = self._entries
        if not entries:
            return
        failure = self._acknowledge.failure
        acknowledged_offset = self._acknowledge.acknowledged_offset
        # Entries leave the queue before the callbacks, which may cause the next call of this.
        released = []
        while entries and entries[0].end_offset <= acknowledged_offset:
            released.append(entries.popleft().answers)
        refused = []
        if failure is not None:
            failed_offset = self._acknowledge.failed_offset
            while entries and entries[0].end_offset <= failed_offset:
                refused.append(entries.popleft().answers)
        if released:
            if self._late_count:
                logger.warning("answers are in time again appends_too_late=%d", self._late_count)
                self._late_count = 0
            self._answer(released)
        if failure is not None and refused:
            self._refuse(refused, failure)

    def expire(self) -> int:
        """Refuse the answers whose time is over; return after how many ms to call this again."""
        entries, now_ms = self._entries, self._clock.monotonic_ms()
        refused = []
        end_offset = 0
        while entries and entries[0].deadline_ms <= now_ms:
            entry = entries.popleft()
            refused.append(entry.answers)
            end_offset = entry.end_offset
        timeout_ms = self._acknowledge.timeout_ms
        if refused:
            error = self._acknowledge.lateness(end_offset)
            if not self._late_count:
                logger.warning(
                    "sends are refused because of a slow disk or slave, and clients may send stored"
                    " messages again acknowledged_offset=%d error=%s",
                    self._acknowledge.acknowledged_offset, error,
                )  # fmt: skip
            self._late_count += len(refused)
            self._refuse(refused, error)
        # An answer that comes now waits for the whole timeout.
        return entries[0].deadline_ms - now_ms if entries else timeout_ms

    async def run(
        self,
        send_queued: Callable[[], None] = _send_nothing,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Refuse the answers whose time is over, until cancelled; then forget the waiting ones."""
        self.send_queued = send_queued
        task_status.started()
        try:
            await run_again(self._expire_in_time)
        finally:
            self.close()

    async def _expire_in_time(self) -> None:
        while True:
            pause_ms = self.expire()
            await trio.sleep(pause_ms / 1000)

    def close(self) -> None:
        """Forget all waiting answers and stop listening: the connections are about to end."""
        self._entries.clear()
        if self.release in self._acknowledge.listeners:
            self._acknowledge.listeners.remove(self.release)

    def _check(self) -> None:
        """Assert the invariants."""
        for entry, following in pairwise(self._entries):
            assert entry.end_offset <= following.end_offset
            assert entry.deadline_ms <= following.deadline_ms
