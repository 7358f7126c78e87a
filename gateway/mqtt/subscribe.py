"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK.

Owns: their bytes. Must not touch: subscriptions, and which of the standard's options are granted.
Spec: MQTT 5.0 sections 3.8 to 3.11.

    SUBSCRIBE:    packet id u16 | properties (v5) | { filter string | options u8 } ...
    options:      retain handling 5..4 | retain as published 3 | no local 2 | QoS 1..0 (v5)
    UNSUBSCRIBE:  packet id u16 | properties (v5) | { filter string } ...
    SUBACK:       packet id u16 | properties (v5) | { reason code u8 } ...
    UNSUBACK:     the same in v5; only the packet id u16 before
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from motelog.gateway.mqtt.errors import MalformedPacketError, ProtocolViolationError
from motelog.gateway.mqtt.fields import FieldReader, encode_string
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    PacketType,
    Properties,
    PropertyId,
    PropertyValue,
    ReasonCode,
    Subscribe,
    SubscribeEntry,
    SubscriptionAck,
    Unsubscribe,
)
from motelog.gateway.mqtt.packing import check_flags, packet
from motelog.gateway.mqtt.properties import length_and_properties, read_properties
from motelog.gateway.mqtt.topics import check_topic_filter, parse_shared

# The standard sets no limit; ours keeps a packet from costing more time than its bytes are worth.
FILTERS_MAX: Final = 4096
_FLAGS: Final = 0b0010  # [MQTT-3.8.1-1] [MQTT-3.10.1-1]
_FAILURE: Final = 0x80


