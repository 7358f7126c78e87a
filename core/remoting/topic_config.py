"""What a topic is to broker and name server alike: queues, permission, version of the table.

Owns: TopicConfig and DataVersion in RocketMQ's JSON shapes, the rules for names of topics and
groups, the names of the topics that the system keeps for itself. Must not touch: sockets, files,
clocks. Spec: RocketMQ TopicConfig, DataVersion, TopicValidator.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from motelog.core.remoting.codes import Permission
from motelog.core.remoting.fields import Int64

TOPIC_BYTES_MAX: Final = 127
# Retry and dead-letter topics carry a group name behind their prefix.
GROUP_TOPIC_BYTES_MAX: Final = 255
GROUP_BYTES_MAX: Final = 255
QUEUE_COUNT_MAX: Final = 4096
TOPIC_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
DEFAULT_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_motelog_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

# Only the broker itself appends to these.
TOPICS_CLOSED_TO_SENDERS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class TopicConfig(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One topic of one broker, as topics.json and the registration body hold it."""

    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = Permission.READ | Permission.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & Permission.READ)

    @property
    def is_writable(self) -> bool:
        """Whether messages may be sent to it; a topic that shrinks has queues to read only."""
        return bool(self.perm & Permission.WRITE) and self.write_queue_nums > 0

    @property
    def is_inherited(self) -> bool:
        """Whether unknown topics may be created after this one."""
        return bool(self.perm & Permission.INHERIT)


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Which state of a table this is; a new counter with each change."""

    timestamp: Int64 = 0
    counter: Int64 = 0
    state_version: Int64 = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1, self.state_version)


def topic_name_fault(name: str) -> str | None:
    """Return what is wrong with a topic name, or None."""
    if not name:
        return "the topic name is empty"
    bytes_max = GROUP_TOPIC_BYTES_MAX if is_group_topic(name) else TOPIC_BYTES_MAX
    if len(name) > bytes_max:
        return f"the topic name has {len(name)} characters, at most {bytes_max} are allowed"
    if not _NAME.fullmatch(name):
        return f"the topic name {shown(name)} holds characters other than %|a-zA-Z0-9_-"
    return None


def group_name_fault(name: str) -> str | None:
    """Return what is wrong with a consumer or producer group name, or None."""
    if not name:
        return "the group name is empty"
    # The retry topic of the group must fit too.
    bytes_max = GROUP_BYTES_MAX - len(RETRY_PREFIX)
    if len(name) > bytes_max:
        return f"the group name has {len(name)} characters, at most {bytes_max} are allowed"
    if not _NAME.fullmatch(name):
        return f"the group name {shown(name)} holds characters other than %|a-zA-Z0-9_-"
    return None


def is_group_topic(name: str) -> bool:
    """Return whether the topic belongs to a consumer group: its retries or its dead letters."""
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def shown(name: str) -> str:
    """Return a peer's text fit for a log line or a remark: escaped and cut."""
    return ascii(name if len(name) <= 64 else name[:64] + "...")
