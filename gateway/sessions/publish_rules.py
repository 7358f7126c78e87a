"""PUBLISH and its acknowledgements: how the gateway refuses a publish.

Owns: the answer to a publish that is not stored, the error for an unexpected packet.
Must not touch: connections, sessions, the log. ``listener`` and ``deliver`` take
the plain cases in batches and do not ask here.
Spec: MQTT 5.0 and 3.1.1 sections 3.3 to 3.7.
"""

from __future__ import annotations

from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.errors import ProtocolViolationError
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.sessions.connection import Connection


def refuse_publish(
    connection: Connection, kind: PacketType, packet_id: int, reason_code: int, why: str
) -> bytes | None:
    """Return the PUBACK or PUBREC for a publish that is not stored.

    None if the connection must be closed: MQTT 3 has no other way to refuse a publish.
    """
    if connection.version != 5:
        return None
    reasoned = encode_ack(kind, 5, packet_id, reason_code, reason_string(why))
    return connection.choose(reasoned, encode_ack(kind, 5, packet_id, reason_code))


def unexpected(first_byte: int) -> ProtocolViolationError:
    """Return the error for a packet that a connected client must not send now."""
    packet_type = first_byte >> 4
    if packet_type == PacketType.CONNECT:  # [MQTT-3.1.0-2]
        return ProtocolViolationError("second CONNECT")
    return ProtocolViolationError(f"packet with first byte 0x{first_byte:02x}")
