"""A topic's queues for tools: begin, end, time of a message.

Owns: nothing; it reads the topic table and the store. Must not touch: requests, groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.disk.page_cache import read_all
from motelog.core.topic_names import shown


class Queues:
    """The queues of one broker's topics."""

    def __init__(self, shared: Shared) -> None:
        self._reader = shared.store.reader
        self._topics = shared.tables.topics
        self._broker_name = shared.config.name

    def find_topic(self, name: str) -> TopicConfig:
        """Return a topic's settings; BrokerError(TOPIC_NOT_EXIST) if there is no such topic."""
        config = self._topics.get(name)
        if config is None:
            text = f"topic {shown(name)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        return config

    def of(self, config: TopicConfig) -> list[MessageQueue]:
        """Return all queues of a topic, including read-only ones."""
        return [
            MessageQueue(config.topic_name, self._broker_name, queue_id)
            for queue_id in range(max(config.write_queue_nums, config.read_queue_nums))
        ]

    def of_name(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic; none if it does not exist."""
        config = self._topics.get(topic)
        return [] if config is None else self.of(config)

    def begin(self, queue: MessageQueue) -> int:
        return self._reader.min_offset(queue.topic, queue.queue_id)

    def end(self, queue: MessageQueue) -> int:
        return self._reader.max_offset(queue.topic, queue.queue_id)

    def time_at(self, queue: MessageQueue, offset: int, *, may_wait: bool) -> int:
        """Return when a message was stored; -1 if there is no such message."""
        return self._reader.store_timestamp(queue.topic, queue.queue_id, offset, may_wait=may_wait)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, *, may_wait: bool) -> int:
        """Return the first offset stored at a time or later; the end for -1."""
        if timestamp_ms == -1:
            return self.end(queue)
        return self._reader.offset_by_time(
            queue.topic, queue.queue_id, timestamp_ms, may_wait=may_wait
        )

    def times(self, ends: Iterable[tuple[MessageQueue, int]], *, may_wait: bool) -> list[int]:
        """Return when the message before each offset was stored; 0 if there is no such message."""
        return read_all(partial(self._time_before, may_wait=may_wait), ends)

    def _time_before(self, end: tuple[MessageQueue, int], *, may_wait: bool) -> int:
        queue, offset = end
        if offset <= self.begin(queue):
            return 0
        return self.time_at(queue, offset - 1, may_wait=may_wait)
