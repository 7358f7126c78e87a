"""Answers to administration requests: the values of Admin, and their decoding.

Owns: the values except users and rules (bridge.users), decoding answers. Must not touch: which
server is asked. Spec: RocketMQ ConsumeStatsList, BrokerStatsData, QueryConsumeQueueResponseBody ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import loads

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered broker; ``broker_id`` 0 is the master."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue's begin and end; ``last_ms`` is when its last message was stored, 0 if empty."""

    queue: MessageQueue
    begin_offset: int
    end_offset: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in a queue; ``last_ms`` is the time of the last message it consumed.

    ``waiting_ms`` is the time of the first message that waits for it, 0 if none does. RocketMQ's
    brokers do not report it: for them it is ``last_ms``.
    """

    queue: MessageQueue
    end_offset: int
    committed_offset: int
    last_ms: int
    waiting_ms: int

    @property
    def lag(self) -> int:
        """The number of waiting messages."""
        return self.end_offset - self.committed_offset


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A client connected to a broker as a member of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic on one broker; ``permission`` is the sum of 4 (read) and 2 (write)."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int
    is_ordered: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """The times of a queue's first and last message, and a group's place between them.

    ``consumed_ms`` is the time of the last message that the group has consumed, or of the queue's
    first if it has consumed none. ``waiting_for_ms`` is the age of the first message that waits for
    it. Each is 0 if there is no such message.
    """

    queue: MessageQueue
    first_ms: int
    last_ms: int
    consumed_ms: int
    waiting_for_ms: int


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """Where a message of a queue is in the log, and the hash of its tag."""

    offset: int
    physical_offset: int
    size_bytes: int
    tag_hash: int


@dataclass(frozen=True, slots=True)
class Rate:
    """The counts of a time window; ``per_call`` is the broker's mean per request."""

    total: int
    per_second: float
    per_call: float


@dataclass(frozen=True, slots=True)
class Rates:
    """One counter of a broker: the last minute, hour and day."""

    minute: Rate
    hour: Rate
    day: Rate


@dataclass(frozen=True, slots=True)
class Replica:
    """A slave of a broker: the log offset it has confirmed, and how far it is behind."""

    address: str
    confirmed_offset: int
    behind_bytes: int
    is_in_sync: bool
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Copying:
    """What a slave says of its copying.

    ``behind_bytes`` and ``fault``, the reason why it does not copy ("" if it does), are None for
    RocketMQ's slaves, which do not report them. ``heard_ms`` is when it last heard its master.
    """

    master_address: str
    behind_bytes: int | None
    bytes_per_second: int
    heard_ms: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class Replication:
    """The end of a broker's log; a master's slaves; for a slave its ``copying``, else None."""

    end_offset: int
    in_sync: int
    replicas: tuple[Replica, ...]
    copying: Copying | None = None


def decode_topic(broker_name: str, body: bytes, topic: str) -> TopicSettings | None:
    """Return a topic's settings from a table of all topics; None if it is missing."""
    table = object_of(body)["topicConfigTable"]
    if topic not in table:
        return None
    config = converted(table[topic], _TopicConfig)
    return TopicSettings(
        broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.order,
        config.attributes,
    )


def decode_progress(stats: Mapping[str, Any]) -> list[QueueProgress]:
    """Return the queues of a group's ConsumeStats."""
    found = []
    for key, one in stats["offsetTable"].items():
        end, committed = one["brokerOffset"], one["consumerOffset"]
        last_ms = max(one["lastTimestamp"], 0)
        waiting_ms = max(one.get("waitingTimestamp", last_ms), 0)
        waiting_ms = waiting_ms if committed < end else 0
        found.append(QueueProgress(queue_of(key), end, committed, last_ms, waiting_ms))
    return found


def sorted_progress(found: Iterable[QueueProgress]) -> list[QueueProgress]:
    """Return queues by topic, broker and number."""
    return sorted(
        found, key=lambda one: (one.queue.topic, one.queue.broker_name, one.queue.queue_id)
    )


def decode_all_progress(body: bytes) -> dict[str, list[QueueProgress]]:
    """Return the queues of each group in a ConsumeStatsList."""
    found: dict[str, list[QueueProgress]] = {}
    for groups in object_of(body)["consumeStatsList"]:
        for group, topics in groups.items():
            queues = found.setdefault(group, [])
            for stats in topics:
                queues += decode_progress(stats)
    return found


def decode_times(body: bytes) -> list[QueueTimes]:
    """Return the QueueTimeSpans of a topic."""
    return [
        QueueTimes(
            one.message_queue.value(),
            max(one.min_time_stamp, 0),
            max(one.max_time_stamp, 0),
            max(one.consume_time_stamp, 0),
            max(one.delay_time, 0),
        )
        for one in converted(object_of(body)["consumeTimeSpanSet"], list[_TimeSpan])
    ]


