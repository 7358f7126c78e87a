"""The messages that consumers have popped and not acknowledged, by the pop that delivered them.

Owns: Checkpoint, Checkpoints: which messages are in work and until when, how many, how far each
revive queue is finished. Must not touch: the store, records (records); time is an argument.
Spec: RocketMQ PopCheckPoint, PopReviveService.

    pop -> checkpoint -> all acknowledged               -> settled
                      -> some not when its time is over -> due, revived -> settled

Each checkpoint is a record of a revive queue. A restart need not read the records before the oldest
one that is not settled. A checkpoint that is in work for long holds that place back; ``stale``
returns those that should be written again at the queue's end, beginning with those that another
broker kept elsewhere (``adopt``).

Invariants: a settled checkpoint is not in any index; the counts are those of the open messages.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from motelog.core.broker.tables.order_info import QueueKey

#: topic, group, queue id, first offset of the pop, time of the pop
Key: TypeAlias = tuple[str, str, int, int, int]

STALE_RECORDS: Final = 100_000


class Checkpoint:
    """The messages of one queue that one pop delivered, at ``offsets``."""

    __slots__ = (
        "begin_offset",
        "group",
        "invisible_ms",
        "is_again",
        "is_settled",
        "offsets",
        "open",
        "pop_time_ms",
        "queue_id",
        "revive_offset",
        "revive_queue",
        "topic",
    )

    def __init__(
        self,
        queue: QueueKey,
        begin_offset: int,
        offsets: tuple[int, ...],
        *,
        pop_time_ms: int,
        invisible_ms: int,
        revive_queue: int,
        is_again: bool = False,
    ) -> None:
        self.topic, self.group, self.queue_id = queue
        self.begin_offset = begin_offset
        self.offsets = offsets
        # The offsets that are not acknowledged.
        self.open = set(offsets)
        self.pop_time_ms = pop_time_ms
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        # The offset of its record in the revive queue, once it is there.
        self.revive_offset = -1
        # Its message was popped before: it does not show the group's progress.
        self.is_again = is_again
        self.is_settled = False

    @property
    def key(self) -> Key:
        return self.topic, self.group, self.queue_id, self.begin_offset, self.pop_time_ms

    @property
    def queue_key(self) -> QueueKey:
        return self.topic, self.group, self.queue_id

    @property
    def due_ms(self) -> int:
        """When its open messages are to be delivered again."""
        return self.pop_time_ms + self.invisible_ms


class Checkpoints:
    """All checkpoints of one broker that are not settled."""

    def __init__(self, *, revive_queues: int) -> None:
        self._by_key: dict[Key, Checkpoint] = {}
        self._due: list[tuple[int, int, Checkpoint]] = []
        self._entered = 0
        # By revive queue, in the order of their records; settled ones leave at the front.
        self._rows: list[deque[tuple[int, Checkpoint]]] = [deque() for _ in range(revive_queues)]
        # The last known record of each revive queue.
        self._last: list[int] = [-1] * revive_queues
        # Checkpoints whose record is missing in their revive queue, or is older than they are.
        self._adopted: dict[Key, Checkpoint] = {}
        self._open_by_queue: dict[QueueKey, int] = {}
        self._told: list[int] | None = None
        self.open_count = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._by_key.values())

    def get(self, key: Key) -> Checkpoint | None:
        return self._by_key.get(key)

    def open_in(self, queue: QueueKey) -> int:
        """Return how many messages of a queue a group has in work."""
        return self._open_by_queue.get(queue, 0)

    def free_time(self, topic: str, group: str, queues: Iterable[tuple[int, int]], ms: int) -> int:
        """Return the last time up to ``ms`` at which no checkpoint began at these places."""
        places = list(queues)
        while any((topic, group, *place, ms) in self._by_key for place in places):
            ms -= 1
        return ms

    def add(self, checkpoint: Checkpoint, revive_offset: int) -> None:
        """Add a checkpoint whose record is at ``revive_offset`` of its revive queue.

        It replaces one with the same key, which has been written again.
        """
        known = self._by_key.get(checkpoint.key)
        if known is not None:
            self.settle(known)
        self._enter(checkpoint)
        self.move(checkpoint, revive_offset)

    def adopt(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint that its revive queue does not have like this; ``stale`` returns it."""
        if checkpoint.key not in self._by_key:
            self._enter(checkpoint)
        self._adopted[checkpoint.key] = checkpoint

    @property
    def has_adopted(self) -> bool:
        """Return whether some adopted checkpoints are not written yet."""
        return bool(self._adopted)

    def _enter(self, checkpoint: Checkpoint) -> None:
        self._by_key[checkpoint.key] = checkpoint
        self._count(checkpoint, len(checkpoint.open))
        self._entered += 1
        heapq.heappush(self._due, (checkpoint.due_ms, self._entered, checkpoint))

    def move(self, checkpoint: Checkpoint, revive_offset: int) -> None:
        """Note that the record of a checkpoint was written (again) at ``revive_offset``."""
        checkpoint.revive_offset = revive_offset
        self._adopted.pop(checkpoint.key, None)
        self._rows[checkpoint.revive_queue].append((revive_offset, checkpoint))
        self.saw(checkpoint.revive_queue, revive_offset)

    def saw(self, revive_queue: int, revive_offset: int) -> None:
        """Note that a revive queue has a record at ``revive_offset``."""
        self._last[revive_queue] = max(self._last[revive_queue], revive_offset)

    def ack(self, checkpoint: Checkpoint, offsets: Iterable[int]) -> int:
        """Note messages as acknowledged; return how many of them were open."""
        before = len(checkpoint.open)
        checkpoint.open.difference_update(offsets)
        count = before - len(checkpoint.open)
        if not checkpoint.is_settled:
            self._count(checkpoint, -count)
            if not checkpoint.open:
                self.settle(checkpoint)
        return count

    def settle(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint."""
        if not checkpoint.is_settled:
            checkpoint.is_settled = True
            self._count(checkpoint, -len(checkpoint.open))
            del self._by_key[checkpoint.key]
            if checkpoint.revive_offset < 0:
                self._adopted.pop(checkpoint.key, None)

    def next_due_ms(self) -> int | None:
        """Return when the next checkpoint is due, None without any."""
        while self._due and self._due[0][2].is_settled:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now_ms: int, count_max: int) -> list[Checkpoint]:
        """Return checkpoints that are due, earliest first; ``put_off`` those that remain."""
        due: list[Checkpoint] = []
        while len(due) < count_max:
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                break
            due.append(heapq.heappop(self._due)[2])
        return due

    def put_off(self, checkpoint: Checkpoint, until_ms: int) -> None:
        """Make a checkpoint that was due become due again at ``until_ms``."""
        self._entered += 1
        heapq.heappush(self._due, (until_ms, self._entered, checkpoint))

    def stale(self, count_max: int) -> list[Checkpoint]:
        """Return checkpoints to be written (again).

        They were adopted, or keep a long part of their revive queue unfinished.
        """
        found = list(itertools.islice(self._adopted.values(), count_max))
        for queue, row in enumerate(self._rows):
            self._drop_settled(row)
            for revive_offset, checkpoint in row:
                is_young = self._last[queue] - revive_offset < STALE_RECORDS
                if is_young or len(found) >= count_max:
                    break
                if not checkpoint.is_settled and checkpoint.revive_offset == revive_offset:
                    found.append(checkpoint)
        return found

    def done_with(self) -> list[int]:
        """Return for each revive queue the last record that no restart needs; -1: none."""
        done = []
        for queue, row in enumerate(self._rows):
            self._drop_settled(row)
            done.append(row[0][0] - 1 if row else self._last[queue])
        return done

    def has_changed(self) -> bool:
        """Return whether ``done_with`` has changed since the last call."""
        before, self._told = self._told, self.done_with()
        return before != self._told

    @staticmethod
    def _drop_settled(row: deque[tuple[int, Checkpoint]]) -> None:
        while row and (row[0][1].is_settled or row[0][1].revive_offset != row[0][0]):
            row.popleft()

    def _count(self, checkpoint: Checkpoint, change: int) -> None:
        queue = checkpoint.queue_key
        count = self._open_by_queue.get(queue, 0) + change
        self.open_count += change
        if count:
            self._open_by_queue[queue] = count
        else:
            self._open_by_queue.pop(queue, None)

    def _check(self) -> None:
        """Assert the invariants of the module docstring."""
        by_queue: dict[QueueKey, int] = {}
        for key, checkpoint in self._by_key.items():
            assert key == checkpoint.key
            assert not checkpoint.is_settled
            assert checkpoint.open
            assert checkpoint.open <= set(checkpoint.offsets)
            if key not in self._adopted:
                row = self._rows[checkpoint.revive_queue]
                assert (checkpoint.revive_offset, checkpoint) in row
            queue = checkpoint.queue_key
            by_queue[queue] = by_queue.get(queue, 0) + len(checkpoint.open)
        assert by_queue == self._open_by_queue
        assert sum(by_queue.values()) == self.open_count
