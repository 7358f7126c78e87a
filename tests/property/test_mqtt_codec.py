"""Whatever the codec writes it reads back, and whatever it reads is refused or understood."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.mqtt.properties import decode_properties, encode_properties
from motelog.gateway.mqtt.varint import VARINT_MAX, decode_varint, encode_varint
from tests.support.mqtt import decode_packet, encode_packet
from tests.support.mqtt_strategies import (
    PROPERTIES_OF,
    VERSIONS,
    connects,
    nearly_packets,
    properties,
    subacks,
    subscribes,
    unsubscribes,
)

PACKETS = {
    PacketType.CONNECT: lambda version: connects(st.just(version)),
    PacketType.SUBSCRIBE: subscribes,
    PacketType.SUBACK: subacks,
    PacketType.UNSUBSCRIBE: unsubscribes,
}


@given(value=st.integers(0, VARINT_MAX), before=st.binary(max_size=3))
def test_varint_is_read_back(value: int, before: bytes) -> None:
    data = before + encode_varint(value)
    assert decode_varint(data, len(before), len(data)) == (value, len(data))


@settings(max_examples=150)
@given(data=st.data(), version=VERSIONS, packet_type=st.sampled_from(list(PACKETS)))
def test_packet_is_read_back(data: Any, version: int, packet_type: PacketType) -> None:
    value = data.draw(PACKETS[packet_type](version))
    packet = encode_packet(version, packet_type, value)
    assert decode_packet(version, packet) == value


@settings(max_examples=150)
@given(data=st.data(), packet_type=st.sampled_from(sorted(PROPERTIES_OF)))
def test_properties_are_read_back(data: Any, packet_type: int) -> None:
    drawn = data.draw(properties(packet_type))
    block = encode_properties(drawn.as_dict())
    assert decode_properties(block, packet_type) == drawn


@settings(max_examples=200)
@given(block=st.binary(max_size=30), packet_type=st.integers(0, 15), from_server=st.booleans())
def test_any_block_is_understood_or_refused(
    block: bytes, packet_type: int, from_server: bool
) -> None:
    try:
        found = decode_properties(block, packet_type, from_server=from_server)
    except GatewayError as exc:
        reason_code = exc.reason_code
    else:
        again = encode_properties(found.as_dict())
        assert decode_properties(again, packet_type, from_server=True) == found
        assert sorted(again) == sorted(block)
        return
    assert reason_code in (0x81, 0x82, 0x94)


@settings(max_examples=200)
@given(drawn=nearly_packets())
def test_any_damaged_packet_is_understood_or_refused(drawn: tuple[int, bytes]) -> None:
    version, packet = drawn
    if packet[0] >> 4 in (0, PacketType.PUBLISH, 12, 13, PacketType.AUTH):
        return
    packet = packet[:1] + encode_varint(len(packet) - 1) + packet[1:]
    with contextlib.suppress(GatewayError):  # whatever else is raised is the fault
        decode_packet(version or 4, packet)
