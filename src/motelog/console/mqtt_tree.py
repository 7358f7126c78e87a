"""The admin API's tree of MQTT topic names: messages and retained messages below a name.

Owns: one level of the tree, from the queues' newest messages and the retained messages; how the
sample of messages is divided among queue topics.
Must not touch: the wire, the view (it uses ``queues`` and ``asking``).
Invariants: an answer reads a bounded number of messages from a bounded number of queues in a
bounded time, and says what it has read. Queue topics to which ``topic_map`` maps a name come before
all others. The same question within ``KEPT_S`` gets the same answer, so that many browser tabs cost
as much as one; nothing is read without a request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.admin_answers import QueueStats
from motelog.bridge.errors import RouteError
from motelog.bridge.pull import PullConsumer
from motelog.console.api import Endpoint
from motelog.console.asking import AskedGateway, RefusedError
from motelog.console.gateway import GatewayApi
from motelog.console.queues import QueueApi, kind_of, own_topics
from motelog.core.errors import BrokerError
from motelog.core.message import MessageQueue
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.operator.answers import RetainedMessage

#: Messages that one answer reads, per queue and in total, and its time limit.
QUEUE_MESSAGES_MAX: Final = 1000
MESSAGES_MAX: Final = 4000
READ_WITHIN_S: Final = 4.0
#: Queue topics that one answer considers, and queues that it reads.
TOPICS_MAX: Final = 200
QUEUES_MAX: Final = 200
#: How long an answer is reused, and how many are kept.
KEPT_S: Final = 5.0
KEPT_MAX: Final = 16
#: Names in one answer, and retained messages that are read for it.
ENTRIES_MAX: Final = 500
RETAINED_MAX: Final = 1000
#: Retained payloads in one answer, and the bytes of each.
VALUES_MAX: Final = 100
VALUE_BYTES_MAX: Final = 256


class MqttTreeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    below: Annotated[
        str, msgspec.Meta(description="The names one level below this one; empty: the first level.")
    ] = ""
    minutes: Annotated[
        int, msgspec.Meta(ge=1, le=1440, description="Only messages of this many past minutes.")
    ] = 10


class MqttTreeValue(msgspec.Struct, frozen=True, kw_only=True):
    """A retained message with the beginning of its payload, in base64."""

    payload: bytes
    payload_bytes: int
    stored_ms: int


class MqttTreeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A level of the tree; ``topic`` is its full name.

    ``own`` counts the messages of exactly this name; ``messages`` and ``per_second`` include those
    below it. ``has_below`` says whether there are names below it.
    """

    level: str
    topic: str
    own: int
    messages: int
    per_second: float
    last_ms: int | None
    has_below: bool
    retained: MqttTreeValue | None


class MqttTree(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one level; ``is_cut``: not all messages were read.

    At ``read_ms``, ``messages_read`` messages were read from ``topics_read`` of the ``topics``
    existing queue topics.
    """

    below: str
    entries: list[MqttTreeEntry]
    is_cut: bool
    topics: int
    topics_read: int
    messages_read: int
    read_ms: int


class _Kept:
    """An answer that is reused until a time; one task at a time renews it."""

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.answer: MqttTree | None = None
        self.until_s = 0.0


class MqttTreeApi:
    """Asks brokers for messages, and this server's gateway for retained messages."""

    def __init__(self, gateway: GatewayApi, queues: QueueApi, mapping: TopicMapping) -> None:
        self._gateway = gateway
        self._queues = queues
        self._mapping = mapping
        self._kept: dict[MqttTreeQuery, _Kept] = {}

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/mqtt-topics", "Tree of MQTT topic names", MqttTreeQuery, MqttTree, self.mqtt_tree
            )
        ]

    async def mqtt_tree(self, query: MqttTreeQuery) -> MqttTree:
        kept = self._kept.pop(query, None) or _Kept()
        self._kept[query] = kept
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        async with kept.turn:
            if kept.answer is None or trio.current_time() >= kept.until_s:
                kept.answer = await self._read(query)
                kept.until_s = trio.current_time() + KEPT_S
            return kept.answer

    async def _read(self, query: MqttTreeQuery) -> MqttTree:
        level = _Level(f"{query.below}/" if query.below else "")
        now_ms = time.time_ns() // 1_000_000
        await self._read_messages(level, now_ms - query.minutes * 60_000, now_ms)
        gateway = self._gateway.gateway
        if gateway is not None:
            await _add_retained(gateway, level)
        entries = [level.entry(name) for name in sorted(level.nodes)]
        return MqttTree(
            below=query.below,
            entries=entries[:ENTRIES_MAX],
            is_cut=level.is_cut or len(entries) > ENTRIES_MAX or level.topics_read < level.topics,
            topics=level.topics,
            topics_read=level.topics_read,
            messages_read=level.read,
            read_ms=now_ms,
        )

    async def _read_messages(self, level: _Level, since_ms: int, now_ms: int) -> None:
        async with self._queues.admin() as admin, self._queues.consumer() as consumer:
            own = await own_topics(admin)
            topics = [name for name in await admin.topics() if kind_of(name, own) == "topic"]
            level.topics = len(topics)
            first = self._topics_of(level.prefix)
            with trio.move_on_after(READ_WITHIN_S) as scope:
                for are_first in (True, False):
                    some = [name for name in topics if (name in first) == are_first]
                    grown: list[QueueStats] = []
                    with trio.move_on_after(READ_WITHIN_S / 2):
                        await _find_grown(admin, some, level, since_ms, grown)
                    await _read_queues(consumer, grown, level, since_ms, now_ms)
            level.is_cut = level.is_cut or scope.cancelled_caught

    def _topics_of(self, prefix: str) -> set[str]:
        """Return the queue topics for MQTT messages below a name; empty if any may have them."""
        if not prefix or "+" in prefix or "#" in prefix:
            return set()
        return {topic for topic, _ in self._mapping.queue_choices(f"{prefix}#") or ()}


