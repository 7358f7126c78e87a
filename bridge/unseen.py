"""The messages that a loop over a twin's pull consumer has fetched and not reached yet.

A twin crosses into trio's thread for each call. So its loop fetches many messages at a time and
hands them out one by one, while the consumer answers as if it had handed out only those.

Owns: LoopedPullConsumer, and Unseen, which keeps these messages. Must not touch: threads and loops
(``sync_base``, ``asyncio_base``). Unseen may be called from any thread.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from motelog.bridge.pull import PullConsumer
from motelog.bridge.selector import TAGS_ALL
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage


class LoopedPullConsumer(PullConsumer):
    """A PullConsumer that treats the messages in ``unseen`` as not handed out yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unseen = Unseen()

    async def fetch(self, *, timeout_s: float = math.inf, count_max: int = 512) -> None:
        """Return when ``unseen`` has messages, fetched or left, or after ``timeout_s``."""
        if not self.unseen or count_max < 1:  # ``poll_batches`` refuses the latter
            batches = await self.poll_batches(timeout_s=timeout_s, count_max=count_max)
            self.unseen.add(batches)

    def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        self._seek_all(self.unseen.drop())
        super().assign(queues, tags=tags, sql=sql)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        self.unseen.drop((queue,))
        super().seek(queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        chosen = None if queues is None else tuple(queues)
        self.unseen.drop(chosen)
        super().seek_to_begin(chosen)

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        chosen = None if queues is None else tuple(queues)
        self.unseen.drop(chosen)
        super().seek_to_end(chosen)

    def position(self, queue: MessageQueue) -> int | None:
        position = super().position(queue)
        return self.unseen.first_offsets().get(queue, position)

    async def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        left = self.unseen.take(count_max)
        return left or await super().poll(timeout_s=timeout_s, count_max=count_max)

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        if offsets is None:
            offsets = await self.uncommitted(self.unseen.first_offsets(self.assigned))
        await super().commit(offsets, timeout_s=timeout_s)

    def _seek_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, queue_offset in offsets.items():
            if queue in self.assigned:
                super().seek(queue, queue_offset)


class Unseen:
    """Messages in the order in which they are yielded; those of a queue in order of offsets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[tuple[MessageQueue, StoredMessage]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, batches: Iterable[tuple[MessageQueue, list[StoredMessage]]]) -> None:
        with self._lock:
            for queue, messages in batches:
                self._messages.extend((queue, message) for message in messages)

    def pop(self) -> StoredMessage | None:
        """Return the next message, None if there is none."""
        with self._lock:
            return self._messages.popleft()[1] if self._messages else None

    def take(self, count_max: int) -> list[StoredMessage]:
        """Return the next messages."""
        with self._lock:
            count = min(count_max, len(self._messages))
            return [self._messages.popleft()[1] for _ in range(count)]

    def first_offsets(
        self, queues: Collection[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset of each queue's next message, of the given queues or all."""
        with self._lock:
            return {
                queue: message.queue_offset
                for queue, message in reversed(self._messages)
                if queues is None or queue in queues
            }

    def drop(self, queues: Collection[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        """Drop messages of the given queues, or all; return where each queue would continue."""
        first = self.first_offsets()
        with self._lock:
            kept = [one for one in self._messages if queues is not None and one[0] not in queues]
            self._messages = deque(kept)
        return {q: offset for q, offset in first.items() if queues is None or q in queues}