def decode_subscribe(version: int, first_byte: int, body: bytes) -> Subscribe:
    """Return the SUBSCRIBE in a packet body; every topic filter in it is legal.

    Raises MalformedPacketError, ProtocolViolationError or TopicFilterError.
    """
    reader, packet_id, properties = _begin(PacketType.SUBSCRIBE, version, first_byte, body)
    entries: list[SubscribeEntry] = []
    while len(reader):
        topic_filter = reader.string()  # [MQTT-3.8.3-1]
        _check_filter(topic_filter, len(entries))
        entries.append(_entry(version, topic_filter, reader.u8()))
    if not entries:  # [MQTT-3.8.3-2]
        raise ProtocolViolationError("SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, tuple(entries), properties)


def encode_subscribe(version: int, subscribe: Subscribe) -> bytes:
    """Return the whole SUBSCRIBE packet; only MQTT 5 has options other than the QoS."""
    parts = [_head(version, subscribe.packet_id, subscribe.properties.as_dict())]
    for entry in subscribe.entries:
        parts.append(encode_string(entry.topic_filter))
        parts.append(bytes((entry.options if version == 5 else entry.qos,)))
    return packet(PacketType.SUBSCRIBE, b"".join(parts), _FLAGS)


def decode_unsubscribe(version: int, first_byte: int, body: bytes) -> Unsubscribe:
    """Return the UNSUBSCRIBE in a packet body; errors as with ``decode_subscribe``."""
    reader, packet_id, properties = _begin(PacketType.UNSUBSCRIBE, version, first_byte, body)
    topic_filters: list[str] = []
    while len(reader):
        topic_filter = reader.string()  # [MQTT-3.10.3-1]
        _check_filter(topic_filter, len(topic_filters))
        topic_filters.append(topic_filter)
    if not topic_filters:  # [MQTT-3.10.3-2]
        raise ProtocolViolationError("UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def encode_unsubscribe(version: int, unsubscribe: Unsubscribe) -> bytes:
    """Return the whole UNSUBSCRIBE packet."""
    head = _head(version, unsubscribe.packet_id, unsubscribe.properties.as_dict())
    body = head + b"".join(encode_string(one) for one in unsubscribe.topic_filters)
    return packet(PacketType.UNSUBSCRIBE, body, _FLAGS)


def encode_suback(
    version: int,
    packet_id: int,
    codes: Iterable[int],
    properties: Mapping[PropertyId, PropertyValue] | None = None,
) -> bytes:
    """Return the SUBACK packet, one reason code per topic filter in their order [MQTT-3.8.4-6].

    Before MQTT 5 every failure is 0x80 [MQTT-3.9.3-2 of 3.1.1]; 3.1 has the same byte by custom.
    """
    encoded = bytes(codes)
    if version != 5 and max(encoded) > _FAILURE:
        encoded = bytes([min(code, _FAILURE) for code in encoded])
    return packet(PacketType.SUBACK, _head(version, packet_id, properties) + encoded)


def encode_unsuback(
    version: int,
    packet_id: int,
    codes: Iterable[int] = (),
    properties: Mapping[PropertyId, PropertyValue] | None = None,
) -> bytes:
    """Return the UNSUBACK packet; only MQTT 5 has ``codes``, one per topic filter."""
    encoded = bytes(codes) if version == 5 else b""
    return packet(PacketType.UNSUBACK, _head(version, packet_id, properties) + encoded)


def decode_suback(version: int, body: bytes) -> SubscriptionAck:
    """Return the SUBACK in a packet body."""
    answer = _decode_answer(version, PacketType.SUBACK, body)
    if not answer.reason_codes:
        raise ProtocolViolationError("SUBACK without a reason code")
    return answer


def decode_unsuback(version: int, body: bytes) -> SubscriptionAck:
    """Return the UNSUBACK in a packet body."""
    answer = _decode_answer(version, PacketType.UNSUBACK, body)
    if bool(answer.reason_codes) != (version == 5):
        raise MalformedPacketError("UNSUBACK's reason codes do not fit its version")
    return answer


def _decode_answer(version: int, packet_type: PacketType, body: bytes) -> SubscriptionAck:
    reader = FieldReader(body)
    packet_id = _read_packet_id(reader)
    properties = NO_PROPERTIES
    if version == 5:
        properties = read_properties(reader, packet_type, from_server=True)
    return SubscriptionAck(packet_id, tuple(reader.rest()), properties)


def _begin(
    packet_type: PacketType, version: int, first_byte: int, body: bytes
) -> tuple[FieldReader, int, Properties]:
    """Read the part before the topic filters; the reader continues at the first filter."""
    check_flags(version, first_byte, _FLAGS)
    reader = FieldReader(body)
    packet_id = _read_packet_id(reader)
    if version != 5:
        return reader, packet_id, NO_PROPERTIES
    return reader, packet_id, read_properties(reader, packet_type)


def _check_filter(topic_filter: str, before_it: int) -> None:
    if before_it == FILTERS_MAX:
        raise ProtocolViolationError(
            f"more than {FILTERS_MAX} topic filters", reason_code=ReasonCode.QUOTA_EXCEEDED
        )
    check_topic_filter(topic_filter)


def _entry(version: int, topic_filter: str, options: int) -> SubscribeEntry:
    if options < 3:  # only a QoS, as in nearly every packet
        return SubscribeEntry(topic_filter, options)
    qos = options & 3
    if qos == 3:
        raise ProtocolViolationError("subscription QoS is 3")  # section 3.8.3.1
    if options & (0xC0 if version == 5 else 0xFC):  # [MQTT-3.8.3-5]; [MQTT-3-8.3-4 of 3.1.1]
        raise MalformedPacketError("reserved subscription options are set")
    no_local = bool(options & 0x04)
    if no_local and parse_shared(topic_filter) is not None:  # [MQTT-3.8.3-4]
        raise ProtocolViolationError("no local on a shared subscription")
    retain_handling = options >> 4 & 3
    if retain_handling == 3:
        raise ProtocolViolationError("retain handling is 3")  # section 3.8.3.1
    return SubscribeEntry(topic_filter, qos, no_local, bool(options & 0x08), retain_handling)


def _read_packet_id(reader: FieldReader) -> int:
    packet_id = reader.u16()
    if packet_id == 0:  # [MQTT-2.2.1-3]
        raise ProtocolViolationError("packet identifier is 0")
    return packet_id


def _head(
    version: int, packet_id: int, properties: Mapping[PropertyId, PropertyValue] | None
) -> bytes:
    head = packet_id.to_bytes(2, "big")
    return head + length_and_properties(properties) if version == 5 else head