async def _find_grown(
    admin: Admin, topics: Iterable[str], level: _Level, since_ms: int, grown: list[QueueStats]
) -> None:
    """Add the queues of topics that have received messages."""
    for topic in topics:
        if level.topics_read >= TOPICS_MAX:
            return
        try:
            queues = await admin.topic_stats(topic)
        except (BrokerError, RouteError):  # it is being deleted
            queues = []
        level.topics_read += 1
        grown += [one for one in queues if one.last_ms >= since_ms]


async def _read_queues(
    consumer: PullConsumer, grown: list[QueueStats], level: _Level, since_ms: int, now_ms: int
) -> None:
    """Read the newest messages of queues: all of each, or an equal share of the remaining limit."""
    level.is_cut = level.is_cut or len(grown) > QUEUES_MAX
    grown.sort(key=lambda one: -one.last_ms)
    ends = {one.queue: one.end_offset for one in grown[:QUEUES_MAX]}
    begins = await consumer.offsets_for_time(ends, since_ms)
    # Queues with few messages first, so that the others get what they do not need.
    in_turn = sorted(ends, key=lambda queue: ends[queue] - begins[queue])
    for done, queue in enumerate(in_turn):
        share = (MESSAGES_MAX - level.read) // (len(in_turn) - done)
        begin = max(begins[queue], ends[queue] - min(share, QUEUE_MESSAGES_MAX))
        is_part = begin > begins[queue]
        level.is_cut = level.is_cut or is_part
        await _read_queue(
            consumer, queue, begin, ends[queue], level,
            since_ms=None if is_part else since_ms, now_ms=now_ms,
        )  # fmt: skip


async def _read_queue(
    consumer: PullConsumer,
    queue: MessageQueue,
    begin: int,
    end: int,
    level: _Level,
    *,
    since_ms: int | None,
    now_ms: int,
) -> None:
    """Add the messages of a queue; if ``since_ms`` is None, time counts from its first message."""
    while begin < end:
        found = await consumer.pull(queue, begin, count_max=min(512, end - begin))
        for message in found.messages():
            if since_ms is None:
                since_ms = message.store_timestamp_ms
            seconds = max(1.0, (now_ms - since_ms) / 1000)
            level.add(message.mqtt_topic, message.store_timestamp_ms, 1 / seconds)
        if found.next_offset <= begin:
            return
        begin = found.next_offset


async def _add_retained(gateway: AskedGateway, level: _Level) -> None:
    """Add names that have retained messages, and the values of those on this level."""
    after: str | None = ""
    left = RETAINED_MAX
    values = 0
    while after is not None:
        if left <= 0:
            level.is_cut = True
            return
        try:
            page = await gateway.list_retained(f"{level.prefix}#", after, left)
        except RefusedError as exc:
            if exc.status != 400:
                raise
            return  # the name has wildcards, so no message can be retained there
        for one in page.messages:
            node = level.node(one.topic)
            if node is None or one.topic != level.prefix + node.level:
                continue
            values += 1
            message = await gateway.get_retained(one.topic) if values <= VALUES_MAX else None
            node.retained = message
            level.is_cut = level.is_cut or values > VALUES_MAX
        left -= max(len(page.messages), 1)
        after = page.after


class _Level:
    """The names below a name, while they are being counted."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: dict[str, _Node] = {}
        self.read = 0
        self.topics = 0
        self.topics_read = 0
        self.is_cut = False

    def node(self, topic: str) -> _Node | None:
        """Return the node that a topic name belongs to; None if it is not below this level."""
        if not topic.startswith(self.prefix):
            return None
        name, _, _ = topic.removeprefix(self.prefix).partition("/")
        node = self.nodes.setdefault(name, _Node(name))
        node.has_below = node.has_below or topic != self.prefix + name
        return node

    def add(self, topic: str, stored_ms: int, per_second: float) -> None:
        self.read += 1
        node = self.node(topic)
        if node is not None:
            node.messages += 1
            node.own += topic == self.prefix + node.level
            node.per_second += per_second
            node.last_ms = max(node.last_ms, stored_ms)

    def entry(self, name: str) -> MqttTreeEntry:
        node = self.nodes[name]
        retained = node.retained
        return MqttTreeEntry(
            level=name,
            topic=self.prefix + name,
            own=node.own,
            messages=node.messages,
            per_second=round(node.per_second, 3),
            last_ms=node.last_ms or None,
            has_below=node.has_below,
            retained=None
            if retained is None
            else MqttTreeValue(
                payload=retained.payload[:VALUE_BYTES_MAX],
                payload_bytes=retained.payload_bytes,
                stored_ms=retained.stored_ms,
            ),
        )


@dataclass(slots=True)
class _Node:
    level: str
    own: int = 0
    messages: int = 0
    per_second: float = 0.0
    last_ms: int = 0
    has_below: bool = False
    retained: RetainedMessage | None = field(default=None)
