"""Messages that a loop over a consumer has fetched but not yet yielded.

Owns: these messages, which are fetched in batches and yielded one by one. Must not touch: the
consumer; its owner passes it the unseen offsets before a commit. Any thread may call it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable

from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage


class Unseen:
    """Messages in the order in which they are yielded; those of a queue in order of offsets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[tuple[MessageQueue, StoredMessage]] = deque()

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
