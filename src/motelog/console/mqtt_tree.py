"""The admin API's tree of MQTT topic names: what goes by below a name, and what is retained there.

Owns: one level of the tree, from the newest messages of the queues and the retained messages.
Must not touch: the wire, the view; ``queues`` and ``asking`` lead there.
Invariants: an answer reads a bounded number of messages for a bounded time, and says so if there
were more. Nothing is kept between two answers, so the tree costs nothing while nobody looks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
import trio

from motelog.bridge.pull import PullConsumer
from motelog.console.api import Endpoint
from motelog.console.asking import AskedGateway, RefusedError
from motelog.console.gateway import GatewayApi
from motelog.console.queues import QueueApi, kind_of, own_topics
from motelog.core.message import MessageQueue
from motelog.gateway.operator_answers import RetainedMessage

#: Messages that one answer reads, of one queue and of all, and for how long at most.
QUEUE_MESSAGES_MAX: Final = 1000
MESSAGES_MAX: Final = 10_000
READ_WITHIN_S: Final = 4.0
#: Names of one answer, and retained messages that are looked at for it.
ENTRIES_MAX: Final = 500
RETAINED_MAX: Final = 1000
#: Retained payloads that one answer has, and of each as much.
VALUES_MAX: Final = 100
VALUE_BYTES_MAX: Final = 256


class MqttTreeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    below: Annotated[
        str, msgspec.Meta(description="The names one level below this one; empty: the first level.")
    ] = ""
    minutes: Annotated[
        int, msgspec.Meta(ge=1, le=1440, description="Messages stored since so long ago.")
    ] = 10


class MqttTreeValue(msgspec.Struct, frozen=True, kw_only=True):
    """A retained message; of its payload the beginning, in base64."""

    payload: bytes
    payload_bytes: int
    stored_ms: int


class MqttTreeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A level and what is below it; ``topic`` is its whole name.

    ``own`` counts the messages of this very name, ``messages`` those below it too, as
    ``per_second`` does. ``has_below`` says whether there are names below it.
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
    """The names of one level; ``is_cut``: there are more than were read."""

    below: str
    entries: list[MqttTreeEntry]
    is_cut: bool


class MqttTreeApi:
    """Asks brokers for messages, and the gateway of this server for what is retained."""

    def __init__(self, gateway: GatewayApi, queues: QueueApi) -> None:
        self._gateway = gateway
        self._queues = queues

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/mqtt-topics", "Tree of MQTT topic names", MqttTreeQuery, MqttTree, self.mqtt_tree
            )
        ]

    async def mqtt_tree(self, query: MqttTreeQuery) -> MqttTree:
        prefix = f"{query.below}/" if query.below else ""
        level = _Level(prefix)
        now_ms = time.time_ns() // 1_000_000
        await self._read_messages(level, now_ms - query.minutes * 60_000, now_ms)
        gateway = self._gateway.gateway
        if gateway is not None:
            await _add_retained(gateway, level)
        entries = [level.entry(name) for name in sorted(level.nodes)]
        level.is_cut = level.is_cut or len(entries) > ENTRIES_MAX
        return MqttTree(below=query.below, entries=entries[:ENTRIES_MAX], is_cut=level.is_cut)

    async def _read_messages(self, level: _Level, since_ms: int, now_ms: int) -> None:
        async with self._queues.admin() as admin:
            own = await own_topics(admin)
            topics = [name for name in await admin.topics() if kind_of(name, own) == "topic"]
        async with self._queues.consumer() as consumer:
            with trio.move_on_after(READ_WITHIN_S) as scope:
                for topic in topics:
                    queues = await consumer.queues(topic, wait_s=0)
                    begins = await consumer.offsets_for_time(queues, since_ms)
                    ends = await consumer.end_offsets(queues)
                    for queue in queues:
                        if level.read >= MESSAGES_MAX:
                            level.is_cut = True
                            return
                        begin = max(begins[queue], ends[queue] - QUEUE_MESSAGES_MAX)
                        is_part = begin > begins[queue]
                        level.is_cut = level.is_cut or is_part
                        await _read_queue(
                            consumer, queue, begin, ends[queue], level,
                            since_ms=None if is_part else since_ms, now_ms=now_ms,
                        )  # fmt: skip
            level.is_cut = level.is_cut or scope.cancelled_caught


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
    """Add the messages of a queue; where ``since_ms`` is None its first one begins the time."""
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
            return  # the name has wildcards: nothing can be retained there
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
    """The names below one, while they are being counted."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: dict[str, _Node] = {}
        self.read = 0
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
