"""The state of one queue of a pull consumer: messages read ahead, and its position.

Owns: ReadAhead. Must not touch: requests, routes, tasks. From trio it uses only the events and
scopes with which the tasks of bridge.reader and bridge.pull wait for each other.
Invariants: ``position`` is the offset after the last message taken, or after the filtered ones that
follow it; never of a message that is only read ahead. There are at most BATCHES_AHEAD batches once
``room`` is unset.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from motelog.bridge.reader import Reading, Start
from motelog.bridge.selector import Selector
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage

BATCHES_AHEAD: Final = 2
COMMIT_AGAIN_S: Final = 30.0


@dataclass(slots=True)
class Batch:
    """Messages of one pull; ``next_offset`` is after the last one and all filtered-out ones."""

    messages: list[StoredMessage]
    next_offset: int
    taken: int = 0


class ReadAhead(Reading):
    """One assigned queue: its messages read ahead, and its position."""

    __slots__ = (
        "batches",
        "committed_at",
        "failure",
        "is_paused",
        "position",
        "taken_over_at",
    )

    def __init__(self, queue: MessageQueue, start: Start | int, selector: Selector) -> None:
        super().__init__(queue, start, selector)
        self.position = start if isinstance(start, int) else None
        # When a broker confirmed the committed offset.
        self.committed_at = -math.inf
        self.batches: deque[Batch] = deque()
        self.failure: Exception | None = None
        # When the queue moved to this member, perhaps from another one.
        self.taken_over_at = -math.inf
        self.is_paused = False

    def is_uncommitted(self, now: float) -> bool:
        """Whether the position is not known to be stored at the broker.

        A killed broker may lose what it confirmed, so a confirmation counts only for a while.
        """
        if self.position is None:
            return False
        return self.position != self.committed or now >= self.committed_at + COMMIT_AGAIN_S

    def begin_at(self, queue_offset: int) -> None:
        self.next_offset = self.position = queue_offset

    def add(self, messages: list[StoredMessage], next_offset: int) -> None:
        if messages:
            self.batches.append(Batch(messages, next_offset))
        elif self.batches:
            self.batches[-1].next_offset = next_offset
        else:
            self.position = next_offset
        self.next_offset = next_offset
        if len(self.batches) >= BATCHES_AHEAD:
            self.room.clear()

    def move_to(self, next_offset: int) -> None:
        super().move_to(next_offset)
        # The stored offset does not exist at the broker, so a lower one is intended.
        self.committed, self.taken_over_at = None, -math.inf

    def take(self, count_max: int) -> list[StoredMessage]:
        if not self.batches or self.is_paused:
            return []
        batch = self.batches[0]
        messages = batch.messages[batch.taken : batch.taken + count_max]
        batch.taken += len(messages)
        if batch.taken < len(batch.messages):
            self.position = messages[-1].queue_offset + 1
        else:
            self.batches.popleft()
            self.position = batch.next_offset
            self.room.set()
        return messages
