"""PUBLISH and its acknowledgements: what the gateway takes, and how it refuses the rest.

Owns: which of them are offered, the answer to a publish that is not stored.
Must not touch: connections, sessions, the log. ``publish.reactor_listener`` and ``deliver`` take
the plain cases in batches and do not ask here.
Spec: MQTT 5.0 and 3.1.1 sections 3.3 to 3.7.
"""

from __future__ import annotations

from motelog.gateway.errors import GatewayError, ProtocolViolationError
from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.sessions.connection import Connection


def check_publish(first_byte: int) -> int:
    """Return the QoS of a PUBLISH; GatewayError if it asks for what CONNACK did not offer."""
    qos = first_byte >> 1 & 3
    if first_byte & 1:  # [MQTT-3.2.2-14]
        raise GatewayError(
            "retained messages are not offered yet", reason_code=ReasonCode.RETAIN_NOT_SUPPORTED
        )
    return qos


def refuse_publish(
    connection: Connection, kind: PacketType, packet_id: int, reason_code: int, why: str
) -> bytes | None:
    """Return the PUBACK or PUBREC for a publish that is not stored.

    None if the connection has to end: MQTT 3 can refuse a publish in no other way.
    """
    if connection.version != 5:
        return None
    reasoned = encode_ack(kind, 5, packet_id, reason_code, reason_string(why))
    return connection.choose(reasoned, encode_ack(kind, 5, packet_id, reason_code))


def unexpected(first_byte: int) -> ProtocolViolationError:
    """Return the error for a packet that a connected client may not send now."""
    packet_type = first_byte >> 4
    if packet_type == PacketType.CONNECT:  # [MQTT-3.1.0-2]
        return ProtocolViolationError("second CONNECT")
    return ProtocolViolationError(f"packet with first byte 0x{first_byte:02x}")
