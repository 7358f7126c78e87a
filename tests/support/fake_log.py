"""A log in memory behind the gateway's LogPort.

Owns: one list of records per queue, encoded by the real record kernel. ``error`` is raised by the
next appends; ``acknowledge`` says which may be answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from motelog.core.broker.api import NotInMemoryError, Pageable, ReadResult, ReadStatus
from motelog.core.errors import StoreError
from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.store.disk.page_cache import Places
from tests.support.fake_acknowledge import FakeAcknowledge

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class FakeLog:
    """LogPort without a disk."""

    def __init__(self) -> None:
        self.queue_counts: dict[str, int] = {}
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.begin_offsets: dict[tuple[str, int], int] = {}
        self.error: StoreError | None = None
        self.cold: set[int] = set()  # queue offsets whose records are on the disk only
        self.paging_in: list[Callable[[], None]] = []
        self.acknowledge = FakeAcknowledge()
        self.now_ms = 1_000_000
        self._tails: dict[tuple[str, int], QueueTail] = {}
        self.end_offset = 0
        self._growth: list[Callable[[list[QueueTail]], None]] = []
        self._created: list[Callable[[str], None]] = []

    def queue_count(self, topic: str) -> int | None:
        return self.queue_counts.get(topic)

    def create_topic(self, topic: str, queue_count: int) -> int:
        if topic not in self.queue_counts:
            self.queue_counts[topic] = queue_count
            for listener in self._created:
                listener(topic)
        return self.queue_counts[topic]

    def topics(self) -> Sequence[str]:
        return list(self.queue_counts)

    def queue_tail(self, topic: str, queue_id: int) -> QueueTail:
        key = (topic, queue_id)
        if key not in self._tails:
            self._tails[key] = QueueTail(topic.encode(), queue_id, 0)
            self.records[key] = []
        return self._tails[key]

    def append(self, messages: list[Any]) -> int:
        if self.error is not None:
            raise self.error
        dirty: list[QueueTail] = []
        begin = self.end_offset
        for message in messages:
            buffer = bytearray(70_000 + len(message[1]))
            end = encode_batch(
                buffer, 0, len(buffer), self.end_offset, [message], 0, self.now_ms, HOST, dirty,
                None, begin,
            )[1]  # fmt: skip
            tail = message[0]
            self.records[(tail.topic.decode(), tail.queue_id)].append(bytes(buffer[:end]))
            self.end_offset += end
        for tail in dirty:
            tail.drop(tail.next_offset)
        for listener in self._growth:
            listener(dirty)
        return self.end_offset

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        may_wait: bool,
    ) -> ReadResult:
        key = (topic, queue_id)
        records = self.records[key]
        begin = self.begin_offsets.get(key, 0)
        if queue_offset in self.cold and not may_wait:
            raise NotInMemoryError([Places(topic, ((queue_offset, queue_offset + 1),))])
        if queue_offset < begin:
            status, found = ReadStatus.OFFSET_TOO_SMALL, []
        else:
            found = records[queue_offset : queue_offset + count_max]
            status = ReadStatus.FOUND if found else ReadStatus.OFFSET_OVERFLOW_ONE
        return ReadResult(
            status=status,
            next_offset=queue_offset + len(found),
            min_offset=begin,
            max_offset=len(records),
            records=b"".join(found),
            count=len(found),
        )

    def page_in(self, missing: Sequence[Pageable], then: Callable[[], None]) -> bool:
        self.paging_in.append(then)
        return True

    def paged_in(self, *, is_warm: bool = True) -> None:
        """Tell those who wait for the disk that it is done."""
        if is_warm:
            self.cold.clear()
        waiting, self.paging_in = self.paging_in, []
        for then in waiting:
            then()

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.records.get((topic, queue_id), ()))

    def on_growth(self, listener: Callable[[list[QueueTail]], None]) -> None:
        self._growth.append(listener)

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        self._created.append(listener)