def decode_units(body: bytes, asked_offset: int) -> list[QueueUnit]:
    """Return the units from ``asked_offset`` on, or from the first one that exists."""
    answer = converted(object_of(body), _Units)
    first = max(asked_offset, answer.min_queue_index)
    return [
        QueueUnit(offset, one.physic_offset, one.physic_size, one.tags_code)
        for offset, one in enumerate(answer.queue_data, first)
    ]


def decode_rates(body: bytes) -> Rates:
    """Return a BrokerStatsData."""
    data = converted(object_of(body), _StatsData)
    windows = (data.stats_minute, data.stats_hour, data.stats_day)
    return Rates(*(Rate(one.sum, one.tps, one.avgpt) for one in windows))


def decode_replication(body: bytes) -> Replication:
    """Return an HARuntimeInfo."""
    info = converted(object_of(body), _HaInfo)
    if not info.master:
        own, master_end = info.ha_client_runtime_info, info.master_commit_log_max_offset
        copying = Copying(
            own.master_addr,
            max(master_end - own.max_offset, 0) if master_end else None,
            own.transferred_byte_in_second,
            own.last_read_timestamp,
            info.fault,
        )
        return Replication(own.max_offset, 0, (), copying)
    replicas = tuple(
        Replica(
            one.addr, one.slave_ack_offset, one.diff, one.in_sync, one.transferred_byte_in_second
        )
        for one in info.ha_connection_info
    )
    return Replication(info.master_commit_log_max_offset, info.in_sync_slave_nums, replicas)


def decode_producers(body: bytes) -> dict[str, list[ClientInfo]]:
    """Return the members of each group in a ProducerTableInfo."""
    groups = converted(object_of(body)["data"], dict[str, list[_Producer]])
    return {
        group: [
            # Java writes an address as "host/address".
            ClientInfo(one.client_id, one.remote_ip.rpartition("/")[2], one.language, one.version)
            for one in members
        ]
        for group, members in groups.items()
    }


def decode_lowest(body: bytes, topic: str, broker_name: str) -> dict[MessageQueue, int]:
    """Return the offsets of a QueryCorrectionOffsetBody by queue."""
    offsets = converted(object_of(body)["correctionOffsets"], dict[int, int], strict=False)
    return {MessageQueue(topic, broker_name, number): at for number, at in sorted(offsets.items())}


def object_of(body: bytes) -> dict[str, Any]:
    """Return a body that is a JSON object; RemotingDecodeError if it is something else."""
    value = loads(body)
    if not isinstance(value, dict):
        raise RemotingDecodeError("the answer's body is not a JSON object")
    return value


def queue_of(key: str) -> MessageQueue:
    """Return the queue from the key of a table."""
    return converted(loads(key.encode()), _QueueKey).value()


def converted(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Return a value converted to ``kind``; RemotingDecodeError if that is impossible.

    Without ``strict`` numbers may be strings, as the keys of an object are.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as exc:
        raise RemotingDecodeError(f"the answer's body is malformed: {exc}") from exc


def properties_of(text: bytes) -> dict[str, str]:
    """Return the pairs of a text of ``name=value`` lines."""
    lines = (line.partition("=") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, found, value in lines if found}


class _QueueKey(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int

    def value(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class _TopicConfig(msgspec.Struct, rename="camel"):
    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool = False
    attributes: dict[str, str] = {}


class _TimeSpan(msgspec.Struct, rename="camel"):
    message_queue: _QueueKey
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class _Producer(msgspec.Struct):
    client_id: str = msgspec.field(name="clientId")
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int


class _Unit(msgspec.Struct, rename="camel"):
    physic_offset: int
    physic_size: int
    tags_code: int


class _Units(msgspec.Struct, rename="camel"):
    min_queue_index: int
    queue_data: list[_Unit] = []


class _Window(msgspec.Struct):
    sum: int
    tps: float
    avgpt: float


class _StatsData(msgspec.Struct, rename="camel"):
    stats_minute: _Window
    stats_hour: _Window
    stats_day: _Window


class _HaConnection(msgspec.Struct, rename="camel"):
    addr: str
    slave_ack_offset: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int


class _HaClient(msgspec.Struct, rename="camel"):
    max_offset: int = 0
    transferred_byte_in_second: int = 0
    last_read_timestamp: int = 0
    master_addr: str = ""


class _HaInfo(msgspec.Struct, rename="camel"):
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[_HaConnection] = []
    master: bool = True
    ha_client_runtime_info: _HaClient = msgspec.field(default_factory=_HaClient)
    #: A member of ours alone.
    fault: str | None = None
