"""Every packet of tests/vectors/mqtt, decoded and encoded, by the kernel and by its reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.gateway.mqtt import _frames, _frames_py, packet_types
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.mqtt.varint import encode_varint
from tests.support.mqtt import batch, decode_packet, encode_packet, load_vectors

VECTORS = load_vectors()
KERNELS = pytest.mark.parametrize("kernel", [_frames, _frames_py], ids=["kernel", "reference"])


def chosen(key: str) -> pytest.MarkDecorator:
    vectors = [vector for vector in VECTORS if key in vector]
    assert len({vector["name"] for vector in vectors}) == len(vectors)
    return pytest.mark.parametrize("vector", vectors, ids=title)


def title(vector: dict[str, Any]) -> str:
    return f"{vector.get('clause', '')} {vector['name']}".strip()


@chosen("packet")
def test_packet_is_read_and_written(vector: dict[str, Any]) -> None:
    value = msgspec.convert(
        vector["value"], getattr(packet_types, vector["packet"]), builtin_types=(bytes,)
    )
    assert decode_packet(vector["version"], vector["hex"]) == value
    if not vector.get("decode_only"):
        packet_type = PacketType(vector["hex"][0] >> 4)
        assert encode_packet(vector["version"], packet_type, value) == vector["hex"]


@chosen("packet")
@KERNELS
def test_split_hands_over_the_packet(vector: dict[str, Any], kernel: Any) -> None:
    packet = vector["hex"]
    data, index = batch([(7, vector["version"], packet)])
    (frame,) = kernel.split(data, index)
    assert frame[:3] == (7, packet[0], None)
    if vector["packet"] == "Ack":
        assert frame[3:] == (None, vector["value"]["packet_id"], vector["value"]["reason_code"])
    else:
        assert frame[3:] == (packet[2:], 0, None)


@chosen("frame")
@KERNELS
def test_frame_is_split(vector: dict[str, Any], kernel: Any) -> None:
    data, index = batch([(7, vector["version"], vector["hex"])])
    assert kernel.split(data, index) == [(7, *vector["frame"])]


@chosen("frame")
@KERNELS
def test_publish_is_written(vector: dict[str, Any], kernel: Any) -> None:
    first_byte, topic, payload, packet_id, properties = vector["frame"]
    if topic is None or vector.get("decode_only"):
        return
    packet, number_at = kernel.encode_publish(
        topic, payload, first_byte, vector["version"], properties
    )
    if number_at:
        packet = packet[:number_at] + packet_id.to_bytes(2, "big") + packet[number_at + 2 :]
    assert packet == vector["hex"]


@chosen("error")
@KERNELS
def test_fault_has_its_reason_code(vector: dict[str, Any], kernel: Any) -> None:
    packet = vector["hex"]
    data, index = batch([(7, vector["version"], packet)])
    (frame,) = kernel.split(data, index)
    if frame[1] == 0:
        assert frame[:4] == (7, 0, None, None)
        assert frame[4] == vector["error"]
        assert 0 <= frame[5] <= len(packet)
    else:  # left to the packet's own module
        with pytest.raises(GatewayError) as caught:
            decode_packet(vector["version"], packet)
        assert caught.value.reason_code == vector["error"]


def test_every_clause_that_a_vector_breaks_is_tagged_in_the_code() -> None:
    modules = [*Path(packet_types.__file__).parent.glob("*.py")]
    tags = set(re.findall(r"MQTT-[\d.-]+\d", "".join(path.read_text() for path in modules)))
    broken = {vector["clause"].split()[0] for vector in VECTORS if "clause" in vector}
    assert sorted(broken - tags) == []


def test_vectors_have_the_length_that_they_claim() -> None:
    for vector in VECTORS:
        if "error" not in vector and not vector.get("decode_only"):
            packet = vector["hex"]
            head = 1 + len(encode_varint(len(packet) - 2))
            assert packet[1:head] == encode_varint(len(packet) - head), vector["name"]
