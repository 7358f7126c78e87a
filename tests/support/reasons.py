"""Reason Strings taken out of answers, so that a test can compare the rest byte for byte.

Owns: ``without_reason``. Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

from motelog.gateway.mqtt.acks import decode_ack, encode_ack
from motelog.gateway.mqtt.connect import decode_connack, encode_connack
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.packet_types import PacketType, PropertyId
from motelog.gateway.mqtt.subscribe import decode_suback, encode_suback
from tests.support.mqtt import body_of


def without_reason(packet: bytes) -> tuple[bytes, str]:
    """Return an MQTT 5 server's packet without its Reason String, and that; "" if it has none."""
    packet_type = packet[0] >> 4
    if packet_type not in (
        PacketType.CONNACK,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.SUBACK,
        PacketType.DISCONNECT,
    ):
        return packet, ""
    if packet_type != PacketType.SUBACK and len(packet) < 6:
        return packet, ""  # too short for one, and perhaps of an older version
    body = body_of(packet)
    if packet_type == PacketType.CONNACK:
        connack = decode_connack(5, body)
        told = connack.properties.as_dict()
        reason = told.pop(PropertyId.REASON_STRING, None)
        plain = encode_connack(5, connack.reason_code, connack.session_present, told)
    elif packet_type == PacketType.SUBACK:
        suback = decode_suback(5, body)
        told = suback.properties.as_dict()
        reason = told.pop(PropertyId.REASON_STRING, None)
        plain = encode_suback(5, suback.packet_id, suback.reason_codes, told)
    elif packet_type == PacketType.DISCONNECT:
        end = decode_disconnect(5, packet[0], body, from_server=True)
        told = end.properties.as_dict()
        reason = told.pop(PropertyId.REASON_STRING, None)
        plain = encode_disconnect(5, end.reason_code, told)
    else:
        ack = decode_ack(5, packet[0], body)
        told = ack.properties.as_dict()
        reason = told.pop(PropertyId.REASON_STRING, None)
        plain = encode_ack(PacketType(packet_type), 5, ack.packet_id, ack.reason_code, told)
    if reason is None:
        return packet, ""
    assert isinstance(reason, str)
    assert reason, "a Reason String that says nothing"
    return plain, reason
