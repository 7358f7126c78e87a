"""How far the log may be read: one bound for all readers, and the followers that wake them.

Owns: Readable: the bound as a physical offset and as a queue offset, the followers, the queues with
records above the bound. Must not touch: records, files.

                       readable.offset      the log's end
    ----- may be read -----|---- hidden ----|

Without a limit the bound is the log's end, and asking costs one comparison. A limit is for a log
whose end may have to be taken back: a message that a reader has seen must not go away. A limit lies
where a record begins or ends.
Invariants: hidden records alone wake nobody. Followers hear of a queue whenever it has more that
may be read and they wait for anything: an append costs those that wait for nothing no call.
Concurrency: the thread of the trio run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from motelog.core.errors import StoreError
from motelog.core.records.append import QueueTail
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.queues.consume_queue import ConsumeQueue

NO_LIMIT: Final = (1 << 63) - 1
#: What somebody waits for who is always told.
ALWAYS: Final = (True,)

Follower: TypeAlias = Callable[[list[QueueTail]], None]


class Readable:
    """The end of what readers see of one open store."""

    def __init__(self, log: CommitLog, queues: Mapping[tuple[str, int], ConsumeQueue]) -> None:
        self._log = log
        self._queues = queues
        self._limit = NO_LIMIT
        self._followers: list[tuple[Collection[object], Follower]] = []
        # Queues that have got messages since ``take_grown``.
        self._grown: set[QueueTail] = set()
        # Queues with records above the limit, and an offset in or just behind the last of these.
        self._hidden: dict[QueueTail, int] = {}
        # For queues asked about while there is a limit: the limit then, and their end below it.
        self._ends: dict[QueueTail, tuple[int, int]] = {}

    @property
    def offset(self) -> int:
        """Every record that begins below this physical offset may be read, and no other."""
        return min(self._limit, self._log.end_offset)

    def max_offset(self, queue: ConsumeQueue) -> int:
        """Return the queue offset behind the last readable message of a queue.

        StoreError if its units cannot be read.
        """
        if self._limit >= self._log.end_offset:
            return queue.max_offset
        limit, end = self._ends.get(queue.tail, (-1, queue.max_offset))
        if limit != self._limit:
            try:
                end = queue.find_end(self._limit, end)
            except OSError as exc:
                raise StoreError(f"a ConsumeQueue file cannot be read: {exc}") from exc
            self._ends[queue.tail] = self._limit, end
        return end

    def set_limit(self, physical_offset: int) -> None:
        """Let records that begin below ``physical_offset`` be read, and tell the followers."""
        before = self.offset
        self._limit = physical_offset
        if physical_offset < before:
            # Since nobody was to be told of these, they were not noted.
            for queue in self._queues.values():
                if self.max_offset(queue) < queue.max_offset:
                    # The limit lies beside the last record and never in it.
                    self._hidden[queue.tail] = queue.unit(queue.max_offset - 1)[0] + 1
            return
        grown = list(self._hidden)
        self._hidden = {t: end for t, end in self._hidden.items() if end > physical_offset}
        if physical_offset >= self._log.end_offset:
            self._ends.clear()
        if grown and self.offset > before:
            self._tell(grown)

    def appended(self, tails: list[QueueTail], begin: int, end: int) -> None:
        """Note that queues got records in [begin, end) of the log; tell followers if readable."""
        if end > self._limit:
            self._hidden.update(dict.fromkeys(tails, end))
        if begin < self._limit:
            self._tell(tails)

    def follow(self, follower: Follower, waits: Collection[object] = ALWAYS) -> None:
        """Call ``follower`` with queues that have more to read, while ``waits`` holds anything.

        It must not append.
        """
        self._followers.append((waits, follower))

    def unfollow(self, follower: Follower) -> None:
        """Call ``follower`` no more."""
        self._followers = [one for one in self._followers if one[1] != follower]

    def take_grown(self) -> set[QueueTail]:
        """Return the queues that have had more to read since the last call."""
        grown, self._grown = self._grown, set()
        return grown

    def _tell(self, tails: list[QueueTail]) -> None:
        self._grown.update(tails)
        for waits, follower in self._followers:
            if waits:
                follower(tails)

    def _check(self) -> None:
        """Assert the invariants."""
        for queue in self._queues.values():
            end = self.max_offset(queue)
            assert end <= queue.max_offset
            assert (queue.tail in self._hidden) == (end < queue.max_offset)
