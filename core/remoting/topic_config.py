"""A topic as broker and name server store it: queues, permission, version of the table.

Owns: TopicConfig and DataVersion in RocketMQ's JSON shapes. Must not touch: sockets, files, clocks.
Spec: RocketMQ TopicConfig, DataVersion. Rules for names: core.topic_names.
"""

from __future__ import annotations

from typing import Final

import msgspec

from motelog.core.remoting.codes import Permission
from motelog.core.remoting.fields import Int64

QUEUE_COUNT_MAX: Final = 4096
# Plain integers, used for each request: members of an enumeration are ten times slower.
_READ: Final = int(Permission.READ)
_WRITE: Final = int(Permission.WRITE)
TOPIC_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class TopicConfig(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One topic of one broker, as in topics.json and the registration body."""

    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = Permission.READ | Permission.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}
    """Further attributes of a topic in RocketMQ 5, such as ``message.type``."""

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & _READ)

    @property
    def is_writable(self) -> bool:
        """Whether messages may be sent to it; some queues of a shrinking topic are read-only."""
        return bool(self.perm & _WRITE) and self.write_queue_nums > 0

    @property
    def is_inherited(self) -> bool:
        """Whether unknown topics may be created with this one's settings."""
        return bool(self.perm & Permission.INHERIT)


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The version of a table's state; each change increments the counter."""

    timestamp: Int64 = 0
    counter: Int64 = 0
    state_version: Int64 = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1, self.state_version)
