"""The queues that subscriptions need: which are read, and from where the live path goes on.

Owns: WatchedQueue, how many subscriptions want which queue topic.
Must not touch: records, receivers.
Invariants: a queue is watched from its tail on, once for all who want it.
"""

from __future__ import annotations

import logging

from motelog.core.broker.api import PageIns
from motelog.core.records.append import QueueTail
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.topic_mapping import TopicMapping, is_device_topic
from motelog.gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)


class WatchedQueue:
    """One queue that some subscription needs; ``next_offset`` is the live position.

    ``page_ins``: what was paged in for the read that is tried again; None if none is.
    """

    __slots__ = ("is_paging_in", "next_offset", "page_ins", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.is_paging_in = False
        self.page_ins: PageIns | None = None


class WatchedQueues:
    """The queues of one gateway that are read; ``by_tail`` is what growth is looked up in."""

    def __init__(self, log: LogPort, mapping: TopicMapping) -> None:
        self._log_port = log
        self._mapping = mapping
        self.by_tail: dict[QueueTail, WatchedQueue] = {}
        #: Queue topic -> how many subscriptions name it; and how many may match any.
        self._wanted: dict[str, int] = {}
        self._wanted_any = 0
        log.on_topic_created(self._on_topic_created)

    def subscribe(self, topic_filter: str) -> None:
        """Read what ``topic_filter`` can match from the tail on; undone by ``unsubscribe``."""
        topics = self._mapping.queue_topics(topic_filter)
        if topics is None:
            self._wanted_any += 1
            topics = frozenset(self._log_port.topics()) if self._wanted_any == 1 else frozenset()
        else:
            for topic in topics:
                self._wanted[topic] = self._wanted.get(topic, 0) + 1
        for topic in topics:
            self._watch(topic)

    def unsubscribe(self, topic_filter: str) -> None:
        """Stop reading what only ``topic_filter`` needed."""
        topics = self._mapping.queue_topics(topic_filter)
        if topics is None:
            self._wanted_any -= 1
        else:
            for topic in topics:
                self._wanted[topic] -= 1
                if not self._wanted[topic]:
                    del self._wanted[topic]
        if not self._wanted_any and (topics is None or not topics <= self._wanted.keys()):
            self.by_tail = {
                tail: queue for tail, queue in self.by_tail.items() if queue.topic in self._wanted
            }

    def _watch(self, topic: str) -> None:
        if not is_device_topic(topic):
            return
        for queue_id in range(self._log_port.queue_count(topic) or 0):
            tail = self._log_port.queue_tail(topic, queue_id)
            if tail not in self.by_tail:
                next_offset = self._log_port.max_offset(topic, queue_id)
                self.by_tail[tail] = WatchedQueue(topic, queue_id, next_offset)

    def _on_topic_created(self, topic: str) -> None:
        if self._wanted_any or topic in self._wanted:
            self._watch(topic)


def count_lost(metrics: GatewayMetrics, queue: WatchedQueue, begin: int, end: int) -> None:
    """Note that retention took what a reader had not delivered yet."""
    metrics.messages_lost_to_retention += end - begin
    logger.warning(
        "messages expired before delivery topic=%s queue_id=%d queue_offset=%d count=%d",
        queue.topic,
        queue.queue_id,
        begin,
        end - begin,
    )
