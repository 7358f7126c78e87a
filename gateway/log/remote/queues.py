"""Queues of a remote log: the handles, and the records of each queue that are in memory.

Owns: RemoteQueue (the handle for reading), Place and DelayedPlace (for appends), Chunk (records of
one pull). Must not touch: requests, tasks, other queues.
Invariants: there is one RemoteQueue for each (topic, broker name, queue id), as long as the log
lives. A place leads to a queue once its topic is known, and may lead to another when the topic's
route has changed.

    chunks        [100, 164)   [164, 170)            gaps: not in memory
    pull_offset                          170         the follower's next pull
    unread        bytes of records that the follower has pulled and no reader has read
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

import trio

from motelog.core.flag import Flag
from motelog.core.message import MessageQueue
from motelog.core.records.decode import decode_values
from motelog.core.topic_names import GATEWAY_TOPICS

if TYPE_CHECKING:
    from motelog.gateway.log.remote.parts import Part


class Chunk:
    """Records of one pull: everything that ``queue`` has in [begin_offset, next_offset)."""

    __slots__ = ("_ends", "_offsets", "begin_offset", "next_offset", "queue", "records")

    def __init__(
        self, queue: RemoteQueue, begin_offset: int, next_offset: int, records: bytes
    ) -> None:
        self.queue = queue
        self.begin_offset = begin_offset
        self.next_offset = next_offset
        self.records = records
        # Offsets and ends of the records; found only when a reader wants a part of the chunk.
        self._offsets: list[int] = []
        self._ends: list[int] = []

    def read(self, queue_offset: int, count_max: int, bytes_max: int) -> tuple[bytes, int]:
        """Return records from ``queue_offset`` on, and the offset after them.

        The first record is returned whatever its size.
        """
        is_whole = queue_offset == self.begin_offset and len(self.records) <= bytes_max
        if is_whole and self.next_offset - queue_offset <= count_max:
            return self.records, self.next_offset
        if not self._offsets:
            values = decode_values(self.records, ())
            self._offsets = [queue_offset for queue_offset, _, _ in values]
            self._ends = list(accumulate(size for _, size, _ in values))
        first = bisect_left(self._offsets, queue_offset)
        if first == len(self._offsets):
            return b"", self.next_offset
        begin = self._ends[first - 1] if first else 0
        last = bisect_right(self._ends, begin + bytes_max, lo=first)
        last = max(first + 1, min(last, first + count_max))
        next_offset = self._offsets[last] if last < len(self._offsets) else self.next_offset
        return self.records[begin : self._ends[last - 1]], next_offset


class RemoteQueue:
    """One queue of one broker: the handle for reading, and what the port knows about it."""

    __slots__ = (
        "chunks",
        "end_offset",
        "follower",
        "is_sending",
        "least_tail",
        "lost_from",
        "name",
        "parts",
        "pull_offset",
        "room",
        "unread",
        "unread_bytes",
    )

    def __init__(self, name: MessageQueue) -> None:
        self.name = name
        #: Parts that wait to be sent, oldest first, and whether a task sends them.
        self.parts: deque[Part] = deque()
        self.is_sending = False
        #: Where the messages of the last send are that its broker has stored.
        self.least_tail = 0
        #: Records in memory, by their first offsets.
        self.chunks: list[Chunk] = []
        #: The queue's end when records were last fetched.
        self.end_offset = 0
        #: The task that pulls new records; everything below ``pull_offset`` has been pulled.
        self.follower: trio.CancelScope | None = None
        self.pull_offset = 0
        #: The end of the queue after its broker lost records, until a reader has been given it.
        self.lost_from: int | None = None
        #: (offset after it, bytes) of each chunk that was pulled and not read to its end.
        self.unread: deque[tuple[int, int]] = deque()
        self.unread_bytes = 0
        self.room = Flag()

    def __str__(self) -> str:
        name = self.name
        if name.topic in GATEWAY_TOPICS:
            # Only one queue of it is in use, which has the same name in every port.
            return f"{name.topic}/{name.queue_id}"
        return f"{name.topic}/{name.broker_name}/{name.queue_id}"

    def move_to(self, queue_offset: int) -> None:
        """Follow from an offset that the broker returned, after retention or a loss of its log."""
        if queue_offset < self.pull_offset:
            self.lost_from = queue_offset
        self.pull_offset = queue_offset

    def take_end(self, queue_offset: int) -> int:
        """Return where a reader at the end continues: there, or where records were lost.

        A reader may be ahead of the follower, if it has just requested the tail.
        """
        lost_from, self.lost_from = self.lost_from, None
        return queue_offset if lost_from is None else min(queue_offset, lost_from)

    def chunk_at(self, queue_offset: int) -> Chunk | None:
        """Return the chunk in memory that covers an offset, or None."""
        chunks = self.chunks
        position = bisect_right(chunks, queue_offset, key=_begin_offset)
        if position:
            chunk = chunks[position - 1]
            if queue_offset < chunk.next_offset:
                return chunk
        return None

    def keep(self, chunk: Chunk) -> None:
        """Keep a chunk in memory."""
        self.chunks.insert(bisect_right(self.chunks, chunk.begin_offset, key=_begin_offset), chunk)

    def drop(self, chunk: Chunk) -> None:
        """Remove a chunk from memory."""
        self.chunks.remove(chunk)

    def note_read(self, next_offset: int, unread_bytes_max: int) -> None:
        """Note that a reader has read up to ``next_offset``: the follower may go on."""
        unread = self.unread
        while unread and unread[0][0] <= next_offset:
            self.unread_bytes -= unread.popleft()[1]
        if self.unread_bytes < unread_bytes_max:
            self.room.set()


class Place:
    """The handle for appends to the queue of a topic that one selector chooses.

    ``queue`` is None until the topic is known. ``number`` is the selector's hash, or a remainder
    of it that chooses the same queue. ``taken`` counts the parts that were appended to it, and
    ``under_way`` those that have not settled.
    """

    __slots__ = ("number", "queue", "taken", "topic", "under_way")

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.queue: RemoteQueue | None = None
        self.taken = self.under_way = 0

    def __str__(self) -> str:
        return f"{self.topic}/not known yet"


class DelayedPlace:
    """A place for one message that its broker holds back until it is due."""

    __slots__ = ("place", "topic")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.topic = place.topic


def _begin_offset(chunk: Chunk) -> int:
    return chunk.begin_offset
