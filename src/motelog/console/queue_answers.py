"""The admin API's answers on topics, consumer groups and messages.

Owns: their members. Must not touch: where the values come from (``queues``).
Times are in milliseconds since 1970. A list has pages: the next page begins after ``after``,
which is null at the end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["topic", "retry", "dead letters", "system"]


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class TopicEntry(_Answer, frozen=True, kw_only=True):
    """A topic; ``last_ms`` is when its last message was stored, null if it has none."""

    topic: str
    kind: Kind
    queues: int
    messages: int
    last_ms: int | None


class TopicPage(_Answer, frozen=True, kw_only=True):
    """Topics by name."""

    topics: list[TopicEntry]
    after: str | None


class TopicQueue(_Answer, frozen=True, kw_only=True):
    """A queue with its begin and end offsets."""

    broker: str
    queue_id: int
    begin_offset: int
    end_offset: int
    last_ms: int | None


class TopicOnBroker(_Answer, frozen=True, kw_only=True):
    """A topic's settings on one broker; ``permission`` is the sum of 4 (read) and 2 (write)."""

    broker: str
    read_queues: int
    write_queues: int
    permission: int
    is_ordered: bool


class Topic(_Answer, frozen=True, kw_only=True):
    """A topic: its settings, its queues, and the groups that consume it."""

    topic: str
    kind: Kind
    brokers: list[TopicOnBroker]
    queues: list[TopicQueue]
    groups: list[str]


class GroupEntry(_Answer, frozen=True, kw_only=True):
    """A consumer group: its members, and its lag in messages and in time.

    ``behind_ms`` is null if no message is waiting, or if the lag is not known.
    """

    group: str
    members: int
    messages_waiting: int
    behind_ms: int | None


class GroupPage(_Answer, frozen=True, kw_only=True):
    """Consumer groups by name."""

    groups: list[GroupEntry]
    after: str | None


class Member(_Answer, frozen=True, kw_only=True):
    """A connected consumer."""

    client_id: str
    address: str
    language: str


class GroupQueue(_Answer, frozen=True, kw_only=True):
    """A group's progress in a queue."""

    topic: str
    broker: str
    queue_id: int
    committed_offset: int
    end_offset: int
    behind_ms: int | None


class Group(GroupEntry, frozen=True, kw_only=True):
    """A consumer group with its members and queues."""

    consumers: list[Member]
    queues: list[GroupQueue]


class QueueMove(_Answer, frozen=True, kw_only=True):
    """A group's new offset in a queue; ``before`` is null if it had committed none."""

    broker: str
    queue_id: int
    before: int | None
    after: int


class Reset(_Answer, frozen=True, kw_only=True):
    """How many messages a group consumes again or skips."""

    group: str
    topic: str
    to: str
    again: int
    passed_over: int
    queues: list[QueueMove]


class Message(_Answer, frozen=True, kw_only=True):
    """A message; ``payload`` is in base64, cut at 64 KiB.

    ``mqtt_topic`` is null for a message that was not published by an MQTT client.
    """

    topic: str
    broker: str | None
    queue_id: int
    queue_offset: int
    message_id: str
    offset_id: str
    mqtt_topic: str | None
    tag: str | None
    keys: list[str]
    stored_ms: int
    born_ms: int
    born_host: str
    retries: int
    properties: dict[str, str]
    payload_bytes: int
    payload: bytes


class MessageList(_Answer, frozen=True, kw_only=True):
    """Messages in the requested order."""

    messages: list[Message]


class DeadLetterEntry(_Answer, frozen=True, kw_only=True):
    """A consumer group with dead letters; ``waiting`` of them have not been resent."""

    group: str
    messages: int
    waiting: int
    last_ms: int | None


class DeadLetterPage(_Answer, frozen=True, kw_only=True):
    """Consumer groups with dead letters, by name."""

    groups: list[DeadLetterEntry]
    after: str | None


class Resent(_Answer, frozen=True, kw_only=True):
    """How many dead letters were resent."""

    group: str
    sent: int
