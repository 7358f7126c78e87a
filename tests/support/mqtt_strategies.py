"""Hypothesis strategies: legal MQTT packets of every type, and frames that are nearly legal.

Owns: what may be drawn. Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connect,
    PacketType,
    Properties,
    PropertyId,
    Subscribe,
    SubscribeEntry,
    SubscriptionAck,
    Unsubscribe,
    Will,
)
from motelog.gateway.mqtt.properties import WILL, encode_properties
from tests.support.mqtt import encode_packet

VERSIONS = st.sampled_from([3, 4, 5])
PACKET_IDS = st.integers(1, 65535)
# Everything that a topic name may hold: no control characters, no surrogates, no wildcards.
TOPIC_TEXT = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="+#")
TOPIC_NAMES = st.text(TOPIC_TEXT, min_size=1, max_size=30)
STRINGS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
U16 = st.integers(0, 65535)
U32 = st.integers(0, 2**32 - 1)
BITS = st.integers(0, 1)
PAIRS = st.lists(st.tuples(STRINGS, STRINGS), min_size=1, max_size=3).map(tuple)

_MESSAGE: dict[str, st.SearchStrategy[Any]] = {
    "payload_format_indicator": BITS,
    "message_expiry_interval_s": U32,
    "content_type": STRINGS,
    "response_topic": TOPIC_NAMES,
    "correlation_data": st.binary(max_size=8),
    "user_properties": PAIRS,
}
_ANSWER: dict[str, st.SearchStrategy[Any]] = {"reason_string": STRINGS, "user_properties": PAIRS}
PROPERTIES_OF: dict[int, dict[str, st.SearchStrategy[Any]]] = {
    WILL: {**_MESSAGE, "will_delay_interval_s": U32},
    PacketType.CONNECT: {
        "session_expiry_interval_s": U32,
        "authentication_method": STRINGS,
        "request_problem_information": BITS,
        "request_response_information": BITS,
        "receive_maximum": st.integers(1, 65535),
        "topic_alias_maximum": U16,
        "user_properties": PAIRS,
        "maximum_packet_bytes": st.integers(1, 2**32 - 1),
    },
    PacketType.PUBLISH: {**_MESSAGE, "topic_alias": st.integers(1, 65535)},
    PacketType.SUBSCRIBE: {
        "subscription_identifiers": st.tuples(st.integers(1, 268_435_455)),
        "user_properties": PAIRS,
    },
    PacketType.UNSUBSCRIBE: {"user_properties": PAIRS},
    PacketType.PUBACK: _ANSWER,
    PacketType.SUBACK: _ANSWER,
}


def properties(packet_type: int) -> st.SearchStrategy[Properties]:
    """Any set of the properties that the packet may have."""
    return st.fixed_dictionaries({}, optional=PROPERTIES_OF[packet_type]).map(
        lambda values: Properties(**values)
    )


def _of_version(version: int, packet_type: int) -> st.SearchStrategy[Properties]:
    return properties(packet_type) if version == 5 else st.just(NO_PROPERTIES)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(
        st.lists(st.one_of(st.just("+"), st.text(TOPIC_TEXT, max_size=4)), min_size=1, max_size=5)
    )
    levels += draw(st.sampled_from([[], ["#"]]))
    topic_filter = "/".join(levels) or "/"
    return topic_filter if not topic_filter.startswith("$share/") else "x" + topic_filter


@st.composite
def connects(draw: st.DrawFn, versions: st.SearchStrategy[int] = VERSIONS) -> Connect:
    version = draw(versions)
    texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=10)
    clean_start = draw(st.booleans())
    client_id = draw(texts)
    if version == 3 or not clean_start:
        client_id = client_id or "c"
    will = None
    if draw(st.booleans()):
        will = Will(
            topic=draw(TOPIC_NAMES),
            payload=draw(st.binary(max_size=10)),
            qos=draw(st.integers(0, 2)),
            retain=draw(st.booleans()),
            properties=draw(_of_version(version, WILL)),
        )
    user_name = draw(st.none() | texts)
    password = draw(st.none() | st.binary(max_size=10))
    if version != 5 and user_name is None:
        password = None
    return Connect(
        version=version,
        clean_start=clean_start,
        keep_alive_s=draw(U16),
        client_id=client_id,
        will=will,
        user_name=user_name,
        password=password,
        properties=draw(_of_version(version, PacketType.CONNECT)),
    )


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    entry = st.builds(SubscribeEntry, topic_filters(), st.integers(0, 2))
    if version == 5:
        entry = st.builds(
            SubscribeEntry,
            topic_filters(),
            st.integers(0, 2),
            st.booleans(),
            st.booleans(),
            st.integers(0, 2),
        )
    return Subscribe(
        packet_id=draw(PACKET_IDS),
        entries=tuple(draw(st.lists(entry, min_size=1, max_size=4))),
        properties=draw(_of_version(version, PacketType.SUBSCRIBE)),
    )


@st.composite
def unsubscribes(draw: st.DrawFn, version: int) -> Unsubscribe:
    return Unsubscribe(
        packet_id=draw(PACKET_IDS),
        topic_filters=tuple(draw(st.lists(topic_filters(), min_size=1, max_size=4))),
        properties=draw(_of_version(version, PacketType.UNSUBSCRIBE)),
    )


@st.composite
def subacks(draw: st.DrawFn, version: int) -> SubscriptionAck:
    codes = [0, 1, 2, 0x80] if version != 5 else [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97]
    return SubscriptionAck(
        packet_id=draw(PACKET_IDS),
        reason_codes=tuple(draw(st.lists(st.sampled_from(codes), min_size=1, max_size=5))),
        properties=draw(_of_version(version, PacketType.SUBACK)),
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> bytes:
    """A whole legal PUBLISH."""
    qos = draw(st.integers(0, 2))
    block = None
    if version == 5:
        block = encode_properties(draw(properties(PacketType.PUBLISH)).as_dict())
    has_alias = block is not None and bytes((PropertyId.TOPIC_ALIAS,)) in block
    topic = b"" if has_alias and draw(st.booleans()) else draw(TOPIC_NAMES).encode()
    first_byte = 0x30 | qos << 1 | draw(BITS) | (draw(BITS) << 3 if qos else 0)
    packet, at = encode_publish(topic, draw(st.binary(max_size=200)), first_byte, version, block)
    return packet[:at] + draw(PACKET_IDS).to_bytes(2, "big") + packet[at + 2 :] if at else packet


@st.composite
def packets(draw: st.DrawFn) -> tuple[int, bytes]:
    """(version, a whole legal packet)."""
    version = draw(VERSIONS)
    kind = draw(st.sampled_from(["publish", "connect", "subscribe", "unsubscribe", "ack", "ping"]))
    match kind:
        case "publish":
            packet = draw(publishes(version))
        case "connect":
            packet = encode_packet(version, PacketType.CONNECT, draw(connects()))
        case "subscribe":
            packet = encode_packet(version, PacketType.SUBSCRIBE, draw(subscribes(version)))
        case "unsubscribe":
            packet = encode_packet(version, PacketType.UNSUBSCRIBE, draw(unsubscribes(version)))
        case "ack":
            first_byte = draw(st.sampled_from([0x40, 0x50, 0x62, 0x70]))
            packet_id = draw(PACKET_IDS).to_bytes(2, "big")
            tail = draw(st.sampled_from([b"", b"\0", b"\0\0", b"\x00\x04\x1f\x00\x01x"]))
            tail = tail if version == 5 else b""
            packet = bytes((first_byte, 2 + len(tail))) + packet_id + tail
        case _:
            packet = draw(st.sampled_from([b"\xc0\0", b"\xd0\0", b"\xe0\0"]))
    return version, packet


@st.composite
def nearly_packets(draw: st.DrawFn) -> tuple[int, bytes]:
    """(version or 0, bytes that begin as a legal packet and may have been damaged)."""
    version, packet = draw(packets())
    damaged = bytearray(packet)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(damaged) - 1))
        damaged[at] = draw(st.integers(0, 255))
    match draw(st.integers(0, 4)):
        case 0:
            damaged = damaged[: draw(st.integers(1, len(damaged)))]
        case 1:
            damaged += draw(st.binary(max_size=4))
        case 2:  # any body behind a right length
            body = draw(st.binary(max_size=100))
            damaged = bytearray((damaged[0], len(body))) + body
    return draw(st.sampled_from([0, version, version, version])), bytes(damaged)
