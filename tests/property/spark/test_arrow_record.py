"""What the store encodes is what the Arrow decoder gives, and what decoding to messages gives."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from motelog.core.message import (
    KEYS,
    MQTT_CLIENT_ID,
    MQTT_PROPERTIES,
    MQTT_QOS,
    MQTT_RETAIN,
    MQTT_TOPIC,
    SYS_FLAG_COMPRESSED,
    TAGS,
    encode_host,
    encode_properties,
)
from motelog.core.records.append import AppendMessage, QueueTail, encode_batch
from motelog.core.records.decode import decode_messages
from motelog.spark.arrow import RecordColumns
from motelog.spark.batches import Batches
from motelog.spark.columns import DECODED

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"),
    min_size=1,
    max_size=20,
)
NAMED = [TAGS, KEYS, MQTT_TOPIC, MQTT_QOS, MQTT_RETAIN, MQTT_CLIENT_ID, MQTT_PROPERTIES]
properties = st.dictionaries(
    st.one_of(st.sampled_from(NAMED), texts),
    st.one_of(st.sampled_from(["0", "1", "2"]), texts),
    max_size=7,
)
hosts = st.sampled_from([encode_host("127.0.0.1", 1), encode_host("::1", 65535)])


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    """Draw messages and encode them as the store does."""
    tail = QueueTail(draw(st.sampled_from([b"telemetry", b"t" * 200])), 3, 0)
    messages: list[AppendMessage] = []
    for _ in range(draw(st.integers(0, 5))):
        body = draw(st.binary(max_size=50))
        flags = draw(st.sampled_from([0, SYS_FLAG_COMPRESSED]))
        if flags:
            body = zlib.compress(body)
        text = encode_properties(draw(properties))
        born_ms = draw(st.integers(0, 1 << 41))
        messages.append((tail, body, text, 0, born_ms, draw(hosts), flags, 0, 0, 0))
    target = bytearray(20_000)
    store_ms = draw(st.integers(0, 1 << 41))
    count, end = encode_batch(
        target, 0, len(target), 0, messages, 0, store_ms, draw(hosts), [], None
    )
    assert count == len(messages)
    return bytes(target[:end])


@settings(max_examples=100)
@given(stored())
def test_stored_messages_become_the_same_rows(records: bytes) -> None:
    decoder = RecordColumns(
        DECODED, broker="b", offset_begin=0, offset_end=99, payload_bytes_max=1000
    )
    assert decoder.append(records, 0, rows_max=99, bytes_max=1 << 20) == len(records)
    (batch,) = Batches(DECODED).made_of(decoder.rows, decoder.take())
    batch.validate(full=True)
    assert [
        {
            **row,
            "store_time": round(row["store_time"].timestamp() * 1000),
            "born_time": round(row["born_time"].timestamp() * 1000),
        }
        for row in batch.to_pylist()
    ] == [
        {
            "topic": message.properties.get(MQTT_TOPIC)
            or "/".join(filter(None, (message.topic, message.tags))),
            "queue_topic": message.topic,
            "device": message.tags,
            "key": message.properties.get(KEYS),
            "payload": message.body,
            "store_time": message.store_timestamp_ms,
            "born_time": message.born_timestamp_ms,
            "broker": "b",
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "properties": list(message.properties.items()),
            "qos": {"0": 0, "1": 1, "2": 2}.get(qos := message.properties.get(MQTT_QOS, "")),
            "retain": message.properties.get(MQTT_RETAIN) == "1" if qos in set("012") else None,
            "client_id": message.properties.get(MQTT_CLIENT_ID),
            "mqtt_properties": message.properties.get(MQTT_PROPERTIES),
        }
        for message in decode_messages(records)
    ]
