"""Property text of a publish and the MQTT 5 properties that come back out of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.message import decode_properties as decode_text
from motelog.gateway.mapping.message_properties import (
    client_id_property,
    delivery_properties,
    publish_properties,
    publisher_properties,
)
from motelog.gateway.mqtt.packet_types import PacketType, Properties
from motelog.gateway.mqtt.properties import decode_properties

TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=12)


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
