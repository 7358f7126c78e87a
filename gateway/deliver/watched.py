"""The queues that subscriptions need: which are read, and from where the live path goes on.

Owns: WatchedQueue, how many subscriptions want which queue topic.
Must not touch: records, receivers.
Invariants: a queue is watched from its tail on, once for all subscriptions that want it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from motelog.gateway.log.log_port import LogPort, QueueHandle, Waiting
from motelog.gateway.mapping.topic_mapping import TopicMapping, is_device_topic
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.session import Session

logger = logging.getLogger(__name__)


class WatchedQueue:
    """One queue that some subscription needs; ``next_offset`` is the live position.

    While it ``is_waiting`` for the log, nothing is read: the records are not at hand, or the tail
    is not known yet (``is_known``). ``waited`` is what the log returned for a read that is tried
    again, else None. ``lagging`` has the sessions with a cursor in the queue. ``number`` stands for
    the queue in flights.
    """

    __slots__ = (
        "handle",
        "is_known",
        "is_waiting",
        "lagging",
        "name",
        "next_offset",
        "number",
        "topic",
        "waited",
    )

    def __init__(self, topic: str, handle: QueueHandle, name: str, number: int) -> None:
        self.topic = topic
        self.handle = handle
        self.name = name
        self.number = number
        self.next_offset = 0
        self.is_known = True
        self.is_waiting = False
        self.waited: Waiting | None = None
        self.lagging: set[Session] = set()


class WatchedQueues:
    """The queues that one gateway reads; ``by_handle`` finds those that have grown.

    ``may_go_on`` is called with a queue whose tail has become known after it was watched.
    """

    def __init__(
        self, log: LogPort, mapping: TopicMapping, *, may_go_on: Callable[[WatchedQueue], None]
    ) -> None:
        self._log_port = log
        self._mapping = mapping
        self._may_go_on = may_go_on
        self.by_handle: dict[QueueHandle, WatchedQueue] = {}
        #: Number -> (handle, name) of every queue that flights may refer to, watched or not.
        self.places: list[tuple[QueueHandle, str]] = []
        self._numbers: dict[str, int] = {}
        #: Queue topic -> how many subscriptions name it. Below: how many may match any.
        self._wanted: dict[str, int] = {}
        self._wanted_any = 0
        log.on_topic_created(self._on_topic_created)

    def needed(self, topic_filter: str) -> Iterable[WatchedQueue]:
        """Return the watched queues that can hold matches of a filter."""
        topics = self._mapping.queue_topics(topic_filter)
        if topics is None:
            return list(self.by_handle.values())
        return [
            self.by_handle[handle]
            for topic in topics
            for handle in self._log_port.queues(topic)
            if handle in self.by_handle
        ]

    def number_of(self, name: str) -> int | None:
        """Return the number of the queue with this name; None if the log has no such queue."""
        number = self._numbers.get(name)
        if number is None:
            topic, _, _ = name.partition("/")
            for handle in self._log_port.queues(topic):
                if self._log_port.describe(handle) == name:
                    return self._number(handle, name)
        return number

    def _number(self, handle: QueueHandle, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.places)
            self.places.append((handle, name))
        return number

    def subscribe(self, topic_filter: str) -> None:
        """Read all queues that ``topic_filter`` needs, from the tail on, until ``unsubscribe``."""
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
        """Stop reading the queues that only ``topic_filter`` needed."""
        topics = self._mapping.queue_topics(topic_filter)
        if topics is None:
            self._wanted_any -= 1
        else:
            for topic in topics:
                self._wanted[topic] -= 1
                if not self._wanted[topic]:
                    del self._wanted[topic]
        if not self._wanted_any and (topics is None or not topics <= self._wanted.keys()):
            self.by_handle = {
                handle: queue
                for handle, queue in self.by_handle.items()
                if queue.topic in self._wanted
            }

    def _watch(self, topic: str) -> None:
        if not is_device_topic(topic):
            return
        for handle in self._log_port.queues(topic):
            if handle not in self.by_handle:
                name = self._log_port.describe(handle)
                queue = WatchedQueue(topic, handle, name, self._number(handle, name))
                self.by_handle[handle] = queue
                tail = self._log_port.tail(handle, partial(self._begin, queue))
                if tail is None:
                    queue.is_waiting = True
                    queue.is_known = False
                else:
                    queue.next_offset = tail

    def _begin(self, queue: WatchedQueue, tail: int) -> None:
        queue.next_offset = tail
        queue.is_known = True
        self._may_go_on(queue)

    def _on_topic_created(self, topic: str) -> None:
        if self._wanted_any or topic in self._wanted:
            self._watch(topic)


def count_lost(metrics: GatewayMetrics, queue_name: str, begin: int, end: int) -> None:
    """Count and log the messages that retention deleted before their delivery."""
    metrics.messages_lost_to_retention += end - begin
    logger.warning(
        "retention has deleted messages before their delivery: keep the log longer, or find out"
        " why receivers lag so far queue=%s queue_offset=%d count=%d",
        queue_name,
        begin,
        end - begin,
    )
