"""The queues that subscriptions need: which are read, and where the live path continues.

Owns: WatchedQueue, how many subscriptions want which queues.
Must not touch: records, receivers.
Invariants: a queue is watched from its tail on, once for all subscriptions that want it. The counts
are bounded by the number of topics, not of subscriptions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from typing import Final, TypeAlias

from motelog.core.limited_log import LimitedLog
from motelog.core.topic_names import is_device_topic
from motelog.gateway.log.log_port import LogPort, QueueHandle, Waiting, choose_queue
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.groups import part_number
from motelog.gateway.sessions.session import Session

logger = logging.getLogger(__name__)

#: Selectors are counted by their hash modulo this. If a topic's number of queues divides it, the
#: remainder determines the queue; otherwise all queues of the topic are watched.
BUCKETS: Final = 64
#: The weight of one read's mean record size in the moving average.
SIZE_SHARE: Final = 0.1
#: In place of a bucket: all queues of the topic.
ALL: Final = -1
#: Filters whose buckets are cached.
FILTERS_KEPT: Final = 1024
#: Queue topics with a bucket each, or ALL.
Buckets: TypeAlias = tuple[tuple[str, int], ...]


class WatchedQueue:
    """One queue that some subscription needs; ``next_offset`` is the live position.

    While it ``is_waiting`` for the log, nothing is read: the records are being fetched, or the tail
    is not known yet (``is_known``). ``waited`` is what the log returned for a read that is tried
    again, otherwise None. ``lagging`` has the sessions with a cursor in the queue. ``number``
    identifies the queue in flights. ``record_bytes`` is the moving average of record sizes, 0
    before the first. ``whole_ms`` is a time at which no record of the queue had been stored.
    """

    __slots__ = (
        "handle",
        "is_known",
        "is_waiting",
        "lagging",
        "name",
        "next_offset",
        "number",
        "record_bytes",
        "topic",
        "waited",
        "whole_ms",
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
        self.record_bytes = 0.0
        self.whole_ms = 0

    def note_sizes(self, records_bytes: int, count: int) -> None:
        """Take the sizes of one read into account."""
        if count:
            mean = records_bytes / count
            old = self.record_bytes or mean
            self.record_bytes = old + (mean - old) * SIZE_SHARE


class WatchedQueues:
    """The queues that one gateway reads; ``by_handle`` finds one that has grown."""

    def __init__(self, log: LogPort, mapping: TopicMapping) -> None:
        self._log_port = log
        self._mapping = mapping
        #: Called with a queue whose tail has become known after it was watched.
        self.may_go_on: Callable[[WatchedQueue], None] = _let_rest
        self.by_handle: dict[QueueHandle, WatchedQueue] = {}
        #: Number -> (handle, name) of every queue that flights may refer to, watched or not.
        self.places: list[tuple[QueueHandle, str]] = []
        #: Number -> the part of shared subscriptions that the queue belongs to.
        self.parts: list[int] = []
        #: Names of queues that stopped being watched since this was last taken.
        self.left: set[str] = set()
        #: The watched queues whose tail is not known yet.
        self._unknown: set[WatchedQueue] = set()
        self._numbers: dict[str, int] = {}
        #: Queue topic -> bucket or ALL -> how many subscriptions want it. ``_wanted_any`` counts
        #: subscriptions that may match any topic.
        self._wanted: dict[str, dict[int, int]] = {}
        self._wanted_any = 0
        #: Topics (all of them if ``_is_any_idle``) with queues that may no longer be needed.
        self._idle: dict[str, None] = {}
        self._is_any_idle = False
        #: Queue topic -> its queues, and whether a bucket determines one of them.
        self._queues: dict[str, tuple[Sequence[QueueHandle], bool]] = {}
        #: Watched queues by the buckets of a filter; cleared when the watched queues change.
        self._needed: dict[Buckets, list[WatchedQueue]] = {}
        # One CONNECT or SUBSCRIBE asks for the same filter several times.
        self._buckets = lru_cache(FILTERS_KEPT)(self._find_buckets)
        #: Topics whose number of queues has changed: a bucket does not determine the queue of a
        #: message that was there before. This is rare.
        self._changed: set[str] = set()
        #: Their queues in which some receiver has a position: these are needed even if they are
        #: closed to readers. Otherwise receivers that come back would lose the messages that wait
        #: there, or get all of them again.
        self._kept: dict[str, dict[QueueHandle, None]] = {}
        self._gone = LimitedLog(logger)
        log.on_topic_created(self._on_topic_created)

    def needed(self, topic_filter: str) -> Iterable[WatchedQueue]:
        """Return the watched queues that can hold matches of a filter."""
        buckets = self._buckets(topic_filter)
        if buckets is None:
            return list(self.by_handle.values())
        needed = self._needed.get(buckets)
        if needed is None:
            if len(self._needed) >= FILTERS_KEPT:
                self._needed.clear()
            needed = self._needed[buckets] = [
                self.by_handle[handle]
                for topic, bucket in buckets
                for handle in self._chosen(topic, (bucket,))
                if handle in self.by_handle
            ]
        return needed

    def _find_buckets(self, topic_filter: str) -> Buckets | None:
        """Return the topics that a filter needs with their buckets; None: all topics."""
        choices = self._mapping.queue_choices(topic_filter)
        if choices is None:
            return None
        return tuple(
            [
                (topic, ALL if selector is None else choose_queue(selector, BUCKETS))
                for topic, selector in choices
            ]
        )

    def number_of(self, name: str) -> int | None:
        """Return the number of the queue with this name; None if the log has no such queue."""
        number = self._numbers.get(name)
        if number is None:
            handle = self._log_port.find_queue(name)
            if handle is not None:
                return self._number(handle, name)
        return number

    def _number(self, handle: QueueHandle, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.places)
            self.places.append((handle, name))
            self.parts.append(part_number(name))
        return number

    def subscribe(self, topic_filter: str) -> None:
        """Read all queues that ``topic_filter`` needs, from the tail on, until ``unsubscribe``."""
        choices = self._buckets(topic_filter)
        if choices is None:
            self._wanted_any += 1
            if self._wanted_any == 1:
                for topic in self._log_port.topics():
                    self._watch(topic)
            return
        for topic, bucket in choices:
            buckets = self._wanted.setdefault(topic, {})
            buckets[bucket] = buckets.get(bucket, 0) + 1
            if buckets[bucket] == 1:
                self._watch(topic)

    def unsubscribe(self, topic_filter: str) -> None:
        """Stop reading the queues that only ``topic_filter`` needed."""
        self.leave(topic_filter)
        self.let_go()

    def leave(self, topic_filter: str) -> None:
        """Have ``let_go`` stop reading the queues that only ``topic_filter`` needed.

        A client that is taken over, or comes back, needs the same queues again. There may be
        thousands of them.
        """
        choices = self._buckets(topic_filter)
        if choices is None:
            self._wanted_any -= 1
            if not self._wanted_any:
                self._is_any_idle = True
            return
        for topic, bucket in choices:
            buckets = self._wanted[topic]
            buckets[bucket] -= 1
            if not buckets[bucket]:
                del buckets[bucket]
                if not buckets:
                    del self._wanted[topic]
                self._idle[topic] = None

    def let_go(self) -> None:
        """Stop reading the queues that are no longer needed."""
        idle, self._idle = self._idle, {}
        if self._is_any_idle:
            self._is_any_idle = False
            idle.update((queue.topic, None) for queue in self.by_handle.values())
        for topic in idle:
            self._unwatch(topic)

    def reads(self, topic_filter: str) -> bool:
        """Whether all queues that a filter needs are already read from a known tail."""
        choices = self._buckets(topic_filter)
        if choices is None:
            return self._wanted_any > 0 and not self._unknown
        if not self._wanted_any and any(b not in self._wanted.get(t, ()) for t, b in choices):
            return False
        return not self._unknown or self._unknown.isdisjoint(self.needed(topic_filter))

    def resume(
        self, topic_filters: Collection[str], known: Iterable[str]
    ) -> dict[str, WatchedQueue]:
        """Subscribe again for a receiver that was away; return the queues that it needs, by name.

        ``known`` are the names of the queues that it has cursors for.
        """
        for topic_filter in topic_filters:
            self.subscribe(topic_filter)
        return self.find(topic_filters, known)

    def find(self, topic_filters: Collection[str], known: Iterable[str]) -> dict[str, WatchedQueue]:
        """Return the queues that these filters need, by name; ``known`` as for ``resume``."""
        by_name = self._needed_by_name(topic_filters)
        strange = set(known).difference(by_name)
        if strange:
            for name in strange:
                self.read_whole(name)
            by_name = self._needed_by_name(topic_filters)
        return by_name

    def _needed_by_name(self, topic_filters: Iterable[str]) -> dict[str, WatchedQueue]:
        return {
            queue.name: queue
            for topic_filter in topic_filters
            for queue in self.needed(topic_filter)
        }

    def read_whole(self, name: str) -> None:
        """Assume that the topic of the queue with this name once had another number of queues."""
        number = self.number_of(name)
        if number is not None:
            topic, _, _ = name.partition("/")
            self._kept.setdefault(topic, {})[self.places[number][0]] = None
            self._topic_changed(topic)

    def _watch(self, topic: str) -> None:
        """Start reading the queues of ``topic`` that are needed and not read yet."""
        if not is_device_topic(topic):
            return
        for handle in self._wanted_of(topic):
            if handle not in self.by_handle:
                name = self._log_port.describe(handle)
                queue = WatchedQueue(topic, handle, name, self._number(handle, name))
                self.by_handle[handle] = queue
                self._needed.clear()
                tail = self._log_port.tail(handle, partial(self._begin, queue))
                if tail is None:
                    queue.is_waiting = True
                    queue.is_known = False
                    self._unknown.add(queue)
                else:
                    queue.next_offset = tail

    def _unwatch(self, topic: str) -> None:
        """Stop reading the queues of ``topic`` that are no longer needed."""
        for handle in set(self._queues_of(topic)[0]).difference(self._wanted_of(topic)):
            queue = self.by_handle.pop(handle, None)
            if queue is not None:
                self.left.add(queue.name)
                self._unknown.discard(queue)
                self._needed.clear()

    def _wanted_of(self, topic: str) -> Sequence[QueueHandle]:
        buckets: Collection[int] = (ALL,) if self._wanted_any else self._wanted.get(topic, ())
        return self._chosen(topic, buckets) if buckets else ()

    def _chosen(self, topic: str, buckets: Collection[int]) -> Sequence[QueueHandle]:
        """Return the queues of ``topic`` that can hold messages of these buckets."""
        queues, is_decided = self._queues_of(topic)
        if ALL in buckets or not is_decided:
            return queues
        return [queues[queue_id] for queue_id in {bucket % len(queues) for bucket in buckets}]

    def _queues_of(self, topic: str) -> tuple[Sequence[QueueHandle], bool]:
        known = self._queues.get(topic)
        if known is None:
            queues = self._log_port.queues(topic)
            kept = self._kept.get(topic)
            if kept:
                queues = [*queues, *filter(self._is_there, kept.keys() - set(queues))]
            if not queues:
                return queues, False
            count = len(self._log_port.append_queues(topic))
            is_decided = count == len(queues) and BUCKETS % count == 0
            known = self._queues[topic] = (queues, is_decided and topic not in self._changed)
        return known

    def _is_there(self, handle: QueueHandle) -> bool:
        return self._log_port.find_queue(self._log_port.describe(handle)) is not None

    def count_gone(self, metrics: GatewayMetrics, client_id: str, names: Iterable[str]) -> None:
        """Count and log the queues among these names that the log no longer has.

        They are queues in which a session or a shared subscription had a cursor. The cursor of
        retained messages is not among them: it does not belong to a queue that is watched.
        """
        for name in names:
            if self._log_port.find_queue(name) is None:
                metrics.cursors_dropped += 1
                self._gone.warning(
                    "a session or shared subscription continues without a queue that is gone; its"
                    " messages there are lost: was the topic deleted? client_id=%r queue=%s",
                    client_id,
                    name,
                )

    def _begin(self, queue: WatchedQueue, tail: int) -> None:
        queue.next_offset = tail
        queue.is_known = True
        self._unknown.discard(queue)
        self.may_go_on(queue)

    def _on_topic_created(self, topic: str) -> None:
        if any(queue.topic == topic for queue in self.by_handle.values()):
            self._topic_changed(topic)
        else:
            self._needed.clear()
            self._queues.pop(topic, None)
            self._watch(topic)

    def _topic_changed(self, topic: str) -> None:
        self._changed.add(topic)
        watched = [handle for handle, queue in self.by_handle.items() if queue.topic == topic]
        self._kept.setdefault(topic, {}).update(dict.fromkeys(watched))
        self._needed.clear()
        self._queues.pop(topic, None)
        self._watch(topic)


def _let_rest(queue: WatchedQueue) -> None:
    """Do nothing: stands for the reader of queues that nothing reads yet."""


def count_lost(metrics: GatewayMetrics, queue_name: str, begin: int, end: int) -> None:
    """Count and log the messages that retention deleted before their delivery."""
    metrics.messages_lost_to_retention += end - begin
    logger.warning(
        "retention has deleted messages before their delivery: keep the log longer, or find out"
        " why receivers are so far behind queue=%s queue_offset=%d count=%d",
        queue_name,
        begin,
        end - begin,
    )
