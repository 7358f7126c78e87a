"""How far the log may be read: one bound for all readers, and which of them wake as it rises.

Owns: Readable: the bound as a physical offset and as a queue offset, the queues with records above
the bound; Growth: what one reader waits for, and which of it has grown. Must not touch: records,
files.

                       readable.offset      the log's end
    ----- may be read -----|---- hidden ----|

Without a limit the bound is the log's end, and asking costs one comparison. A limit is for a log
whose end may have to be taken back: a message that a reader has seen must not go away. A limit lies
where a record begins or ends.
An append calls no reader. It notes the queues that grew with those who wait for them, and wakes
each of these once until it has taken what was noted.
Invariants: hidden records alone do not wake a reader. A queue is noted whenever it has more
readable records and a reader waits for it.
Concurrency: the thread of the trio run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from motelog.core.errors import StoreError
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import QueueTail
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.queues.consume_queue import ConsumeQueue

_faults: Final = LimitedLog(logging.getLogger(__name__))

NO_LIMIT: Final = (1 << 63) - 1
#: What a reader of all queues waits for.
ALL_QUEUES: Final = (True,)


class Growth:
    """What one reader waits for, and which of these queues have grown since it last looked.

    ``waits`` is the reader's own and may change: topics, and queues as (topic, queue id), the
    topics as bytes.
    """

    __slots__ = ("queues", "waits", "wake")

    def __init__(self, waits: Collection[object], wake: Callable[[], None]) -> None:
        self.waits = waits
        self.wake = wake
        #: The queues that have grown, each once, in the order in which they did.
        self.queues: dict[QueueTail, None] = {}

    def take(self) -> list[QueueTail]:
        """Return the queues that have grown since the last call."""
        grown = list(self.queues)
        self.queues.clear()
        return grown


class Readable:
    """The end of what readers see of one open store."""

    def __init__(self, log: CommitLog, queues: Mapping[tuple[str, int], ConsumeQueue]) -> None:
        self._log = log
        self._queues = queues
        self._limit = NO_LIMIT
        self._followers: list[Growth] = []
        # Queues that have received messages since ``take_grown``.
        self._grown: set[QueueTail] = set()
        # Queues with records above the limit, and an offset in or just after the last of these.
        self._hidden: dict[QueueTail, int] = {}
        # For queues looked up while there is a limit: the limit then, and their end below it.
        self._ends: dict[QueueTail, tuple[int, int]] = {}

    @property
    def offset(self) -> int:
        """Every record that begins below this physical offset may be read, and no other."""
        return min(self._limit, self._log.end_offset)

    def max_offset(self, queue: ConsumeQueue) -> int:
        """Return the queue offset after the last readable message of a queue.

        StoreError if its units cannot be read.
        """
        if self._limit >= self._log.end_offset:
            return queue.tail.next_offset
        limit, end = self._ends.get(queue.tail, (-1, queue.max_offset))
        if limit != self._limit:
            try:
                end = queue.find_end(self._limit, end)
            except OSError as exc:
                raise StoreError(f"a ConsumeQueue file cannot be read: {exc}") from exc
            self._ends[queue.tail] = self._limit, end
        return end

    def set_limit(self, physical_offset: int) -> None:
        """Let records that begin below ``physical_offset`` be read, and wake their readers."""
        before = self.offset
        self._limit = physical_offset
        if physical_offset < before:
            # These were readable until now, so they were not noted.
            for queue in self._queues.values():
                if self.max_offset(queue) < queue.max_offset:
                    # The limit lies at an end of the last record, never inside it.
                    self._hidden[queue.tail] = queue.unit(queue.max_offset - 1)[0] + 1
            return
        grown = list(self._hidden)
        self._hidden = {t: end for t, end in self._hidden.items() if end > physical_offset}
        if physical_offset >= self._log.end_offset:
            self._ends.clear()
        if grown and self.offset > before:
            self.grew(grown, before, self.offset)

    def grew(self, tails: list[QueueTail], begin: int, end: int) -> None:
        """Note that queues have new records in [begin, end) of the log; wake their readers."""
        if end > self._limit:
            self._hidden.update(dict.fromkeys(tails, end))
        if begin >= self._limit:
            return
        self._grown.update(tails)
        for growth in self._followers:
            waits, queues = growth.waits, growth.queues
            if not waits:
                continue
            is_awake = bool(queues)
            for tail in tails:
                topic = tail.topic
                if waits is ALL_QUEUES or topic in waits or (topic, tail.queue_id) in waits:
                    queues[tail] = None
            if queues and not is_awake:
                try:
                    growth.wake()
                except Exception:  # the records are in the log all the same
                    _faults.fault("a reader could not be woken, a fault of this server")

    def follow(
        self, waits: Collection[object] = ALL_QUEUES, wake: Callable[[], None] = lambda: None
    ) -> Growth:
        """Return a Growth that notes the queues that grow while they are in ``waits``.

        ``wake`` is called within the append, when the first queue is noted: it sets an event.
        """
        growth = Growth(waits, wake)
        self._followers.append(growth)
        return growth

    def unfollow(self, growth: Growth) -> None:
        """Note nothing more in ``growth``."""
        self._followers.remove(growth)

    def take_grown(self) -> set[QueueTail]:
        """Return the queues that have had more to read since the last call."""
        grown, self._grown = self._grown, set()
        return grown

    def _check(self) -> None:
        """Assert the invariants."""
        for queue in self._queues.values():
            end = self.max_offset(queue)
            assert end <= queue.max_offset
            assert (queue.tail in self._hidden) == (end < queue.max_offset)
