"""Property text of a publish and the MQTT 5 properties that come back out of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motelog.core.message import decode_properties as decode_text
from motelog.gateway.mapping.message_properties import (
    client_id_property,
    delivery_properties,
    expires_ms,
    publish_properties,
    publisher_properties,
)
from motelog.gateway.mqtt.packet_types import PacketType, Properties
from motelog.gateway.mqtt.properties import decode_properties

TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=12)


# What a native producer may write: any JSON, and values that nearly fit.
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
ANY_TEXT = st.text(st.sampled_from("a/+#\0\x01\x02\x7f\u2028\ud800"), max_size=4)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "payloadFormat": st.integers(-1, 300) | ANY_JSON,
        "expiryS": st.integers(-2, 2) | st.integers(2**32 - 2, 2**32 + 2) | ANY_JSON,
        "contentType": ANY_TEXT | ANY_JSON,
        "responseTopic": ANY_TEXT | ANY_JSON,
        "correlationData": st.sampled_from(["", "AAEC", "AAE", "*"]) | ANY_JSON,
        "user": st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=3) | ANY_JSON,
    },
)


def native(value: Any) -> bytes:
    """Return the property text of a native producer that knows where MQTT's properties are."""
    return b"mqttProperties\x01" + json.dumps(value).encode() + b"\x02"


@given(value=NEARLY | ANY_JSON, now_ms=st.integers(0, 3_000), was_sent=st.booleans())
@example({"payloadFormat": 7}, 0, False)
@example({"user": [["k", str(number)] for number in range(2000)]}, 0, False)
def test_whatever_a_native_producer_writes_receivers_get_legal_properties(
    value: Any, now_ms: int, was_sent: bool
) -> None:
    text = native(value)
    block = delivery_properties(text, store_ms=0, now_ms=now_ms, was_sent=was_sent)
    expiry_ms = expires_ms(text, 0)
    assert (block is None) == (expiry_ms is not None and expiry_ms <= now_ms and not was_sent)
    decode_properties(block, PacketType.PUBLISH)
    assert expiry_ms is None or 0 <= expiry_ms < 1 << 43


@pytest.mark.parametrize(
    "illegal",
    [
        {"payloadFormat": 2},
        {"payloadFormat": -1},
        {"payloadFormat": 256},
        {"expiryS": -1},
        {"expiryS": 2**32},
        {"contentType": "a\0"},
        {"responseTopic": ""},
        {"responseTopic": "a/#"},
        {"responseTopic": "+"},
        {"user": [["k", "v"], ["k", "\0"]]},
    ],
)
def test_only_what_is_not_legal_is_left_out_and_counted(illegal: dict[str, Any]) -> None:
    text = native({"user": [["k", "v"]], **illegal})
    counts: list[int] = []
    block = delivery_properties(text, store_ms=0, now_ms=9, left_out=counts.append)
    assert sum(counts) == 1
    legal = Properties(user_properties=(("k", "v"),))
    assert decode_properties(block, PacketType.PUBLISH) == legal


def test_json_that_is_too_deep_to_be_read_is_no_property() -> None:
    text = b'mqttProperties\x01{"x":' + b"[" * 15_000 + b"]" * 15_000 + b"}\x02"
    assert delivery_properties(text, store_ms=0, now_ms=0) == b""
    assert expires_ms(text, 0) is None


def test_publish_without_forwarded_properties_adds_nothing() -> None:
    assert publish_properties(Properties(topic_alias=3)) == b""


@given(
    content_type=TEXT,
    correlation_data=st.binary(max_size=20),
    user=st.lists(st.tuples(TEXT, TEXT), max_size=4),
)
def test_receivers_get_what_the_publisher_gave(
    content_type: str, correlation_data: bytes, user: list[tuple[str, str]]
) -> None:
    given_properties = Properties(
        payload_format_indicator=1,
        content_type=content_type,
        response_topic="r/t",
        correlation_data=correlation_data,
        user_properties=tuple(user),
    )
    text = publisher_properties("dev") + publish_properties(given_properties)
    block = delivery_properties(text, store_ms=0, now_ms=0)
    assert block is not None
    assert decode_properties(block, PacketType.PUBLISH) == given_properties
    assert client_id_property(text) == "dev"
    assert set(decode_text(text)) == {"clientId", "mqttProperties"}


def test_expiry_counts_down_from_the_store_time() -> None:
    text = publish_properties(Properties(message_expiry_interval_s=10))
    block = delivery_properties(text, store_ms=1_000, now_ms=4_500)
    assert decode_properties(block, PacketType.PUBLISH).message_expiry_interval_s == 7
    assert delivery_properties(text, store_ms=1_000, now_ms=11_000) is None


def test_message_that_was_sent_does_not_expire() -> None:
    text = publish_properties(Properties(message_expiry_interval_s=10, content_type="kept"))
    for now_ms, left_s in ((4_500, 7), (11_000, 0), (99_000, 0)):
        block = delivery_properties(text, store_ms=1_000, now_ms=now_ms, was_sent=True)
        properties = decode_properties(block, PacketType.PUBLISH)
        assert (properties.message_expiry_interval_s, properties.content_type) == (left_s, "kept")


def test_clock_going_back_does_not_lengthen_or_expire() -> None:
    text = publish_properties(Properties(message_expiry_interval_s=10))
    block = delivery_properties(text, store_ms=50_000, now_ms=1_000)
    assert decode_properties(block, PacketType.PUBLISH).message_expiry_interval_s == 10


def test_text_of_a_native_producer_under_the_same_name_is_no_property() -> None:
    assert delivery_properties(b"mqttProperties\x01nonsense\x02", store_ms=0, now_ms=0) == b""
    assert client_id_property(b"xclientId\x01other\x02") == ""
