"""Subscription groups: what each consumer group may do and how often it retries.

Owns: the group table, its version, creation at first use. Must not touch: files, sockets, clocks.
Spec: RocketMQ SubscriptionGroupConfig, SubscriptionGroupManager. The connected members are in
consumer_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.fields import INT32, INT64
from motelog.core.remoting.topic_config import QUEUE_COUNT_MAX, DataVersion
from motelog.core.topic_names import group_name_fault


class SubscriptionGroup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One group, as subscriptionGroup.json holds it."""

    group_name: str
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


class SubscriptionGroups:
    """The groups of one broker; ``listeners`` are called when one is new, changed or gone."""

    def __init__(self, *, auto_create: bool, groups_max: int) -> None:
        self._auto_create = auto_create
        self._groups_max = groups_max
        self._groups: dict[str, SubscriptionGroup] = {}
        self.version = DataVersion()
        self.is_dirty = False
        self.listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._groups.get(name)

    def find(self, name: str, now_ms: int) -> SubscriptionGroup:
        """Return the group, created if allowed; else BrokerError(SUBSCRIPTION_GROUP_NOT_EXIST)."""
        group = self._groups.get(name)
        if group is not None:
            return group
        if not self._auto_create:
            text = f"subscription group {ascii(name)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        return self.put(SubscriptionGroup(group_name=name), now_ms)

    def put(self, group: SubscriptionGroup, now_ms: int) -> SubscriptionGroup:
        """Create or replace a group; BrokerError if its name is refused or there are too many."""
        fault = group_name_fault(group.group_name)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        if group != _in_bounds(group):
            text = (
                f"retryQueueNums is 0 to {QUEUE_COUNT_MAX}, retryMaxTimes a number of 32 bits, "
                "brokerId and whichBrokerWhenConsumeSlowly are of 64"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        if group.group_name not in self._groups and len(self._groups) >= self._groups_max:
            text = f"the broker has {self._groups_max} groups, the most it is configured for"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        self._groups[group.group_name] = group
        self._changed(now_ms)
        return group

    def delete(self, name: str, now_ms: int) -> None:
        """Forget a group; without effect when it does not exist."""
        if self._groups.pop(name, None) is not None:
            self._changed(now_ms)

    def snapshot(self) -> dict[str, Any]:
        """Return the content of subscriptionGroup.json; a copy, fit to be encoded in a thread."""
        return {"dataVersion": self.version, "subscriptionGroupTable": dict(self._groups)}

    def load(self, content: Mapping[str, Any]) -> None:
        """Load the content of subscriptionGroup.json; msgspec.ValidationError if it is not that."""
        version = msgspec.convert(content.get("dataVersion", {}), DataVersion)
        table = content.get("subscriptionGroupTable", {})
        groups = msgspec.convert(table, dict[str, SubscriptionGroup])
        self._groups = {name: _in_bounds(group) for name, group in groups.items()}
        self.version = version

    def _changed(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        self.is_dirty = True
        for listener in self.listeners:
            listener()


def _in_bounds(group: SubscriptionGroup) -> SubscriptionGroup:
    """Return the group with its numbers brought into bounds; without a retry queue none retries."""
    return msgspec.structs.replace(
        group,
        retry_queue_nums=_nearest(group.retry_queue_nums, range(QUEUE_COUNT_MAX + 1)),
        retry_max_times=_nearest(group.retry_max_times, INT32),
        broker_id=_nearest(group.broker_id, INT64),
        which_broker_when_consume_slowly=_nearest(group.which_broker_when_consume_slowly, INT64),
    )


def _nearest(value: int, values: range) -> int:
    return max(values.start, min(value, values.stop - 1))
