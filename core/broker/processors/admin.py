"""Administration: topics, groups, statistics, single messages, as RocketMQ's tools ask for them.

Owns: request codes 12, 17, 21, 26, 28, 33, 43, 45, 200 to 204, 207, 208, 300, 315, 351,
352.
Must not touch: how topics, groups and offsets are kept. Spec: RocketMQ AdminBrokerProcessor.
In bodies keyed by a message queue, the key is its JSON object; ``dumps`` writes these bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.shown.runtime_info import RuntimeInfo
from motelog.core.broker.tables.consumer_groups import Group, Member
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.errors import BrokerError, RemotingDecodeError
from motelog.core.message import MessageQueue
from motelog.core.remoting.fields import bool_field, int32_field, int_field, text_field
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
    loads,
)
from motelog.core.remoting.server import Connection, Processor
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.disk.page_cache import read_all
from motelog.core.topic_names import GATEWAY_GROUP, GATEWAY_TOPICS, RETRY_PREFIX, shown

_UNIQUE_COUNT_MAX: Final = 32


class AdminProcessor:
    """Answers the tools."""

    def __init__(
        self,
        shared: Shared,
        *,
        properties: dict[str, str],
        runtime: RuntimeInfo,
        delay_offsets: Callable[[], dict[int, int]],
    ) -> None:
        self._reader = shared.store.reader
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._consumers = shared.tables.consumers
        self._producers = shared.tables.producers
        self._offsets = shared.tables.offsets
        self._cold = shared.api.cold_reads
        self._clock = shared.clock
        self._broker_name = shared.config.name
        self._stats = shared.stats
        self._properties = properties
        self._runtime = runtime
        self._delay_offsets = delay_offsets

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._topic_configs,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_BROKER_CONFIG: self._broker_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._cold.guard(self._runtime_info),
            RequestCode.QUERY_MESSAGE: self._cold.guard(self._query_message),
            RequestCode.VIEW_MESSAGE_BY_ID: self._cold.guard(self._view_message),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._all_delay_offsets,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._group_configs,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            RequestCode.GET_TOPIC_STATS_INFO: self._cold.guard(self._topic_stats),
            RequestCode.GET_CONSUME_STATS: self._cold.guard(self._consume_stats),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producer_connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats_data,
        }

    def _create_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = request.ext
        config = TopicConfig(
            topic_name=text_field(ext, "topic"),
            read_queue_nums=int32_field(ext, "readQueueNums"),
            write_queue_nums=int32_field(ext, "writeQueueNums"),
            perm=int32_field(ext, "perm"),
            topic_filter_type=ext.get("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=int32_field(ext, "topicSysFlag", 0),
            order=bool_field(ext, "order"),
        )
        name, now_ms = config.topic_name, self._clock.now_ms()
        if name in GATEWAY_TOPICS and ext.get("producerGroup") == GATEWAY_GROUP:
            self._topics.create_gateway_topic(name, config.write_queue_nums, now_ms)
        else:
            self._topics.put(config, now_ms)
        return request.answer()

    def _topic_configs(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = {"totalTopicNum": str(len(self._topics))}
        return request.answer(ext=ext, body=msgspec.json.encode(self._topics.snapshot()))

    def _topic_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        config = self._find_topic(text_field(request.ext, "topic"))
        return request.answer(body=msgspec.json.encode(config))

    def _broker_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        text = "".join(f"{name}={value}\n" for name, value in self._properties.items())
        version = msgspec.json.encode(self._topics.version).decode()
        return request.answer(ext={"version": version}, body=text.encode())

    def _runtime_info(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        table = self._runtime.table(may_wait=may_wait)
        return request.answer(body=msgspec.json.encode({"table": table}))

    def _view_message(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        offset = int_field(request.ext, "offset")
        return request.answer(body=self._reader.record_at(offset, may_wait=may_wait))

    def _query_message(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        only_unique = bool_field(request.ext, "_UNIQUE_KEY_QUERY")
        # RocketMQ has its own count (defaultQueryMaxNum) for lookups of unique ids.
        count_max = _UNIQUE_COUNT_MAX if only_unique else int32_field(request.ext, "maxNum")
        result = self._reader.query(
            text_field(request.ext, "topic"),
            text_field(request.ext, "key"),
            begin_ms=int_field(request.ext, "beginTimestamp"),
            end_ms=int_field(request.ext, "endTimestamp"),
            count_max=count_max,
            only_unique=only_unique,
            may_wait=may_wait,
        )
        ext = {
            "indexLastUpdateTimestamp": str(result.index_last_ms),
            "indexLastUpdatePhyoffset": str(result.index_last_offset),
        }
        if not result.records:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "no message has this key", ext)
        return request.answer(ext=ext, body=b"".join(result.records))

    def _all_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=msgspec.json.encode(self._offsets.snapshot()))

    def _all_delay_offsets(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=dumps({"offsetTable": self._delay_offsets()}))

    def _create_group(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        try:
            group = msgspec.convert(loads(request.body), SubscriptionGroup)
        except msgspec.ValidationError as exc:
            raise RemotingDecodeError(f"subscription group: {exc}") from exc
        self._groups.put(group, self._clock.now_ms())
        return request.answer()

    def _delete_group(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "groupName")
        self._groups.delete(name, self._clock.now_ms())
        if bool_field(request.ext, "cleanOffset"):
            self._offsets.forget_group(name)
        return request.answer()

    def _group_configs(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=msgspec.json.encode(self._groups.snapshot()))

    def _group_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "group")
        group = self._groups.get(name)
        if group is None:
            text = f"subscription group {shown(name)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        return request.answer(body=msgspec.json.encode(group))

    def _topic_stats(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        config = self._find_topic(text_field(request.ext, "topic"))
        queues = self._queues(config)
        ends = [(queue, self._end(queue)) for queue in queues]
        table = {
            queue: {
                "lastUpdateTimestamp": time_ms,
                "maxOffset": end,
                "minOffset": self._begin(queue),
            }
            for (queue, end), time_ms in zip(ends, self._times(ends, may_wait), strict=True)
        }
        put_tps = self._stats.put_rate(config.topic_name)
        return request.answer(body=dumps({"offsetTable": table, "topicPutTps": put_tps}))

    def _consume_stats(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        name = text_field(request.ext, "consumerGroup")
        topics = self._consumed_topics(request)
        consumed = [
            (queue, self._end(queue), offset)
            for topic in topics
            for queue, offset in self._consumed(name, topic)
        ]
        times = self._times(
            [(queue, min(offset, end)) for queue, end, offset in consumed], may_wait
        )
        table = {
            queue: {"brokerOffset": end, "consumerOffset": offset, "lastTimestamp": time_ms}
            for (queue, end, offset), time_ms in zip(consumed, times, strict=True)
        }
        consume_tps = sum(self._stats.get_rate(topic, name) for topic in topics)
        return request.answer(body=dumps({"consumeTps": consume_tps, "offsetTable": table}))

    def _consumed_topics(self, request: RemotingCommand) -> list[str]:
        """Return the topics that the request's group consumes; its retry topic is always there.

        If the request names a topic, the others are left out.
        """
        name = text_field(request.ext, "consumerGroup")
        wanted = request.ext.get("topic")
        topics = {topic for topic, _ in self._offsets.topics_of(name)}
        members = self._consumers.get(name)
        topics |= members.subscriptions.keys() if members is not None else set()
        if wanted:
            topics &= {wanted}
        return sorted(topics | {RETRY_PREFIX + name})

    def _consumed(self, name: str, topic: str) -> Iterator[tuple[MessageQueue, int]]:
        """Yield each queue of a topic and how far a group has consumed it."""
        config = self._topics.get(topic)
        for queue in () if config is None else self._queues(config):
            yield queue, self._offsets.query(name, topic, queue.queue_id) or 0

    def _consumer_connections(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            text = f"the consumer group {shown(name)[1:-1]} is not online"
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
            text = f"the producer group {shown(name)[1:-1]} is not online"
            return request.answer(ResponseCode.SYSTEM_ERROR, text)
        value = {"connectionSet": _connections(group.members.values())}
        return request.answer(body=msgspec.json.encode(value))

    def _groups_of_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topic = text_field(request.ext, "topic")
        names = set(self._offsets.groups_of(topic))
        names |= {group.name for group in self._consumers.groups() if topic in group.subscriptions}
        return request.answer(body=msgspec.json.encode({"groupList": sorted(names)}))

    def _stats_data(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name, key = text_field(request.ext, "statsName"), text_field(request.ext, "statsKey")
        data = self._stats.find(name, key)
        if data is None:
            text = f"The stats <{shown(name)[1:-1]}> <{shown(key)[1:-1]}> not exist"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        windows = {"statsMinute": data.minute, "statsHour": data.hour, "statsDay": data.day}
        return request.answer(body=msgspec.json.encode(windows))

    def _find_topic(self, name: str) -> TopicConfig:
        config = self._topics.get(name)
        if config is None:
            text = f"topic {shown(name)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        return config

    def _queues(self, config: TopicConfig) -> list[MessageQueue]:
        return [
            MessageQueue(config.topic_name, self._broker_name, queue_id)
            for queue_id in range(max(config.write_queue_nums, config.read_queue_nums))
        ]

    def _begin(self, queue: MessageQueue) -> int:
        return self._reader.min_offset(queue.topic, queue.queue_id)

    def _end(self, queue: MessageQueue) -> int:
        return self._reader.max_offset(queue.topic, queue.queue_id)

    def _times(self, ends: Iterable[tuple[MessageQueue, int]], may_wait: bool) -> list[int]:
        """Return when the message before each offset was stored; 0 if there is no such message."""
        return read_all(partial(self._time_before, may_wait=may_wait), ends)

    def _time_before(self, end: tuple[MessageQueue, int], *, may_wait: bool) -> int:
        queue, offset = end
        if offset <= self._begin(queue):
            return 0
        return self._reader.store_timestamp(
            queue.topic, queue.queue_id, offset - 1, may_wait=may_wait
        )


def _connections(members: Iterable[Member[Connection]]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": f"{member.owner.peer[0]}:{member.owner.peer[1]}",
            "clientId": member.client_id,
            "language": member.language.name,
            "version": member.version,
        }
        for member in members
    ]
