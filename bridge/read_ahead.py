"""The state of one assigned queue in a pull consumer: messages read ahead and how far they went.

Owns: Reading, where to start. Must not touch: requests, routes, tasks. Of trio it uses only the
events and scopes by which bridge.pull's tasks wait for each other.
Invariants: ``position`` is the offset after the last message taken, or after the filtered ones that
follow it; never of a message that is only read ahead. There are at most BATCHES_AHEAD batches once
``room`` is unset.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio

from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import Selector
from motelog.core.message import MessageQueue, StoredMessage

BATCHES_AHEAD: Final = 2


class Start(Enum):
    """Where to begin, until the broker has said which offset that is."""

    COMMITTED = 1
    BEGIN = 2
    END = 3


@dataclass(slots=True)
class Batch:
    """Messages of one pull; ``next_offset`` follows the last one and all that were filtered out."""

    messages: list[StoredMessage]
    next_offset: int
    taken: int = 0


class Reading:
    """One assigned queue: its messages read ahead, and how far they have been handed out."""

    __slots__ = (
        "batches",
        "broker_id",
        "committed",
        "failure",
        "is_checked",
        "next_offset",
        "position",
        "queue",
        "room",
        "route_at",
        "scope",
        "selector",
    )

    def __init__(self, queue: MessageQueue, start: Start | int, selector: Selector) -> None:
        self.queue = queue
        self.selector = selector
        self.next_offset = start
        self.position = start if isinstance(start, int) else None
        self.committed: int | None = None
        self.batches: deque[Batch] = deque()
        self.room = trio.Event()
        self.room.set()
        self.scope = trio.CancelScope()
        # The broker is asked once. A broker without filters answers a pull with a code that would
        # be tried again.
        self.is_checked = not selector.is_sql
        self.failure: Exception | None = None
        self.broker_id = MASTER_ID
        self.route_at: float | None = None  # routes from before this time are not trusted

    def begin_at(self, queue_offset: int) -> None:
        self.next_offset = self.position = queue_offset

    def add(self, messages: list[StoredMessage], next_offset: int) -> None:
        self.next_offset = next_offset
        if messages:
            self.batches.append(Batch(messages, next_offset))
        elif self.batches:
            self.batches[-1].next_offset = next_offset
        else:
            self.position = next_offset
        if len(self.batches) >= BATCHES_AHEAD:
            self.room = trio.Event()

    def take(self, count_max: int) -> list[StoredMessage]:
        if not self.batches:
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
