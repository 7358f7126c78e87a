"""The records of a remote log that are in memory, of all queues together.

Owns: KeptRecords: which chunks are in memory, and their limit. Must not touch: requests, tasks,
what the readers of a queue have read (``queues``).
Invariant: all chunks together take at most ``bytes_max``, unless there is only one. The least
recently used one is dropped first.
"""

from __future__ import annotations

from motelog.gateway.log.remote.queues import Chunk, RemoteQueue


class KeptRecords:
    """The chunks of one gateway that are in memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_now = 0
        #: In the order of use, the least recently used one first.
        self._chunks: dict[Chunk, None] = {}

    def keep(self, chunk: Chunk) -> None:
        """Keep a chunk in memory; others are dropped for it if there is no room."""
        chunk.queue.keep(chunk)
        self._chunks[chunk] = None
        self.bytes_now += len(chunk.records)
        while self.bytes_now > self._bytes_max and len(self._chunks) > 1:
            self._drop_oldest()

    def read(
        self, queue: RemoteQueue, queue_offset: int, count_max: int, bytes_max: int
    ) -> tuple[bytes, int]:
        """Return records of consecutive chunks in memory, and the offset after them.

        A chunk covers ``queue_offset``.
        """
        found: list[bytes] = []
        end = queue_offset + count_max
        while queue_offset < end and (chunk := queue.chunk_at(queue_offset)) is not None:
            self._use(chunk)
            if found and (bytes_max <= 0 or len(chunk.records) > bytes_max):
                break
            records, queue_offset = chunk.read(queue_offset, end - queue_offset, bytes_max)
            found.append(records)
            bytes_max -= len(records)
            if queue_offset < chunk.next_offset:
                break
        return found[0] if len(found) == 1 else b"".join(found), queue_offset

    def drop_before(self, queue: RemoteQueue, queue_offset: int) -> None:
        """Drop the chunks of a queue that end at ``queue_offset`` or before it."""
        while queue.chunks and queue.chunks[0].next_offset <= queue_offset:
            self._drop(queue.chunks[0])

    def clear(self) -> None:
        """Drop all chunks from memory."""
        while self._chunks:
            self._drop_oldest()

    def _use(self, chunk: Chunk) -> None:
        del self._chunks[chunk]
        self._chunks[chunk] = None

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._chunks)))

    def _drop(self, chunk: Chunk) -> None:
        del self._chunks[chunk]
        self.bytes_now -= len(chunk.records)
        chunk.queue.drop(chunk)
