"""Values of the MQTT packets: types, reason codes, property identifiers, packets as dataclasses.

Owns: the names and numbers of MQTT 3.1, 3.1.1 and 5.0. Must not touch: bytes; each packet's own
module decodes and encodes it. PUBLISH and its acknowledgements are passed as plain tuples
(gateway.mqtt.frames), all other packets as the classes below.
Spec: MQTT 5.0 sections 2.1.2, 2.2.2.2 and 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgspec

PROTOCOL_VERSIONS: Final = (3, 4, 5)  # the level byte of MQTT 3.1, 3.1.1, 5.0


class PacketType(IntEnum):
    """Upper four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ReasonCode(IntEnum):
    """MQTT 5.0 section 2.4; names that share a number depend on the packet."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class PropertyId(IntEnum):
    """MQTT 5.0 table 2-4."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


# An integer, text or bytes; SUBSCRIPTION_IDENTIFIER: integers; USER_PROPERTY: (name, value) pairs.
PropertyValue: TypeAlias = int | str | bytes | tuple[int, ...] | tuple[tuple[str, str], ...]


@dataclass(frozen=True, repr=False)
class Properties:
    """The properties of one packet; None (or an empty tuple) means that the packet has none.

    The attribute names are those of PropertyId in lower case, with the unit if there is one.
    Deliberately without slots: an absent property is then read from the class and takes no memory.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval_s: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval_s: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_bytes: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    @classmethod
    def of(cls, present: dict[str, Any]) -> Properties:
        """Return properties from attribute names and values that the caller has checked.

        The constructor sets all 27 attributes; a PUBLISH by topic alias comes here with one.
        """
        made = cls.__new__(cls)
        made.__dict__.update(present)
        return made

    def __repr__(self) -> str:
        present = (f"{key.name.lower()}={value!r}" for key, value in self.as_dict().items())
        return f"Properties({', '.join(present)})"

    def as_dict(self) -> dict[PropertyId, PropertyValue]:
        """Return the present properties, in the form for the encoders."""
        present: dict[PropertyId, PropertyValue] = {}
        for property_id, one in zip(PropertyId, fields(self), strict=True):
            value = getattr(self, one.name)
            if value is not None and value != ():
                present[property_id] = value
        return present


NO_PROPERTIES: Final = Properties()


@dataclass(frozen=True, slots=True)
class Will:
    """The will message of a CONNECT."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = NO_PROPERTIES


class Connect(msgspec.Struct, frozen=True):
    """``version`` is 3 (MQTT 3.1), 4 (3.1.1) or 5; ``keep_alive_s`` 0 asks for none."""

    version: int
    clean_start: bool
    keep_alive_s: int
    client_id: str
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES

    def __repr__(self) -> str:
        """Without the password."""
        return (
            f"Connect({self.version}, {self.clean_start}, {self.keep_alive_s}, {self.client_id!r},"
            f" {self.will}, {self.user_name!r}, properties={self.properties})"
        )


@dataclass(frozen=True, slots=True)
class Connack:
    """``reason_code`` is a return code 0..5 when the version is 3 or 4."""

    reason_code: int
    session_present: bool
    properties: Properties = NO_PROPERTIES


class SubscribeEntry(msgspec.Struct, frozen=True):
    """One topic filter with its subscription options (MQTT 5.0 section 3.8.3.1)."""

    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    @property
    def options(self) -> int:
        """The options as a byte."""
        return (
            self.qos
            | self.no_local << 2
            | self.retain_as_published << 3
            | self.retain_handling << 4
        )


class Subscribe(msgspec.Struct, frozen=True):
    packet_id: int
    entries: tuple[SubscribeEntry, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    packet_id: int
    reason_code: int
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class SubscriptionAck:
    """SUBACK or UNSUBACK: one reason code per topic filter (none in an UNSUBACK before MQTT 5)."""

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Disconnect:
    reason_code: int = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES
