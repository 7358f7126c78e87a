"""Subscription groups: the rights of each consumer group and how often it retries.

Owns: the group table, topics that are closed to a group, their version, creation at first use.
Must not touch: files, sockets. The clock is only read for a change.
Spec: RocketMQ SubscriptionGroupConfig, SubscriptionGroupManager. The connected members are in
consumer_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from motelog.core.clock import Clock
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import Permission, ResponseCode
from motelog.core.remoting.fields import INT32, INT64, Int32
from motelog.core.remoting.topic_config import QUEUE_COUNT_MAX, DataVersion
from motelog.core.topic_names import group_name_fault, is_lmq, shown

#: The most bytes of JSON that a group may have besides its numbers and switches.
EXTRA_BYTES_MAX: Final = 16_384

#: RocketMQ 5's name for the default delays between retries of a group.
RETRY_POLICY: Final[dict[str, Any]] = {"type": "CUSTOMIZED"}


class SubscriptionGroup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One group, as subscriptionGroup.json holds it.

    The fields that RocketMQ 5 has added are kept, and returned to clients that ask for them.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] | None = msgspec.field(default_factory=RETRY_POLICY.copy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class SubscriptionGroups:
    """The groups of one broker; ``listeners`` are called when one is new, changed or deleted."""

    def __init__(
        self, *, auto_create: bool, groups_max: int, clock: Clock, has_lmq: bool = False
    ) -> None:
        self._clock = clock
        self._has_lmq = has_lmq
        self._auto_create = auto_create
        self._groups_max = groups_max
        self._groups: dict[str, SubscriptionGroup] = {}
        # RocketMQ's forbiddenTable: for each group the topics, with bits of what is forbidden.
        self._forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion()
        self.is_dirty = False
        self.listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._groups)

    def allow_creation(self, is_on: bool) -> None:
        """Set whether groups are created at their first request."""
        self._auto_create = is_on

    def get(self, name: str) -> SubscriptionGroup | None:
        group = self._groups.get(name)
        if group is None and self._has_lmq and is_lmq(name):
            # There is one for each MQTT client: they exist without being kept, as in RocketMQ.
            return SubscriptionGroup(group_name=name)
        return group

    def find(self, name: str) -> SubscriptionGroup:
        """Return the group, created if allowed; else BrokerError(SUBSCRIPTION_GROUP_NOT_EXIST)."""
        group = self._groups.get(name) or self.get(name)
        if group is not None:
            return group
        if not self._auto_create:
            text = f"subscription group {ascii(name)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        return self.put(SubscriptionGroup(group_name=name))

    def put(self, group: SubscriptionGroup) -> SubscriptionGroup:
        """Create or replace a group; BrokerError if its name is refused or there are too many."""
        self.put_all([group])
        return group

    def put_all(self, groups: Sequence[SubscriptionGroup]) -> None:
        """Create or replace groups; BrokerError if one is refused, and then none is changed."""
        for group in groups:
            _check(group)
        new = {group.group_name for group in groups} - self._groups.keys()
        if new and len(self._groups) + len(new) > self._groups_max:
            text = f"the broker has {self._groups_max} groups, the configured maximum"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        for group in groups:
            self._groups[group.group_name] = group
        self._changed()

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether the topic is open to the group."""
        if not self._forbidden:
            return True
        return not self._forbidden.get(group, {}).get(topic, 0) & Permission.READ

    def set_readable(self, group: str, topic: str, is_on: bool) -> None:
        """Close a topic to a group, or open it; BrokerError if there are too many."""
        closed = self._forbidden.get(group, {})
        if is_on == self.may_read(group, topic):
            return
        if not is_on and sum(map(len, self._forbidden.values())) >= self._groups_max:
            text = f"{self._groups_max} topics are closed to groups, the maximum"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        bits = closed.get(topic, 0) ^ Permission.READ
        changed = {name: kept for name, kept in (closed | {topic: bits}).items() if kept}
        self._forbidden = {**self._forbidden, group: changed}
        if not changed:
            del self._forbidden[group]
        self._changed()

    def names(self) -> list[str]:
        return list(self._groups)

    def delete(self, name: str) -> None:
        """Forget a group; no effect if it does not exist."""
        self._forbidden.pop(name, None)
        if self._groups.pop(name, None) is not None:
            self._changed()

    def snapshot(self) -> dict[str, Any]:
        """Return the content of subscriptionGroup.json; a copy, which a thread may encode."""
        return {
            "dataVersion": self.version,
            "forbiddenTable": {group: dict(topics) for group, topics in self._forbidden.items()},
            "subscriptionGroupTable": dict(self._groups),
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Load the content of subscriptionGroup.json; msgspec.ValidationError if it is invalid."""
        version = msgspec.convert(content.get("dataVersion", {}), DataVersion)
        table = content.get("subscriptionGroupTable", {})
        groups = msgspec.convert(table, dict[str, SubscriptionGroup])
        for name, group in groups.items():
            if name != group.group_name:
                raise ValueError(f"key and groupName differ: {shown(name)}")
        forbidden = msgspec.convert(content.get("forbiddenTable", {}), dict[str, dict[str, Int32]])
        self._groups = {name: _in_bounds(group) for name, group in groups.items()}
        self._forbidden = forbidden
        self.version = version

    def _changed(self) -> None:
        self.version = self.version.next(self._clock.now_ms())
        self.is_dirty = True
        for listener in self.listeners:
            listener()


def _check(group: SubscriptionGroup) -> None:
    fault = group_name_fault(group.group_name)
    if fault is not None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
    if group != _in_bounds(group):
        text = (
            f"retryQueueNums is 0 to {QUEUE_COUNT_MAX}, retryMaxTimes, groupSysFlag and "
            "consumeTimeoutMinute are numbers of 32 bits, brokerId and "
            f"whichBrokerWhenConsumeSlowly are of 64, other members have at most {EXTRA_BYTES_MAX}"
            " bytes"
        )
        raise BrokerError(ResponseCode.SYSTEM_ERROR, text)


def _in_bounds(group: SubscriptionGroup) -> SubscriptionGroup:
    """Return the group with its numbers put into bounds; no retries without a retry queue."""
    return msgspec.structs.replace(
        group,
        retry_queue_nums=_nearest(group.retry_queue_nums, range(QUEUE_COUNT_MAX + 1)),
        retry_max_times=_nearest(group.retry_max_times, INT32),
        broker_id=_nearest(group.broker_id, INT64),
        which_broker_when_consume_slowly=_nearest(group.which_broker_when_consume_slowly, INT64),
        group_sys_flag=_nearest(group.group_sys_flag, INT32),
        consume_timeout_minute=_nearest(group.consume_timeout_minute, INT32),
        **({} if _is_small(group) else _NO_EXTRAS),
    )


_NO_EXTRAS: Final[dict[str, Any]] = {
    "group_retry_policy": RETRY_POLICY,
    "subscription_data_set": None,
    "attributes": {},
}


def _is_small(group: SubscriptionGroup) -> bool:
    """Return whether a group's fields of variable size are small and can be encoded."""
    extras = (group.group_retry_policy, group.subscription_data_set, group.attributes)
    if not any(extras):
        return True
    try:
        return len(msgspec.json.encode(extras)) <= EXTRA_BYTES_MAX
    except (OverflowError, msgspec.MsgspecError):
        return False


def _nearest(value: int, values: range) -> int:
    return max(values.start, min(value, values.stop - 1))
