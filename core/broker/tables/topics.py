"""Topics of one broker: their queues and permission, created by hand or at the first message.

Owns: the topic table, its version, the rules of auto-creation, the system's own topics.
Must not touch: files, sockets, clocks; time enters as ``now_ms``.
Spec: RocketMQ TopicConfigManager, TopicValidator.

    unknown topic -> default topic exists, has INHERIT -> min(client's wish, default's write queues)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from motelog.core.errors import BrokerError, ConfigError
from motelog.core.remoting.codes import Permission, ResponseCode
from motelog.core.remoting.topic_config import (
    QUEUE_COUNT_MAX,
    TOPIC_FILTER_TYPES,
    DataVersion,
    TopicConfig,
)
from motelog.core.topic_names import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    GATEWAY_TOPICS,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TOPIC_BYTES_MAX,
    TOPICS_CLOSED_TO_SENDERS,
    TRANS_CHECK_MAX_TOPIC,
    group_name_fault,
    is_group_topic,
    is_lmq,
    shown,
    topic_name_fault,
)

_READ_WRITE = int(Permission.READ | Permission.WRITE)
_TEMPLATE = _READ_WRITE | int(Permission.INHERIT)
SCHEDULE_LEVELS = 18
# As many as RocketMQ has; it can read fewer queues, but not more.
REVIVE_QUEUES = 8
# The limit for a folder of RocketMQ, which has no limit itself: as many as the store has queue ids.
_KEPT_QUEUES_MAX = 65_536


class TopicTable:
    """The topics of one broker; ``listeners`` get the name of each that is new or changed."""

    def __init__(
        self,
        *,
        broker_name: str,
        cluster: str,
        default_queue_count: int,
        auto_create: bool,
        topics_max: int,
        has_lmq: bool = False,
        is_copied: bool = False,
    ) -> None:
        self._has_lmq = has_lmq
        # Whether slaves may copy the log, RocketMQ 4's among them.
        self._is_copied = is_copied
        self._topics: dict[str, TopicConfig] = {}
        self._auto_create = auto_create
        self._topics_max = topics_max
        #: Deleted topics whose records may still be in the log: queue id -> its end then.
        self.deleted: dict[str, dict[int, int]] = {}
        self.version = DataVersion()
        self.is_dirty = False
        self.listeners: list[Callable[[str], None]] = []
        self._system = _system_topics(broker_name, cluster, default_queue_count)
        self._template = self._system[DEFAULT_TOPIC]
        if not auto_create:
            del self._system[DEFAULT_TOPIC]
        self._topics.update(self._system)

    def __len__(self) -> int:
        return len(self._topics)

    def allow_creation(self, is_on: bool, now_ms: int) -> None:
        """Set whether topics are created at their first message: adds or removes the template."""
        if is_on == (DEFAULT_TOPIC in self._topics):
            return
        if is_on:
            self._system[DEFAULT_TOPIC] = self._topics[DEFAULT_TOPIC] = self._template
        else:
            self._system.pop(DEFAULT_TOPIC, None)
            del self._topics[DEFAULT_TOPIC]
        self._changed(DEFAULT_TOPIC, now_ms)

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic's settings; a light queue can be read, but not written to by name."""
        config = self._topics.get(name)
        if config is None and self._has_lmq and is_lmq(name):
            return TopicConfig(
                topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=int(Permission.READ)
            )
        return config

    def table(self) -> Mapping[str, TopicConfig]:
        """Return all topics, including the system's; a view, not to be changed."""
        return self._topics

    def is_system(self, name: str) -> bool:
        """Return whether the topic is the system's own: not for devices, not listed to users."""
        return name in self._system or name in TOPICS_CLOSED_TO_SENDERS

    def user_topics(self) -> list[str]:
        """Return the topics that hold users' messages, in the order of creation."""
        return [n for n in self._topics if not self.is_system(n) and not is_group_topic(n)]

    def name_fault(self, name: str) -> str | None:
        """Return why no topic may have this name, or None.

        RocketMQ 4 has no records of topics above 127 bytes, which only those of groups may have: a
        slave would stop at the first one.
        """
        fault = topic_name_fault(name)
        if fault is None and self._is_copied and len(name) > TOPIC_BYTES_MAX:
            return (
                f"the topic name {shown(name)} has {len(name)} bytes, and slaves of RocketMQ 4,"
                f" which may copy this broker's log (replicate), read at most {TOPIC_BYTES_MAX}:"
                " choose a shorter name for the consumer group"
            )
        return fault

    def put(self, config: TopicConfig, now_ms: int) -> TopicConfig:
        """Create or replace a topic; BrokerError if its name or queue counts are refused."""
        self._check(config)
        return self._put(config, now_ms)

    def put_all(self, configs: Sequence[TopicConfig], now_ms: int) -> None:
        """Create or replace topics; BrokerError if one is refused, and then none is changed."""
        for config in configs:
            self._check(config)
        new = {config.topic_name for config in configs} - self._topics.keys()
        self._check_room(len(new))
        for config in configs:
            self._put(config, now_ms)

    def _check(self, config: TopicConfig) -> None:
        fault = self.name_fault(config.topic_name)
        if fault is not None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        if self.is_system(config.topic_name):
            text = f"the topic {config.topic_name} belongs to the system"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        _check_count(config.read_queue_nums)
        _check_count(config.write_queue_nums)
        if not 0 <= config.perm <= _TEMPLATE:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"perm is {config.perm}, not 0 to 7")
        if config.topic_filter_type not in TOPIC_FILTER_TYPES:
            text = f"the topic filter type is not one of {', '.join(TOPIC_FILTER_TYPES)}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)

    def _check_room(self, new_count: int) -> None:
        if new_count and len(self._topics) + new_count > self._topics_max:
            text = f"the broker has {self._topics_max} topics, the configured maximum"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)

    def delete(self, name: str, ends: Mapping[int, int], now_ms: int) -> None:
        """Forget a topic whose queues end at ``ends``; BrokerError if it is the system's.

        One write of the file does all of it: messages below the ends stay deleted, even after a
        crash, until the log has no record of them any more (``note_deleted``).
        """
        if self.is_system(name):
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"the topic {name} belongs to the system"
            )
        known = self._topics.pop(name, None)
        hidden = self.deleted.get(name, {}) | {q: end for q, end in ends.items() if end > 0}
        if hidden:
            self.deleted[name] = hidden
        if known is not None or hidden:
            self._changed(name, now_ms)

    def note_deleted(self, name: str, queue_id: int, end: int) -> None:
        """Note below which offset a queue is deleted; 0 if the log has no such records any more."""
        queues = self.deleted[name]
        if queues[queue_id] == end:
            return
        queues[queue_id] = end
        if not end:
            del queues[queue_id]
        if not queues:
            del self.deleted[name]
        self.is_dirty = True

    def create_for_message(
        self, name: str, default_topic: str, client_queue_count: int, now_ms: int
    ) -> TopicConfig:
        """Return the topic; a new one is created with the settings of ``default_topic``.

        BrokerError(TOPIC_NOT_EXIST) if that is not allowed, INVALID_PARAMETER for a bad name.
        """
        known = self._topics.get(name)
        if known is not None:
            return known
        fault = topic_name_fault(name)
        if fault is not None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        if name.startswith(RETRY_PREFIX):
            return self.create_retry_topic(name.removeprefix(RETRY_PREFIX), now_ms)
        template = self._topics.get(default_topic)
        if name.startswith(DLQ_PREFIX) or template is None or not template.is_inherited:
            text = f"topic {name} does not exist and may not be created"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        count = max(1, min(client_queue_count, template.write_queue_nums))
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=template.perm & ~Permission.INHERIT,
        )
        return self._put(config, now_ms)

    def create_retry_topic(self, group: str, now_ms: int, queue_count: int = 1) -> TopicConfig:
        """Return the retry topic of a consumer group, created if it has no queue to write to."""
        name = RETRY_PREFIX + group
        known = self._topics.get(name)
        if known is not None and known.write_queue_nums > 0:
            return known
        queue_count = max(1, min(queue_count, QUEUE_COUNT_MAX))
        fault = group_name_fault(group)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        config = TopicConfig(
            topic_name=name, read_queue_nums=queue_count, write_queue_nums=queue_count
        )
        return self._put(config, now_ms)

    def create_dead_letter_topic(self, group: str, now_ms: int) -> TopicConfig:
        """Return the topic of a consumer group's dead letters, created if it is new."""
        name = DLQ_PREFIX + group
        known = self._topics.get(name)
        if known is not None:
            return known
        fault = group_name_fault(group)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        return self._put(
            TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1), now_ms
        )

    def create_given_up_topic(self, now_ms: int) -> TopicConfig:
        """Return the topic of half messages that were given up, created if it is new."""
        config = TopicConfig(
            topic_name=TRANS_CHECK_MAX_TOPIC, read_queue_nums=1, write_queue_nums=1
        )
        return self._topics.get(TRANS_CHECK_MAX_TOPIC) or self._put(config, now_ms)

    def create_gateway_topic(self, name: str, queue_count: int, now_ms: int) -> TopicConfig:
        """Return a topic of gateways' state, created if it is new; no request can change it."""
        assert name in GATEWAY_TOPICS
        known = self._topics.get(name)
        if known is not None:
            return known
        _check_count(queue_count)
        return self._put(
            TopicConfig(topic_name=name, read_queue_nums=queue_count, write_queue_nums=queue_count),
            now_ms,
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the content of topics.json; a copy, which a thread may encode."""
        return {
            "dataVersion": self.version,
            "topicConfigTable": dict(self._topics),
            # A member of ours: RocketMQ does not read it.
            "deletedQueueTable": {name: dict(ends) for name, ends in self.deleted.items()},
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Load the content of topics.json; msgspec.ValidationError if it is invalid."""
        version = msgspec.convert(content.get("dataVersion", {}), DataVersion)
        table = msgspec.convert(content.get("topicConfigTable", {}), dict[str, TopicConfig])
        table = {name: config for name, config in table.items() if name not in self._system}
        for name, config in table.items():
            fault = topic_name_fault(name)
            if fault is not None or name != config.topic_name:
                raise ValueError(
                    f"topics.json: {fault or 'key and topicName differ: ' + shown(name)}"
                )
        deleted = content.get("deletedQueueTable", {})
        self.deleted = msgspec.convert(deleted, dict[str, dict[int, int]], strict=False)
        self.version = version
        system = {name: config for name, config in self._topics.items() if name in self._system}
        self._topics = system | {name: _in_bounds(config) for name, config in table.items()}

    def restore(self, queues: Iterable[tuple[str, int]], queue_count: int, now_ms: int) -> None:
        """Create topics for queues that the store has but topics.json lacks.

        A crash may come after a topic's first message and before the topic is in the file. The
        message was acknowledged, so its topic must exist again. Such a topic gets ``queue_count``
        queues (one if it is a group's or the gateways' own), or as many as its queues in the store
        require. ConfigError if slaves may copy the log and a topic is there that they cannot read.
        """
        missing: dict[str, int] = {}
        for name, queue_id in queues:
            if name not in self._topics and topic_name_fault(name) is None:
                least = 1 if is_group_topic(name) or name in GATEWAY_TOPICS else queue_count
                missing[name] = max(missing.get(name, least), queue_id + 1)
        for name, count in missing.items():
            # Even beyond topics_max: these topics exist.
            self._topics[name] = TopicConfig(
                topic_name=name, read_queue_nums=count, write_queue_nums=count
            )
        if missing:
            self.version = self.version.next(now_ms)
            self.is_dirty = True
        for name in (*self._topics, *self.deleted) if self._is_copied else ():
            if (fault := self.name_fault(name)) is not None:
                raise ConfigError(f'{fault}, or set replicate = "off"')

    def _put(self, config: TopicConfig, now_ms: int) -> TopicConfig:
        name = config.topic_name
        if name not in self._topics:
            self._check_room(1)
            fault = self.name_fault(name)
            if fault is not None:
                raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        if self._topics.get(name) == config:
            return config
        self._topics[name] = config
        self._changed(name, now_ms)
        return config

    def _changed(self, name: str, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        self.is_dirty = True
        for listener in self.listeners:
            listener(name)


def _check_count(queue_count: int) -> None:
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        text = f"a topic has 1 to {QUEUE_COUNT_MAX} queues, not {queue_count}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, text)


def _in_bounds(config: TopicConfig) -> TopicConfig:
    """Return a topic's settings from a file, with values beyond a request's bounds adjusted."""
    filter_type = config.topic_filter_type
    return msgspec.structs.replace(
        config,
        read_queue_nums=max(0, min(config.read_queue_nums, _KEPT_QUEUES_MAX)),
        write_queue_nums=max(0, min(config.write_queue_nums, _KEPT_QUEUES_MAX)),
        perm=config.perm & _TEMPLATE,
        topic_filter_type=filter_type if filter_type in TOPIC_FILTER_TYPES else "SINGLE_TAG",
    )


def _system_topics(broker_name: str, cluster: str, queue_count: int) -> dict[str, TopicConfig]:
    counts = {
        "SELF_TEST_TOPIC": (1, _READ_WRITE),
        DEFAULT_TOPIC: (queue_count, _TEMPLATE),
        "BenchmarkTest": (1024, _READ_WRITE),
        cluster: (16, _TEMPLATE),
        broker_name: (1, _TEMPLATE),
        OFFSET_MOVED_TOPIC: (1, _READ_WRITE),
        SCHEDULE_TOPIC: (SCHEDULE_LEVELS, _READ_WRITE),
        TIMER_TOPIC: (1, int(Permission.READ)),
        f"{cluster}_REPLY_TOPIC": (1, _READ_WRITE),
        f"{REVIVE_PREFIX}{cluster}": (REVIVE_QUEUES, int(Permission.READ)),
        HALF_TOPIC: (1, _READ_WRITE),
        OP_HALF_TOPIC: (1, _READ_WRITE),
    }
    return {
        name: TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm)
        for name, (count, perm) in counts.items()
    }
