"""The state of one queue of a push consumer: messages not yet handled, the offset to commit.

Owns: ProcessQueue, Ready, Batch, the limits. Must not touch: requests, tasks, the user's function.
Invariants: ``offset`` is that of the first message that is neither handled nor sent back (for a
retry, as a dead letter), or the one after the last message read. So committing it loses nothing.
Spec: RocketMQ ProcessQueue.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio

from motelog.bridge.reader import Reading, Start
from motelog.bridge.selector import Selector
from motelog.core.flag import Flag
from motelog.core.message import RETRY_TOPIC, MessageQueue
from motelog.core.records.decode import StoredMessage, body_bytes
from motelog.core.topic_names import RETRY_PREFIX

# A member stops relying on its lock after this; the broker keeps the lock twice as long.
LOCK_EXPIRES_S: Final = 30.0
PULL_EXPIRES_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a queue may be read ahead. Above one of these limits it is not pulled."""

    count_max: int = 1000
    bytes_max: int = 100 * 1024 * 1024
    #: Between the first and last offset; not for orderly consumers, which have no gaps.
    span_max: int = 2000


class Batch:
    """Messages of one queue that a worker handles; the first ``done`` of them are finished.

    ``failed`` are those for which the user's function raised. ``is_cut`` makes the worker leave the
    rest after the current message. ``is_given_up`` says that the worker's result is ignored,
    because the consume timeout or the time to stop has passed. A worker's thread writes it while
    others read: a message joins ``failed`` before it counts as done.
    """

    __slots__ = (
        "begun_at",
        "done",
        "each_s",
        "failed",
        "is_cut",
        "is_given_up",
        "messages",
        "moved_at",
        "process_queue",
        "seen_done",
    )

    def __init__(self, process_queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        self.process_queue = process_queue
        self.messages = messages
        self.done = 0
        #: Time per message in the fastest part of the batch.
        self.each_s = math.inf
        self.failed: list[StoredMessage] = []
        self.is_cut = False
        self.is_given_up = False
        self.begun_at = time.monotonic()  # threads cannot use trio's clock
        #: When a message was last seen to be finished, and the number finished by then.
        self.moved_at = self.begun_at
        self.seen_done = 0

    @property
    def offset(self) -> int:
        """The offset of the first message that does not count as handled, or after the last."""
        if self.failed:
            return self.failed[0].queue_offset
        if self.done < len(self.messages):
            return self.messages[self.done].queue_offset
        return self.messages[-1].queue_offset + 1

    def rewind(self) -> None:
        """Count as not finished: failed messages that were not sent back, and those after them."""
        if self.failed:
            self.done = min(self.done, self.messages.index(self.failed[0]))
            self.failed = []


class Ready:
    """Messages that wait for handling, in the order of their offsets.

    They stay in the lists in which they arrived, so that taking many is as fast as taking one.
    """

    __slots__ = ("_begin", "_lists", "count")

    def __init__(self) -> None:
        self._lists: deque[list[StoredMessage]] = deque()
        self._begin = 0  # index in the first list; earlier ones are taken
        self.count = 0

    def __iter__(self) -> Iterator[StoredMessage]:
        for number, some in enumerate(self._lists):
            yield from some if number else some[self._begin :]

    @property
    def first_offset(self) -> int:
        """The offset of the first message; there must be one."""
        return self._lists[0][self._begin].queue_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last message; there must be one."""
        return self._lists[-1][-1].queue_offset

    def add(self, messages: list[StoredMessage]) -> None:
        """Append messages that follow the present ones."""
        if messages:
            self._lists.append(messages)
            self.count += len(messages)

    def take(self, count_max: int) -> list[StoredMessage]:
        """Remove and return the first messages; there must be at least one."""
        taken: list[StoredMessage] = []
        while self._lists and len(taken) < count_max:
            some = self._lists[0]
            end = self._begin + count_max - len(taken)
            if end < len(some):
                part = some[self._begin : end]
                self._begin = end
            else:
                part = some[self._begin :] if self._begin else some
                self._lists.popleft()
                self._begin = 0
            taken = taken + part if taken else part
        self.count -= len(taken)
        return taken

    def put_back(self, messages: list[StoredMessage]) -> None:
        """Put messages that were taken, at least one, back in their place."""
        if not self.count or messages[-1].queue_offset < self.first_offset:
            if self._begin:
                self._lists[0] = self._lists[0][self._begin :]
            self._lists.appendleft(messages)
        else:
            together = sorted([*messages, *self], key=lambda message: message.queue_offset)
            self._lists = deque([together])
        self._begin = 0
        self.count += len(messages)

    def clear(self) -> list[StoredMessage]:
        """Remove and return all messages."""
        return self.take(self.count)


class ProcessQueue(Reading):
    """One queue of this member, from the rebalance that assigns it to the one that removes it."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_idle",
        "_limits",
        "_ready",
        "consumed_at",
        "count",
        "is_dropped",
        "is_in_turn",
        "locked_at",
        "suspended_until",
        "taken_at",
    )

    def __init__(
        self, queue: MessageQueue, start: Start | int, selector: Selector, limits: Limits
    ) -> None:
        super().__init__(queue, start, selector)
        self.is_dropped = False
        #: Whether it is in the list of queues from which workers take.
        self.is_in_turn = False
        self.taken_at = self.consumed_at = trio.current_time()
        #: For orderly consumers: when the broker last confirmed the lock; None if it is not held.
        self.locked_at: float | None = None
        #: For orderly consumers: until when a refused message waits.
        self.suspended_until = 0.0
        self._limits = limits
        self._ready = Ready()
        self._batches: set[Batch] = set()
        self.count = 0
        self._bytes = 0
        self._idle = Flag()
        self._idle.set()

    @property
    def offset(self) -> int | None:
        """The offset to commit; None until the start is known."""
        if isinstance(self.next_offset, Start):
            return None
        first = self._ready.first_offset if self._ready.count else self.next_offset
        return min([first, *(batch.offset for batch in self._batches)])

    @property
    def ready_count(self) -> int:
        return self._ready.count

    @property
    def in_work(self) -> list[Batch]:
        return list(self._batches)

    @property
    def is_idle(self) -> bool:
        return not self._batches

    def is_locked(self) -> bool:
        """Whether the lock is held and can be relied on."""
        return self.locked_at is not None and trio.current_time() - self.locked_at <= LOCK_EXPIRES_S

    def is_pull_expired(self) -> bool:
        """Whether, despite room, no pull was sent for so long that something must be stuck."""
        return self.room.is_set() and trio.current_time() - self.pulled_at > PULL_EXPIRES_S

    def add(self, messages: list[StoredMessage], next_offset: int) -> None:
        if self.queue.topic.startswith(RETRY_PREFIX):
            # Shown with the topic to which they were sent.
            messages = [
                message.replace(topic=message.properties.get(RETRY_TOPIC, message.topic))
                for message in messages
            ]
        self._ready.add(messages)
        self.next_offset = next_offset
        self._count(messages, 1)

    def move_to(self, next_offset: int) -> None:
        """Continue elsewhere. If the broker lost its end, the present messages are sent again."""
        assert not isinstance(self.next_offset, Start)
        if next_offset < self.next_offset:
            self._count(self._ready.clear(), -1)
        self.next_offset = next_offset
        self.committed = None  # the broker has another one now

    def take(self, count_max: int) -> Batch:
        """Take the first messages that are ready as a batch; there must be at least one."""
        batch = Batch(self, self._ready.take(count_max))
        self._batches.add(batch)
        self._idle.clear()
        return batch

    def put_back(self, batch: Batch) -> None:
        """End a batch: its unfinished messages will be taken again first."""
        if batch in self._batches:
            self._batches.remove(batch)
            over = batch.messages
            if batch.done < len(over):
                self._ready.put_back(over[batch.done :])
                over = over[: batch.done]
            self._end(over)

    def keep_failed(self, batch: Batch) -> None:
        """Reduce a batch to its failed and its unfinished messages."""
        failed = {message.queue_offset for message in batch.failed}
        done = batch.messages[: batch.done]
        over = [message for message in done if message.queue_offset not in failed]
        batch.messages = [*map(again, batch.failed), *batch.messages[batch.done :]]
        batch.done, batch.failed = 0, []
        self._count(over, -1)

    def drop(self) -> None:
        """Give the queue up: stop reading, and let no more messages be taken."""
        self.is_dropped = True
        self.scope.cancel()
        for batch in self._batches:
            batch.is_cut = True
        if self._ready.count:
            # The offset stays at the first of them.
            self.next_offset = self._ready.first_offset
            self._count(self._ready.clear(), -1)

    async def wait_idle(self) -> None:
        """Return when no message is in work."""
        await self._idle.wait()

    def figures(self) -> dict[str, int]:
        """Return what mqadmin shows of the present messages (ProcessQueueInfo)."""
        first, last = self._bounds()
        return {
            "cachedMsgMinOffset": first,
            "cachedMsgMaxOffset": last,
            "cachedMsgCount": self.count,
            "cachedMsgSizeInMiB": self._bytes >> 20,
        }

    def _count(self, messages: list[StoredMessage], sign: int) -> None:
        """Count messages that arrived or left, and let the reader continue or wait."""
        self.count += sign * len(messages)
        self._bytes += sign * body_bytes(messages)
        if not self._is_full():
            self.room.set()
        else:
            self.room.clear()

    def _end(self, over: list[StoredMessage]) -> None:
        self.consumed_at = trio.current_time()
        self._count(over, -1)
        if not self._batches:
            self._idle.set()

    def _is_full(self) -> bool:
        limits = self._limits
        if self.count > limits.count_max or self._bytes > limits.bytes_max:
            return True
        first, last = self._bounds()
        return last - first > limits.span_max

    def _bounds(self) -> tuple[int, int]:
        """Return the first and last offset of the present messages, 0 if there are none."""
        if not self.count:
            return 0, 0
        begins = [batch.messages[0].queue_offset for batch in self._batches]
        ends = [batch.messages[-1].queue_offset for batch in self._batches]
        if self._ready.count:
            begins.append(self._ready.first_offset)
            ends.append(self._ready.last_offset)
        return min(begins), max(ends)

    def _check(self) -> None:
        """Assert the invariants that hold between calls."""
        here = [message for batch in self._batches for message in batch.messages]
        here += self._ready
        ready = [message.queue_offset for message in self._ready]
        assert ready == sorted(ready)
        assert self._ready.count == len(ready)
        assert self.count == len(here)
        assert self._bytes == sum(len(message.body) for message in here)
        assert self.room.is_set() != self._is_full()
        assert self._idle.is_set() == (not self._batches)


def again(message: StoredMessage) -> StoredMessage:
    """Return the message as delivered after one more failure."""
    return message.replace(reconsume_times=message.reconsume_times + 1)
