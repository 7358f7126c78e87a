"""MQTT packets for tests: batches as the reactor makes them, vectors, and strategies.

Owns: helpers around gateway.mqtt. Must not touch: sockets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from motelog.gateway.mqtt.acks import decode_ack, encode_ack
from motelog.gateway.mqtt.connect import (
    decode_connack,
    decode_connect,
    encode_connack,
    encode_connect,
)
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.fields import FieldReader
from motelog.gateway.mqtt.packet_types import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Subscribe,
    SubscriptionAck,
    Unsubscribe,
)
from motelog.gateway.mqtt.subscribe import (
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
    encode_suback,
    encode_subscribe,
    encode_unsuback,
    encode_unsubscribe,
)
from tests.support.durable_client import split

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "mqtt" / "packets.json"


def batch(frames: Iterable[tuple[int, int, bytes]]) -> tuple[bytes, bytes]:
    """Return (data, index) as one Turn has them, from (connection, version, frame)."""
    data = bytearray()
    index = bytearray()
    for connection, version, frame in frames:
        index += struct.pack("=4I", connection, version, len(data), len(data) + len(frame))
        data += frame
    return bytes(data), bytes(index)


def body_of(packet: bytes) -> bytes:
    """Return what follows the fixed header of a whole packet."""
    reader = FieldReader(packet)
    reader.u8()
    length = reader.varint()
    assert length == len(reader)
    return reader.rest()


def sent_again_after_pubrel(streams: Iterable[bytearray]) -> list[bytes]:
    """Return the payloads that a client sent again though it had sent their PUBREL.

    ``streams`` are what it sent, connection by connection. It must not do so [MQTT-4.3.3-1]: PUBREL
    ends the server's knowledge of the packet identifier, so what follows is another message.
    """
    released: set[int] = set()
    again = []
    for stream in streams:
        packets, _ = split(bytes(stream))
        version = 0
        for first_byte, body in packets:
            reader = FieldReader(body)
            packet_type = PacketType(first_byte >> 4)
            if packet_type is PacketType.CONNECT:
                reader.string()
                version = reader.u8()
            elif packet_type is PacketType.PUBREL:
                released.add(reader.u16())
            elif packet_type is PacketType.PUBLISH and first_byte & 0x06 == 0x04:
                reader.string()
                packet_id = reader.u16()
                if version == 5:
                    reader.bytes_of(reader.varint())
                if first_byte & 0x08 and packet_id in released:
                    again.append(reader.rest())
                released.discard(packet_id)
    return again


def decode_packet(version: int, packet: bytes) -> object:
    """Decode any packet that is not a PUBLISH, from whichever side it comes."""
    body = body_of(packet)
    packet_type = PacketType(packet[0] >> 4)
    match packet_type:
        case PacketType.CONNECT:
            return decode_connect(packet[0], body)
        case PacketType.CONNACK:
            return decode_connack(version, body)
        case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBREL | PacketType.PUBCOMP:
            return decode_ack(version, packet[0], body)
        case PacketType.SUBSCRIBE:
            return decode_subscribe(version, packet[0], body)
        case PacketType.SUBACK:
            return decode_suback(version, body)
        case PacketType.UNSUBSCRIBE:
            return decode_unsubscribe(version, packet[0], body)
        case PacketType.UNSUBACK:
            return decode_unsuback(version, body)
        case PacketType.DISCONNECT:
            return decode_disconnect(version, packet[0], body)
        case _:
            raise ValueError(f"{packet_type.name} has no class")


def encode_packet(version: int, packet_type: PacketType, value: object) -> bytes:
    """Encode what ``decode_packet`` returned."""
    match value:
        case Connect():
            return encode_connect(value)
        case Connack():
            return encode_connack(
                version, value.reason_code, value.session_present, value.properties.as_dict()
            )
        case Ack():
            return encode_ack(
                packet_type,
                version,
                value.packet_id,
                value.reason_code,
                value.properties.as_dict(),
            )
        case Subscribe():
            return encode_subscribe(version, value)
        case Unsubscribe():
            return encode_unsubscribe(version, value)
        case SubscriptionAck():
            encode = encode_suback if packet_type == PacketType.SUBACK else encode_unsuback
            return encode(version, value.packet_id, value.reason_codes, value.properties.as_dict())
        case Disconnect():
            return encode_disconnect(version, value.reason_code, value.properties.as_dict())
        case _:
            raise ValueError(f"no packet: {value!r}")


def load_vectors() -> list[dict[str, Any]]:
    """Return the vectors, ``hex`` turned into bytes everywhere."""
    vectors: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    for vector in vectors:
        vector["hex"] = {"hex": vector["hex"]}
    return [_with_bytes(vector) for vector in vectors]


def _with_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"hex"}:
        return bytes.fromhex(value["hex"])
    return {key: _with_bytes(item) for key, item in value.items()}
