"""Both forms of the registration body, whole and broken."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.errors import RemotingDecodeError
from motelog.core.namesrv import registration_body
from motelog.core.namesrv.registration_body import (
    decode_registration,
    decode_topic_queues,
    decode_version,
)
from motelog.core.remoting.topic_config import DataVersion

VERSION = b'{"counter":3,"timestamp":1700000000000,"stateVersion":0}'
JSON_BODY = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":'
    + VERSION
    + b',"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":'
    b'"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4,"attributes":{}}},'
    b'"topicQueueMappingDetailMap":{}}}'
)


def counted(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(*topics: bytes, tail: bytes = b"") -> bytes:
    parts = [counted(VERSION), struct.pack(">i", len(topics)), *map(counted, topics)]
    return zlib.compress(b"".join([*parts, counted(b"[]"), tail]))


def test_the_queues_of_one_topic() -> None:
    # As RocketMQ 5.3.3 writes them.
    body = (
        b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,'
        b'"readQueueNums":8,"topicSysFlag":1,"writeQueueNums":4}]}'
    )
    (config,) = decode_topic_queues("T", body).values()
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums) == ("T", 8, 4)
    assert (config.perm, config.topic_sys_flag) == (6, 1)
    for broken in (b"", b"[]", b"{}", body.replace(b":6", b":6000000000"), body[:-1]):
        with pytest.raises(RemotingDecodeError):
            decode_topic_queues("T", broken)


def test_json_body_of_a_5x_broker() -> None:
    body = decode_registration(JSON_BODY, is_compressed=False)
    assert body.version == DataVersion(1700000000000, 3)
    config = body.topics["T"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (8, 4, 6)


def test_empty_body_is_a_broker_without_topics() -> None:
    body = decode_registration(b"", is_compressed=False)
    assert (dict(body.topics), body.version) == ({}, DataVersion())


def test_compressed_body_with_and_without_attributes() -> None:
    data = compressed(b"T 8 4 6 SINGLE_TAG", b'U 1 1 4 MULTI_TAG {"+a":"b c"}', tail=b"mapping")
    body = decode_registration(data, is_compressed=True)
    assert body.version.counter == 3
    assert {name: config.perm for name, config in body.topics.items()} == {"T": 6, "U": 4}


@pytest.mark.parametrize(
    "data",
    [
        b"not zlib",
        compressed(b"T 8 4 6 SINGLE_TAG")[:-6],
        compressed(b"T 8 4"),
        compressed(b"T eight 4 6 SINGLE_TAG"),
        compressed(b"\xff 8 4 6 SINGLE_TAG"),
        zlib.compress(struct.pack(">i", 1 << 30)),
        zlib.compress(counted(VERSION) + struct.pack(">i", 1 << 30)),
        zlib.compress(counted(VERSION) + struct.pack(">ii", 1, -1)),
        zlib.compress(counted(b"{") + struct.pack(">i", 0)),
    ],
)
def test_broken_compressed_body_is_refused(data: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        decode_registration(data, is_compressed=True)


def test_a_small_body_cannot_inflate_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_body, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(RemotingDecodeError, match="above 1000 bytes"):
        decode_registration(zlib.compress(bytes(1_000_000)), is_compressed=True)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":7}}',
        b"[" * 100_000,
    ],
)
def test_broken_json_body_is_refused(data: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        decode_registration(data, is_compressed=False)


@given(data=st.binary(max_size=200), is_compressed=st.booleans())
def test_any_bytes_are_decoded_or_refused(data: bytes, is_compressed: bool) -> None:
    try:
        decode_registration(data, is_compressed=is_compressed)
        decode_registration(zlib.compress(data), is_compressed=True)
    except RemotingDecodeError:
        pass


def test_version_round_trip() -> None:
    version = DataVersion(5, 6, 7)
    assert decode_version(msgspec.json.encode(version)) == version
    with pytest.raises(RemotingDecodeError):
        decode_version(b'{"counter":"x"}')
