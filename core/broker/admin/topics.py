"""Topics: creating, changing, listing and measuring them.

Owns: request codes 17, 18, 21, 202, 215, 305, 351, the text form of attributes. Must not touch: how
topics are kept (tables.topics).
Spec: RocketMQ AdminBrokerProcessor, AttributeParser, AttributeUtil.

    attributes of 17    +message.type=FIFO,-message.type
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from motelog.core.broker.admin.queues import Queues
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError
from motelog.core.remoting.fields import bool_field, int32_field, text_field
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
    loads_as,
)
from motelog.core.remoting.pop_fields import RETRY_V1, RETRY_V2, retry_topic
from motelog.core.remoting.server import Connection, Processor
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.topic_names import (
    GATEWAY_GROUP,
    GATEWAY_TOPICS,
    SYSTEM_TOPICS,
    shown,
    topic_name_fault,
)

#: The attributes of a topic in RocketMQ 5, and the values allowed here: there are no batch queues,
#: no compaction and no retention time per topic.
_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}


class TopicAdmin:
    """Answers about topics."""

    def __init__(self, shared: Shared, queues: Queues) -> None:
        self._store = shared.store
        self._topics = shared.tables.topics
        self._offsets = shared.tables.offsets
        self._cold = shared.api.cold_reads
        self._clock = shared.clock
        self._stats = shared.stats
        self._queues = queues

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self._create_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._configs,
            RequestCode.GET_TOPIC_CONFIG: self._config,
            RequestCode.GET_TOPIC_STATS_INFO: self._cold.guard(self._stats_of),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
        }

    def _create(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = request.ext
        name, now_ms = text_field(ext, "topic"), self._clock.now_ms()
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=int32_field(ext, "readQueueNums"),
            write_queue_nums=int32_field(ext, "writeQueueNums"),
            perm=int32_field(ext, "perm"),
            topic_filter_type=ext.get("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=int32_field(ext, "topicSysFlag", 0),
            order=bool_field(ext, "order"),
            attributes=_changed(self._attributes(name), _changes(ext.get("attributes", ""))),
        )
        if name in GATEWAY_TOPICS and ext.get("producerGroup") == GATEWAY_GROUP:
            self._topics.create_gateway_topic(name, config.write_queue_nums, now_ms)
        else:
            self._topics.put(config, now_ms)
        return request.answer()

    def _create_list(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Create or change several topics: all of them, or none if one is refused."""
        configs = loads_as(request.body, _TopicListJson, "topics").topicConfigList
        wanted = [
            msgspec.structs.replace(
                config, attributes=_changed(self._attributes(config.topic_name), config.attributes)
            )
            for config in configs
        ]
        self._topics.put_all(wanted, self._clock.now_ms())
        return request.answer()

    def _delete(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Delete a topic: its messages, its groups' offsets in it, its settings.

        POP's retry topics of its groups are deleted too. The records stay in the log until it is
        cleaned, but cannot be read by topic.
        """
        name = text_field(request.ext, "topic")
        fault = topic_name_fault(name)
        if fault is not None:
            raise _invalid(fault)
        retries = [
            retry
            for group in self._offsets.groups_of(name)
            for retry in (retry_topic(name, group, kind) for kind in (RETRY_V1, RETRY_V2))
            if self._topics.get(retry) is not None
        ]
        for topic in (name, *retries):
            self._delete_one(topic)
        return request.answer()

    def _delete_one(self, name: str) -> None:
        ends = {
            queue_id: self._store.reader.max_offset(name, queue_id)
            for topic, queue_id in self._store.queues()
            if topic == name
        }
        self._topics.delete(name, ends, self._clock.now_ms())
        for queue_id, end in ends.items():
            self._store.hide_below(name, queue_id, end)
        self._offsets.forget_topic(name)

    def _attributes(self, name: str) -> dict[str, str]:
        known = self._topics.get(name)
        return {} if known is None else known.attributes

    def _configs(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = {"totalTopicNum": str(len(self._topics))}
        return request.answer(ext=ext, body=msgspec.json.encode(self._topics.snapshot()))

    def _config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        config = self._queues.find_topic(text_field(request.ext, "topic"))
        return request.answer(body=msgspec.json.encode(config))

    def _stats_of(self, request: RemotingCommand, _: Connection, may_wait: bool) -> RemotingCommand:
        config = self._queues.find_topic(text_field(request.ext, "topic"))
        ends = [(queue, self._queues.end(queue)) for queue in self._queues.of(config)]
        times = self._queues.times(ends, may_wait=may_wait)
        table = {
            queue: {
                "lastUpdateTimestamp": time_ms,
                "maxOffset": end,
                "minOffset": self._queues.begin(queue),
            }
            for (queue, end), time_ms in zip(ends, times, strict=True)
        }
        put_tps = self._stats.put_rate(config.topic_name)
        return request.answer(body=dumps({"offsetTable": table, "topicPutTps": put_tps}))

    def _system_topics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        names = {name for name in self._topics.table() if self._topics.is_system(name)}
        return request.answer(body=dumps({"topicList": sorted(names | SYSTEM_TOPICS)}))


class _TopicListJson(msgspec.Struct):
    topicConfigList: list[TopicConfig]


def _changes(text: str) -> dict[str, str]:
    """Return the changes in the text form: ``+name`` to its value, ``-name`` to an empty text."""
    changes: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = item.partition("=")
        if name[:1] not in ("+", "-") or (name.startswith("+") and not value):
            raise _invalid(f"the attribute {shown(item)[1:-1]} is neither +name=value nor -name")
        if name in changes:
            raise _invalid(f"the attribute {shown(name)[1:-1]} is given twice")
        changes[name] = value
    return changes


def _changed(known: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes with the changes made; a name without a sign has been set before."""
    result = dict(known)
    for key, value in changes.items():
        name = key.removeprefix("+").removeprefix("-")
        if name not in _ATTRIBUTES:
            raise _invalid(f"{shown(name)[1:-1]} is not an attribute that this broker keeps")
        if key.startswith("-"):
            if name not in known:
                raise _invalid(f"the attribute {name} cannot be removed: it is not set")
            del result[name]
            continue
        if value not in _ATTRIBUTES[name]:
            text = f"{name} is one of {', '.join(_ATTRIBUTES[name])}, not {shown(value)[1:-1]}"
            raise _invalid(text)
        result[name] = value
    return result


def _invalid(text: str) -> BrokerError:
    return BrokerError(ResponseCode.INVALID_PARAMETER, text)
