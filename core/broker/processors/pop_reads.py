"""Reading for pops: the messages that the queues of a topic, and of a group's retries, have.

Owns: Found, PopReads: in which order queues are read, where a group begins, how much one pop gets.
Must not touch: anything but whose turn it is; the next step and whether a pop waits (pop).
Spec: RocketMQ PopMessageProcessor.popMsgFromQueue, NotificationProcessor.hasMsgFromQueue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from motelog.core.broker.api import NotInMemoryError, ReadResult, ReadStatus
from motelog.core.broker.pop.service import PopService
from motelog.core.broker.processors.filtered_reads import read_matching
from motelog.core.broker.processors.pop_request import Pop, PopRequests
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.errors import StoreError
from motelog.core.records.layout import FIRST, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from motelog.core.topic_names import RETRY_PREFIX, is_lmq

#: Every fifth pop reads retries first, as RocketMQ does at random; the others read them last.
RETRIES_FIRST: Final = 5
_MISPLACED: Final = (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY)


@dataclass(frozen=True, slots=True)
class Found:
    """The messages that one queue has for a pop."""

    topic: str
    queue_id: int
    begin_offset: int
    result: ReadResult
    queue_offsets: list[int]
    # If the group is new in the queue: the offset at which it begins.
    first_offset: int | None


class PopReads:
    """Reads the queues of one broker for pops; nothing changes before all queues are read."""

    def __init__(self, shared: Shared, pop: PopService, requests: PopRequests) -> None:
        self._api = shared.api
        self._store = shared.store
        self._clock = shared.clock
        self._pop = pop
        self._requests = requests
        self._bytes_max = shared.config.pull_bytes_max
        self._in_work_per_queue_max = shared.config.pop_in_work_per_queue_max
        #: Grows with each look, so that queues take turns.
        self.turn = 0

    def look(self, pop: Pop, *, may_wait: bool) -> tuple[list[Found], int]:
        """Return the messages that queues have for a pop, and how many come after these."""
        found: list[Found] = []
        rest = 0
        room, room_bytes = pop.count_max, self._bytes_max
        for topic, queue_id in self._queues_of(pop):
            end = self._api.max_offset(topic, queue_id)
            if end == 0:
                continue
            key = pop.queue_key(topic, queue_id)
            if pop.is_order and self._pop.orders.is_blocked(key, pop.attempt, self._clock.now_ms()):
                continue
            in_work = self._pop.checkpoints.open_in(key)
            if in_work >= self._in_work_per_queue_max:
                continue
            try:
                begin, first = self._begin_of(pop, key, may_wait=may_wait)
                if begin == end or room == 0:
                    rest += end - begin
                    continue
                result, begin = self._read_queue(pop, key, begin, room, room_bytes, may_wait)
            except NotInMemoryError:
                if not any(one.queue_offsets for one in found):
                    raise
                rest += 1
                continue
            offsets = _queue_offsets(result, topic, begin)
            if offsets or result.next_offset > begin or first is not None:
                found.append(Found(topic, queue_id, begin, result, offsets, first))
            room -= len(offsets)
            room_bytes -= len(result.records)
            room = room if room_bytes > 0 else 0
            rest += max(0, result.max_offset - result.next_offset)
        return found, rest

    def _queues_of(self, pop: Pop) -> Iterator[tuple[str, int]]:
        """Yield the queues that a pop reads, in its order."""
        self.turn += 1
        retries = [
            (config.topic_name, queue_id)
            for config in self._requests.sources(pop)
            for queue_id in range(config.read_queue_nums)
        ]
        is_retry_first = self.turn % RETRIES_FIRST == 0
        if is_retry_first:
            yield from retries
        if pop.queue_id >= 0:
            yield pop.topic, pop.queue_id
        else:
            count = pop.config.read_queue_nums
            for i in range(count):
                yield pop.topic, (self.turn + i) % count
        if not is_retry_first:
            yield from retries

    def _begin_of(self, pop: Pop, key: QueueKey, *, may_wait: bool) -> tuple[int, int | None]:
        """Return a group's next offset; for a new group the same as its first offset, else None."""
        known = self._pop.progress.next_offset(key)
        if known is not None:
            return max(known, 0), None
        topic, _, queue_id = key
        begin = self._api.min_offset(topic, queue_id)
        is_retry = topic.startswith(RETRY_PREFIX)
        if (
            pop.is_from_end
            and not is_retry
            and (begin > 0 or not self._is_in_memory(topic, queue_id, may_wait=may_wait))
        ):
            # As in RocketMQ: the first message that it gets is the last one.
            begin = max(0, self._api.max_offset(topic, queue_id) - 1)
        return begin, begin

    def _is_in_memory(self, topic: str, queue_id: int, *, may_wait: bool) -> bool:
        """Return whether the first message of a queue is likely still in memory."""
        reader = self._store.reader
        first = reader.units(topic, queue_id, 0, 1, may_wait=may_wait)
        physical_offset = int.from_bytes(first[:8], "big")
        return self._store.end_offset - physical_offset <= reader.cached_bytes

    def _read_queue(
        self, pop: Pop, key: QueueKey, begin: int, room: int, room_bytes: int, may_wait: bool
    ) -> tuple[ReadResult, int]:
        """Read one queue, past messages that tags refuse; return the result and its begin."""
        result = self._read_at(pop, key, begin, room, room_bytes, may_wait)
        if result.status in _MISPLACED:
            begin = result.next_offset
            result = self._read_at(pop, key, begin, room, room_bytes, may_wait)
        while (
            result.status in (ReadStatus.NO_MATCH, ReadStatus.MESSAGE_WAS_REMOVED)
            and result.next_offset < result.max_offset
            and pop.sql_filter is None
        ):
            begin = result.next_offset
            result = self._read_at(pop, key, begin, room, room_bytes, may_wait)
        return result, begin

    def _read_at(
        self, pop: Pop, key: QueueKey, at: int, room: int, room_bytes: int, may_wait: bool
    ) -> ReadResult:
        topic, _, queue_id = key
        if pop.sql_filter is not None:
            return read_matching(
                self._api,
                self._clock,
                pop.sql_filter,
                topic,
                queue_id,
                at,
                count_max=room,
                bytes_max=room_bytes,
                may_wait=may_wait,
            )
        return self._api.read(
            topic,
            queue_id,
            at,
            count_max=room,
            bytes_max=room_bytes,
            tag_codes=pop.tag_codes,
            may_wait=may_wait,
        )

    def has_messages(self, pop: Pop) -> bool:
        """Return whether a queue has a message that the group has not received."""
        now_ms = self._clock.now_ms()
        for topic, queue_id in self._queues_of(pop):
            key = pop.queue_key(topic, queue_id)
            if pop.is_order and self._pop.orders.is_blocked(key, pop.attempt, now_ms):
                continue
            next_offset = self._pop.progress.next_offset(key)
            if next_offset is None:
                next_offset = self._api.min_offset(topic, queue_id)
            if self._api.max_offset(topic, queue_id) > next_offset:
                return True
        return False


def _queue_offsets(result: ReadResult, topic: str, begin_offset: int) -> list[int]:
    """Return the queue offset of each record, which is all that most pops need."""
    # One for each place, and the store has checked that they are the queue's, in order. Records of
    # a light queue have the offsets of another queue.
    if result.count == result.next_offset - begin_offset and not is_lmq(topic):
        return list(range(begin_offset, result.next_offset))
    records = result.records
    found = []
    at, end = 0, len(records)
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            raise StoreError("the store returned less than a record")
        size, magic, _, _, _, queue_offset, *_ = FIRST.unpack_from(records, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= end - at:
            raise StoreError(f"the store returned bytes that are not a record: {size} {magic:#x}")
        found.append(queue_offset)
        at += size
    return found
