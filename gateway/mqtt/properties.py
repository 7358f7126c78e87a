"""MQTT 5.0 properties: the table of all properties, and its encoder and decoder.

Owns: the type of each property, in which packets it is allowed, whether it may be repeated, and its
allowed values. Must not touch: the meaning of a property for a session.
Spec: MQTT 5.0 sections 2.2.2 and 3.x.2.

    block:  { identifier varint | value } ...       the codec's blocks are without their length
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from motelog.gateway.mqtt.errors import MalformedPacketError, ProtocolViolationError
from motelog.gateway.mqtt.fields import FieldReader, encode_binary, encode_string
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    PacketType,
    Properties,
    PropertyId,
    PropertyValue,
    ReasonCode,
)
from motelog.gateway.mqtt.varint import encode_varint

# The standard has no limit; ours bounds the time that a packet can take.
REPEATED_MAX: Final = 1024
#: Longest Reason String: it is for people, who read one line.
REASON_CHARACTERS_MAX: Final = 1000

WILL: Final = 0  # for a CONNECT's will properties, which have their own column in table 2-4


def decode_properties(
    block: bytes | None, packet_type: int, *, from_server: bool = False
) -> Properties:
    """Return the properties in a block without its length; None and b"" mean none.

    ``packet_type`` is a PacketType or WILL. ``from_server`` relaxes the rules that apply only to
    clients. Raises MalformedPacketError or ProtocolViolationError.
    """
    if not block:
        return NO_PROPERTIES
    return _decode(FieldReader(block), packet_type, from_server=from_server)


def read_properties(
    reader: FieldReader, packet_type: int, *, from_server: bool = False
) -> Properties:
    """Read a property length and its block from a packet body."""
    length = reader.varint()
    if length == 0:
        return NO_PROPERTIES
    return _decode(reader.part(length), packet_type, from_server=from_server)


def encode_properties(
    properties: Mapping[PropertyId, PropertyValue] | None,
    *,
    left_out: Callable[[int], object] | None = None,
) -> bytes:
    """Return the block without its length; ValueError if a value does not fit its type.

    USER_PROPERTY takes a tuple of pairs, SUBSCRIPTION_IDENTIFIER an integer or a tuple of them.
    With ``left_out``, values that ``decode_properties`` would refuse are left out, and it is called
    with their number.
    """
    parts = []
    for property_id, value in (properties or {}).items():
        rule = _RULES[property_id]
        several = value if rule.is_repeatable and isinstance(value, tuple) else (value,)
        if left_out is not None and len(several) > REPEATED_MAX:
            left_out(len(several) - REPEATED_MAX)
            several = several[:REPEATED_MAX]
        for item in several:
            try:
                part = encode_varint(property_id) + _WRITERS[rule.kind](item)
            except (OverflowError, AttributeError, TypeError, IndexError, ValueError) as exc:
                if left_out is not None:
                    left_out(1)
                    continue
                raise ValueError(f"{rule.attribute} cannot be {item!r}: {exc}") from exc
            if left_out is not None and rule.fault is not None and rule.fault(item):
                left_out(1)
            else:
                parts.append(part)
    return b"".join(parts)


def reason_string(why: str) -> dict[PropertyId, PropertyValue]:
    """Return a Reason String as the property of an answer, of at most REASON_CHARACTERS_MAX.

    The reason may be any text from a remote broker.
    """
    return {PropertyId.REASON_STRING: why[:REASON_CHARACTERS_MAX].replace("\0", "\ufffd")}


def length_and_properties(properties: Mapping[PropertyId, PropertyValue] | None) -> bytes:
    """Return the block after its length, as in a packet."""
    block = encode_properties(properties)
    return encode_varint(len(block)) + block


def _decode(reader: FieldReader, packet_type: int, *, from_server: bool) -> Properties:
    values: dict[str, Any] = {}
    while len(reader):
        begin = reader.position
        identifier = reader.u8()  # a varint, but all identifiers fit into one byte
        rule = _RULES.get(identifier)
        if rule is None or not rule.packets >> packet_type & 1:
            # Section 2.2.2.2: an identifier that is not valid for its packet type.
            raise MalformedPacketError(
                f"property 0x{identifier:02x} does not belong here", offset_bytes=begin
            )
        value = _READERS[rule.kind](reader)
        if rule.fault is not None and rule.fault(value):
            raise ProtocolViolationError(
                f"{rule.attribute} may not be {value!r}", reason_code=rule.fault_reason_code
            )
        if rule.is_repeatable:
            several = values.setdefault(rule.attribute, [])
            several.append(value)
            if len(several) > REPEATED_MAX:
                raise ProtocolViolationError(
                    f"more than {REPEATED_MAX} {rule.attribute}",
                    reason_code=ReasonCode.QUOTA_EXCEEDED,
                )
        elif rule.attribute in values:
            raise ProtocolViolationError(f"{rule.attribute} occurs twice")
        else:
            values[rule.attribute] = value
    _check_together(values, packet_type, from_server=from_server)
    for repeatable in _REPEATABLE & values.keys():
        values[repeatable] = tuple(values[repeatable])
    return Properties.of(values)


def _check_together(values: dict[str, Any], packet_type: int, *, from_server: bool) -> None:
    if "authentication_data" in values and "authentication_method" not in values:
        # Section 3.1.2.11.10
        raise ProtocolViolationError("authentication data without a method")
    if "subscription_identifiers" not in values or from_server:
        return
    if packet_type == PacketType.PUBLISH:  # [MQTT-3.3.4-6]
        raise ProtocolViolationError("a client's PUBLISH has a subscription identifier")
    if len(values["subscription_identifiers"]) > 1:  # section 3.8.2.1.2
        raise ProtocolViolationError("a SUBSCRIBE has two subscription identifiers")


class _Kind(IntEnum):
    BYTE = 0
    U16 = 1
    U32 = 2
    VARINT = 3
    STRING = 4
    BINARY = 5
    PAIR = 6


_READERS: Final[dict[_Kind, Callable[[FieldReader], Any]]] = {
    _Kind.BYTE: FieldReader.u8,
    _Kind.U16: FieldReader.u16,
    _Kind.U32: FieldReader.u32,
    _Kind.VARINT: FieldReader.varint,
    _Kind.STRING: FieldReader.string,
    _Kind.BINARY: FieldReader.binary,
    _Kind.PAIR: lambda reader: (reader.string(), reader.string()),
}

_WRITERS: Final[dict[_Kind, Callable[[Any], bytes]]] = {
    _Kind.BYTE: lambda value: int(value).to_bytes(1, "big"),
    _Kind.U16: lambda value: int(value).to_bytes(2, "big"),
    _Kind.U32: lambda value: int(value).to_bytes(4, "big"),
    _Kind.VARINT: encode_varint,
    _Kind.STRING: encode_string,
    _Kind.BINARY: encode_binary,
    _Kind.PAIR: lambda pair: encode_string(pair[0]) + encode_string(pair[1]),
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """One row of table 2-4; ``fault`` says whether a value of the right type is still illegal."""

    attribute: str
    kind: _Kind
    packets: int
    is_repeatable: bool = False
    fault: Callable[[Any], bool] | None = None
    fault_reason_code: int = ReasonCode.PROTOCOL_ERROR


def _in(*packets: int) -> int:
    return sum(1 << packet for packet in packets)


def _not_0_or_1(value: int) -> bool:
    return value > 1


def _is_0(value: int) -> bool:
    return value == 0


def _is_no_name(topic: str) -> bool:
    return not topic or "+" in topic or "#" in topic


_P = PacketType
_ANSWERS = (_P.CONNACK, _P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK)
_MESSAGE = _in(_P.PUBLISH, WILL)
_AUTH = _in(_P.CONNECT, _P.CONNACK, _P.AUTH)
_HELLO = _in(_P.CONNECT, _P.CONNACK)

_RULES: Final[dict[int, _Rule]] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: _Rule(
        "payload_format_indicator", _Kind.BYTE, _MESSAGE, fault=_not_0_or_1
    ),
    PropertyId.MESSAGE_EXPIRY_INTERVAL: _Rule("message_expiry_interval_s", _Kind.U32, _MESSAGE),
    PropertyId.CONTENT_TYPE: _Rule("content_type", _Kind.STRING, _MESSAGE),
    PropertyId.RESPONSE_TOPIC: _Rule(
        "response_topic",
        _Kind.STRING,
        _MESSAGE,
        fault=_is_no_name,  # [MQTT-3.3.2-14] [MQTT-4.7.3-1]
    ),
    PropertyId.CORRELATION_DATA: _Rule("correlation_data", _Kind.BINARY, _MESSAGE),
    PropertyId.SUBSCRIPTION_IDENTIFIER: _Rule(
        "subscription_identifiers",
        _Kind.VARINT,
        _in(_P.PUBLISH, _P.SUBSCRIBE),
        is_repeatable=True,
        fault=_is_0,
    ),
    PropertyId.SESSION_EXPIRY_INTERVAL: _Rule(
        "session_expiry_interval_s", _Kind.U32, _HELLO | _in(_P.DISCONNECT)
    ),
    PropertyId.ASSIGNED_CLIENT_IDENTIFIER: _Rule(
        "assigned_client_id", _Kind.STRING, _in(_P.CONNACK)
    ),
    PropertyId.SERVER_KEEP_ALIVE: _Rule("server_keep_alive_s", _Kind.U16, _in(_P.CONNACK)),
    PropertyId.AUTHENTICATION_METHOD: _Rule("authentication_method", _Kind.STRING, _AUTH),
    PropertyId.AUTHENTICATION_DATA: _Rule("authentication_data", _Kind.BINARY, _AUTH),
    PropertyId.REQUEST_PROBLEM_INFORMATION: _Rule(
        "request_problem_information", _Kind.BYTE, _in(_P.CONNECT), fault=_not_0_or_1
    ),
    PropertyId.WILL_DELAY_INTERVAL: _Rule("will_delay_interval_s", _Kind.U32, _in(WILL)),
    PropertyId.REQUEST_RESPONSE_INFORMATION: _Rule(
        "request_response_information", _Kind.BYTE, _in(_P.CONNECT), fault=_not_0_or_1
    ),
    PropertyId.RESPONSE_INFORMATION: _Rule("response_information", _Kind.STRING, _in(_P.CONNACK)),
    PropertyId.SERVER_REFERENCE: _Rule(
        "server_reference", _Kind.STRING, _in(_P.CONNACK, _P.DISCONNECT)
    ),
    PropertyId.REASON_STRING: _Rule(
        "reason_string", _Kind.STRING, _in(*_ANSWERS, _P.DISCONNECT, _P.AUTH)
    ),
    PropertyId.RECEIVE_MAXIMUM: _Rule("receive_maximum", _Kind.U16, _HELLO, fault=_is_0),
    PropertyId.TOPIC_ALIAS_MAXIMUM: _Rule("topic_alias_maximum", _Kind.U16, _HELLO),
    PropertyId.TOPIC_ALIAS: _Rule(
        "topic_alias",
        _Kind.U16,
        _in(_P.PUBLISH),
        fault=_is_0,  # [MQTT-3.3.2-8]
        fault_reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    PropertyId.MAXIMUM_QOS: _Rule("maximum_qos", _Kind.BYTE, _in(_P.CONNACK), fault=_not_0_or_1),
    PropertyId.RETAIN_AVAILABLE: _Rule(
        "retain_available", _Kind.BYTE, _in(_P.CONNACK), fault=_not_0_or_1
    ),
    PropertyId.USER_PROPERTY: _Rule(
        "user_properties",
        _Kind.PAIR,
        _in(*set(_P) - {_P.PINGREQ, _P.PINGRESP}, WILL),
        is_repeatable=True,
    ),
    PropertyId.MAXIMUM_PACKET_SIZE: _Rule("maximum_packet_bytes", _Kind.U32, _HELLO, fault=_is_0),
    PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE: _Rule(
        "wildcard_subscription_available", _Kind.BYTE, _in(_P.CONNACK), fault=_not_0_or_1
    ),
    PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _Rule(
        "subscription_identifier_available", _Kind.BYTE, _in(_P.CONNACK), fault=_not_0_or_1
    ),
    PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: _Rule(
        "shared_subscription_available", _Kind.BYTE, _in(_P.CONNACK), fault=_not_0_or_1
    ),
}
_REPEATABLE: Final = frozenset(rule.attribute for rule in _RULES.values() if rule.is_repeatable)
