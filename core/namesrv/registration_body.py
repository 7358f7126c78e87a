"""The bodies of REGISTER_BROKER, in both forms, and of REGISTER_TOPIC_IN_NAMESRV.

Owns: decoding. Must not touch: sockets, the route table.
Spec: RocketMQ RegisterBrokerBody, TopicRouteData. Big-endian; the first's compressed form is one
zlib stream of

    i32 bytes, DataVersion JSON
    i32 count, count x (i32 bytes, "name readQueues writeQueues perm topicFilterType[ attributes]")
    i32 bytes, JSON list of filter servers
    (since broker version 5.0.0: static topic mappings, which are not used)
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.fields import INT32, Int32
from motelog.core.remoting.frames import loads, loads_as
from motelog.core.remoting.topic_config import DataVersion, TopicConfig
from motelog.core.topic_names import shown

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024


class _QueuesJson(msgspec.Struct):
    brokerName: str
    readQueueNums: Int32
    writeQueueNums: Int32
    perm: Int32
    # The flag's name since 4.9, and its older name.
    topicSysFlag: Int32 = 0
    topicSynFlag: Int32 = 0


class _RouteJson(msgspec.Struct):
    queueDatas: list[_QueuesJson]


@dataclass(frozen=True, slots=True)
class RegistrationBody:
    """The content of a broker's registration."""

    topics: Mapping[str, TopicConfig]
    version: DataVersion


def decode_registration(body: bytes, *, is_compressed: bool) -> RegistrationBody:
    """Return the topics of a registration; RemotingDecodeError if it is not one."""
    try:
        return _decode_compressed(body) if is_compressed else _decode_json(body)
    except (msgspec.ValidationError, ValueError) as exc:
        raise RemotingDecodeError(f"registration body: {exc}") from exc


def decode_topic_queues(topic: str, body: bytes) -> dict[str, TopicConfig]:
    """Return each broker's configuration of a topic; RemotingDecodeError if malformed."""
    route = loads_as(body, _RouteJson, "topic route")
    return {
        one.brokerName: TopicConfig(
            topic_name=topic,
            read_queue_nums=one.readQueueNums,
            write_queue_nums=one.writeQueueNums,
            perm=one.perm,
            topic_sys_flag=one.topicSysFlag or one.topicSynFlag,
        )
        for one in route.queueDatas
    }


def decode_version(body: bytes) -> DataVersion:
    """Return the DataVersion in a body; RemotingDecodeError if malformed."""
    try:
        return _convert_version(loads(body))
    except msgspec.ValidationError as exc:
        raise RemotingDecodeError(f"data version: {exc}") from exc


def _decode_json(body: bytes) -> RegistrationBody:
    # A broker may register before it has any topic.
    value = loads(body) if body else {}
    wrapper = value.get("topicConfigSerializeWrapper") if isinstance(value, dict) else None
    if not isinstance(wrapper, dict):
        wrapper = {}
    table = wrapper.get("topicConfigTable") or {}
    topics = msgspec.convert(table, dict[str, TopicConfig])
    return RegistrationBody(_checked(topics), _convert_version(wrapper.get("dataVersion")))


def _convert_version(value: Any) -> DataVersion:
    return DataVersion() if value is None else msgspec.convert(value, DataVersion)


def _decode_compressed(body: bytes) -> RegistrationBody:
    data = _inflate(body)
    version, position = _take(data, 0)
    count, position = _count(data, position)
    topics = {}
    for _ in range(count):
        text, position = _take(data, position)
        config = _decode_topic(text.decode())
        topics[config.topic_name] = config
    return RegistrationBody(_checked(topics), decode_version(version))


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as exc:
        raise RemotingDecodeError(f"registration body: {exc}") from exc
    if not inflater.eof:
        text = f"registration body is cut off or above {INFLATED_BYTES_MAX} bytes"
        raise RemotingDecodeError(text)
    return data


def _decode_topic(text: str) -> TopicConfig:
    # Attributes (5.x) are JSON, which may contain spaces; they are not used.
    name, read_queues, write_queues, perm, filter_type, *_ = text.split(" ", 5)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read_queues),
        write_queue_nums=int(write_queues),
        perm=int(perm),
        topic_filter_type=filter_type,
    )


def _checked(topics: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Return ``topics``; ValueError for a number that does not fit into a route."""
    for name, config in topics.items():
        for value in (
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_sys_flag,
        ):
            if value not in INT32:
                raise ValueError(f"topic {shown(name)} has a number of more than 32 bits")
    return topics


def _count(data: bytes, position: int) -> tuple[int, int]:
    end = position + 4
    if end > len(data):
        raise RemotingDecodeError(f"registration body is cut off (at byte {position})")
    return int.from_bytes(data[position:end], "big", signed=True), end


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    size, begin = _count(data, position)
    if not 0 <= size <= len(data) - begin:
        raise RemotingDecodeError(f"registration body: {size} bytes announced (at {position})")
    return data[begin : begin + size], begin + size
