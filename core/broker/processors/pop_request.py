"""Requests of POP: the fields of their headers, read and checked.

Owns: Pop, PopRequests: the checks of requests of POP that do not need the store. Must not touch:
the store, which pops wait, their answers (pop). Spec: RocketMQ PopMessageProcessor,
NotificationProcessor, PeekMessageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from motelog.core.broker.pop.records import CHECKPOINT_MESSAGES_MAX
from motelog.core.broker.processors.pull_request import PullRequests
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.order_info import ATTEMPT_CHARACTERS_MAX, QueueKey
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.errors import BrokerError
from motelog.core.filter.sql_filter import SqlFilter
from motelog.core.remoting.fields import bool_field, int32_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.pop_fields import RETRY_V1, RETRY_V2, retry_topic
from motelog.core.remoting.server import Connection
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.topic_names import REVIVE_PREFIX, shown

#: The longest wait of a message in RocketMQ's timer.
INVISIBLE_MS_MAX: Final = 3 * 86_400_000
_FROM_MAX: Final = 1


@dataclass(slots=True, eq=False)
class Pop:
    """One pop, or another request that reads the same queues."""

    request: RemotingCommand
    connection: Connection
    group: SubscriptionGroup
    config: TopicConfig
    # -1: all queues.
    queue_id: int
    count_max: int = 1
    invisible_ms: int = 0
    # How long the client is willing to wait; 0: not at all.
    hold_ms: int = 0
    is_from_end: bool = False
    is_order: bool = False
    attempt: str | None = None
    tag_codes: frozenset[int] | None = None
    sql_filter: SqlFilter | None = None
    # The deadline, once it is held.
    deadline_ms: int = 0

    @property
    def topic(self) -> str:
        return self.config.topic_name

    def queue_key(self, topic: str, queue_id: int) -> QueueKey:
        return topic, self.group.group_name, queue_id


class PopRequests:
    """Accepts requests of POP, or refuses them with BrokerError."""

    def __init__(self, shared: Shared) -> None:
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._filters = PullRequests(shared)

    def pop(self, request: RemotingCommand, connection: Connection) -> Pop:
        """Return the pop that a request asks for."""
        ext = request.ext
        pop = self.place(request, connection)
        pop.count_max = self._count(ext)
        pop.invisible_ms = invisible_field(ext)
        pop.hold_ms = int_field(ext, "pollTime")
        pop.is_from_end = int32_field(ext, "initMode") == _FROM_MAX
        pop.is_order = bool_field(ext, "order")
        pop.attempt = _attempt(ext)
        pop.tag_codes, pop.sql_filter = self._filters.parse_filter(
            ext.get("expType"), ext.get("exp") or "*"
        )
        return pop

    def notification(self, request: RemotingCommand, connection: Connection) -> Pop:
        """Return the place of a request that asks whether there is anything to pop."""
        pop = self.place(request, connection)
        pop.hold_ms = int_field(request.ext, "pollTime")
        pop.is_order = bool_field(request.ext, "order")
        pop.attempt = _attempt(request.ext)
        return pop

    def peek(self, request: RemotingCommand, connection: Connection) -> Pop:
        """Return the pop of a request that does not take the messages into work."""
        pop = self.place(request, connection)
        pop.count_max = self._count(request.ext)
        return pop

    def sources(self, pop: Pop) -> list[TopicConfig]:
        """Return the group's existing retry topics for the topic."""
        if pop.is_order:
            return []
        names = [retry_topic(pop.topic, pop.group.group_name, k) for k in (RETRY_V1, RETRY_V2)]
        return [config for name in names if (config := self._topics.get(name)) is not None]

    def topic_queue(self, ext: dict[str, str]) -> tuple[str, int]:
        """Return the queue of a message in work; BrokerError if there is no such queue."""
        topic, queue_id = text_field(ext, "topic"), int32_field(ext, "queueId")
        config = self.topic(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            text = f"queue id {queue_id} of {topic} is illegal, it has {config.read_queue_nums}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        return topic, queue_id

    def topic(self, name: str) -> TopicConfig:
        """Return a topic; BrokerError if it does not exist."""
        config = self._topics.get(name)
        if config is None:
            text = f"topic {shown(name)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        return config

    def place(self, request: RemotingCommand, connection: Connection) -> Pop:
        """Return the place where a request looks."""
        ext = request.ext
        group_name = text_field(ext, "consumerGroup")
        name = text_field(ext, "topic")
        queue_id = int32_field(ext, "queueId")
        config = self.topic(name)
        if not config.is_readable or name.startswith(REVIVE_PREFIX):
            raise BrokerError(ResponseCode.NO_PERMISSION, f"topic {name} is not readable")
        if queue_id >= config.read_queue_nums:
            text = f"queue id {queue_id} of {name} is illegal, it has {config.read_queue_nums}"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        group = self._groups.find(group_name)
        if not group.consume_enable:
            text = f"subscription group {group_name} may not consume"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        if not self._groups.may_read(group_name, name):
            text = f"the consumer group[{group_name}] is forbidden for topic[{name}]"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        fault = self._topics.name_fault(retry_topic(name, group_name))
        if fault is not None:
            text = f"there cannot be a topic for retries of {group_name} in {name}: {fault}"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        return Pop(request, connection, group, config, max(queue_id, -1))

    @staticmethod
    def _count(ext: dict[str, str]) -> int:
        count = int32_field(ext, "maxMsgNums")
        if count > CHECKPOINT_MESSAGES_MAX:
            text = f"a pop of {count} messages: {CHECKPOINT_MESSAGES_MAX} are allowed"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        return max(1, count)


def invisible_field(ext: dict[str, str]) -> int:
    """Return the requested invisible time; BrokerError if it is too long."""
    invisible_ms = int_field(ext, "invisibleTime")
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        text = f"invisibleTime is {invisible_ms} ms, 0 to {INVISIBLE_MS_MAX} are allowed"
        raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
    return invisible_ms


def _attempt(ext: dict[str, str]) -> str | None:
    attempt = ext.get("attemptId")
    if attempt is not None and len(attempt) > ATTEMPT_CHARACTERS_MAX:
        text = f"the attempt id has {len(attempt)} characters"
        raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
    return attempt or None
