"""Consumer and producer groups: their settings and their connected members.

Owns: request codes 200, 201, 203, 204, 207, 225, 300, 328, 343, 345, 352, 353. Must not touch: how
groups are kept (tables). Spec: RocketMQ AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from motelog.core.addresses import format_address
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.consumer_groups import Group, Member
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.errors import BrokerError
from motelog.core.remoting.fields import bool_field, text_field
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
    loads_as,
)
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import shown, topic_name_fault


class GroupAdmin:
    """Answers about groups."""

    def __init__(self, shared: Shared) -> None:
        self._groups = shared.tables.groups
        self._consumers = shared.tables.consumers
        self._producers = shared.tables.producers
        self._offsets = shared.tables.offsets
        self._clock = shared.clock

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._create_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._configs,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self._readable,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
        }

    def _create(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        group = loads_as(request.body, SubscriptionGroup, "subscription group")
        self._groups.put(group)
        return request.answer()

    def _create_list(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Create or change several groups: all of them, or none if one is refused."""
        groups = loads_as(request.body, _GroupListJson, "subscription groups").groupConfigList
        self._groups.put_all(groups)
        return request.answer()

    def _delete(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "groupName")
        self._groups.delete(name)
        if bool_field(request.ext, "cleanOffset"):
            self._offsets.forget_group(name)
        return request.answer()

    def _configs(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=msgspec.json.encode(self._groups.snapshot()))

    def _config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        # The proxy of RocketMQ 5 asks before its clients consume, so the group may be new.
        group = self._groups.find(text_field(request.ext, "group"))
        # Without null fields: the proxy would fail on them.
        return request.answer(body=dumps(msgspec.to_builtins(group)))

    def _readable(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Close a topic to a group or open it, if requested; answer whether it is open."""
        ext = request.ext
        group, topic = text_field(ext, "group"), text_field(ext, "topic")
        if "readable" in ext:
            self._groups.find(group)
            fault = topic_name_fault(topic)
            if fault is not None:
                raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
            self._groups.set_readable(group, topic, bool_field(ext, "readable"))
        is_open = self._groups.may_read(group, topic)
        return request.answer(body=dumps({"group": group, "topic": topic, "readable": is_open}))

    def _consumer_connections(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            text = f"the consumer group[{shown(name)[1:-1]}] not online"
            return request.answer(ResponseCode.CONSUMER_NOT_ONLINE, text)
        value = {
            "connectionSet": _connections(group.members.values()),
            "consumeFromWhere": group.from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": group.subscriptions,
        }
        return request.answer(body=msgspec.json.encode(value))

    def _producer_connections(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "producerGroup")
        group: Group[Connection] | None = self._producers.get(name)
        if group is None:
            text = f"the producer group[{shown(name)[1:-1]}] not exist"
            return request.answer(ResponseCode.SYSTEM_ERROR, text)
        value = {"connectionSet": _connections(group.members.values())}
        return request.answer(body=msgspec.json.encode(value))

    def _all_producers(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        # Heartbeats are dated by a monotonic clock; tools want the time of day.
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        data = {
            group.name: [
                {
                    "clientId": member.client_id,
                    "remoteIP": f"/{format_address(*member.owner.peer)}",
                    "language": member.language.name,
                    "version": member.version,
                    "lastUpdateTimestamp": member.last_seen_ms + ahead_ms,
                }
                for member in group.members.values()
            ]
            for group in self._producers.groups()
        }
        return request.answer(body=dumps({"data": data}))

    def _groups_of_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topic = text_field(request.ext, "topic")
        names = set(self._offsets.groups_of(topic))
        names |= {group.name for group in self._consumers.groups() if topic in group.subscriptions}
        return request.answer(body=msgspec.json.encode({"groupList": sorted(names)}))

    def _topics_of_group(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "group")
        topics = sorted(topic for topic, _ in self._offsets.topics_of(name))
        return request.answer(body=dumps({"topicList": topics}))

    def _subscription(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name, topic = text_field(request.ext, "group"), text_field(request.ext, "topic")
        group = self._consumers.get(name)
        found = None if group is None else group.subscriptions.get(topic)
        value = {"group": name, "topic": topic, "subscriptionData": found}
        return request.answer(body=msgspec.json.encode(value))


class _GroupListJson(msgspec.Struct):
    groupConfigList: list[SubscriptionGroup]


def _connections(members: Iterable[Member[Connection]]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": format_address(*member.owner.peer),
            "clientId": member.client_id,
            "language": member.language.name,
            "version": member.version,
        }
        for member in members
    ]
