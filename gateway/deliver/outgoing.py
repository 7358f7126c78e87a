"""A record as a PUBLISH: how MQTT receivers see a message of the log.

Owns: OutgoingMessage, the encoding for one receiver. Must not touch: outputs, windows, plans.
Spec: MQTT 5.0 section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from motelog.core.message import (
    MQTT_PROPERTIES,
    MQTT_QOS,
    MQTT_RETAIN,
    SYS_FLAG_COMPRESSED,
    TAGS,
    decode_properties,
)
from motelog.core.records.decode import inflate
from motelog.gateway.mapping.message_properties import (
    LeftOut,
    client_id_property,
    delivery_properties,
    uncounted,
)
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.packet_types import PropertyId
from motelog.gateway.mqtt.varint import encode_varint
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import HAS_IDENTIFIER, SubscriptionTree

#: A native producer's compressed body is inflated to at most this size for an MQTT client.
_INFLATED_BYTES_MAX: Final = 4_194_304

V5_PROPERTIES: Final = f"{MQTT_PROPERTIES}\x01".encode()
AT_MOST_ONCE: Final = f"{MQTT_QOS}\x010\x02".encode()
EXACTLY_ONCE: Final = f"{MQTT_QOS}\x012\x02".encode()
_RETAIN: Final = f"{MQTT_RETAIN}\x011\x02".encode()

_IDENTIFIER: Final = bytes((PropertyId.SUBSCRIPTION_IDENTIFIER,))
_ALIAS: Final = bytes((PropertyId.TOPIC_ALIAS,))

#: (queue offset, MQTT topic or None, queue topic, properties, body, sys flag, store time ms, bytes)
BriefRecord = tuple[int, bytes | None, bytes, bytes, bytes, int, int, int]


def message_qos(properties: bytes) -> int:
    """Return the QoS at which the message was published; 1 for a native producer's message."""
    # find, because "in" internally raises and catches an exception whenever it looks for bytes.
    if properties.find(AT_MOST_ONCE) >= 0:
        return 0
    return 2 if properties.find(EXACTLY_ONCE) >= 0 else 1


def body_and_block(
    record: BriefRecord, now_ms: int, left_out: LeftOut = uncounted, *, was_sent: bool = False
) -> tuple[bytes | None, bytes | None]:
    """Return the body, None if it cannot be inflated, and the properties for MQTT 5 receivers.

    The properties are b"" if there are none, and None if the message has expired; a message that
    ``was_sent`` before does not expire. ``left_out`` as for ``delivery_properties``.
    """
    _, _, _, properties, body, sys_flag, store_ms, _ = record
    inflated = inflate(body, _INFLATED_BYTES_MAX) if sys_flag & SYS_FLAG_COMPRESSED else body
    # find, because "in" internally raises and catches an exception whenever it looks for bytes.
    if properties.find(V5_PROPERTIES) < 0:
        return inflated, b""
    return inflated, delivery_properties(
        properties, store_ms=store_ms, now_ms=now_ms, was_sent=was_sent, left_out=left_out
    )


class OutgoingMessage:
    """One record as a message, for receivers that are served one by one.

    ``body`` is None if it cannot be inflated. A message that ``was_sent`` before does not expire.
    """

    __slots__ = (
        "_text",
        "body",
        "is_expired",
        "name",
        "properties",
        "qos",
        "store_ms",
    )

    def __init__(
        self, record: BriefRecord, name: bytes, now_ms: int, *, was_sent: bool = False
    ) -> None:
        properties = self._text = record[3]
        self.name = name
        self.body, block = body_and_block(record, now_ms, was_sent=was_sent)
        self.is_expired = block is None
        self.properties = block or None
        self.qos = message_qos(properties)
        self.store_ms = record[6]

    @property
    def is_retained(self) -> bool:
        """Whether it was published with RETAIN."""
        return self._text.find(_RETAIN) >= 0

    @property
    def client_id(self) -> str:
        """The publisher's client identifier, "" for a native producer's message."""
        return client_id_property(self._text)


def encode(
    name: bytes, body: bytes, first_byte: int, version: int, block: bytes | None
) -> tuple[bytes, int]:
    """Return a PUBLISH and the position of its packet identifier; only MQTT 5 has properties."""
    return encode_publish(name, body, first_byte, version, block if version == 5 else None)


def identifier_property(identifier: int) -> bytes:
    """Return a subscription identifier as a property."""
    return _IDENTIFIER + encode_varint(identifier)


def identifiers_for(
    subscriptions: SubscriptionTree[Receiver],
    session: Session,
    options: int,
    name: bytes,
    replayed: str,
) -> bytes:
    """Return the subscription identifiers of the filters that match a topic name, as properties.

    For a retained message that is ``replayed`` to one filter, only that filter's identifier.
    """
    if not options & HAS_IDENTIFIER:
        return b""
    # It may have many filters, so the tree finds those that match. [MQTT-3.3.4-4] [MQTT-3.3.4-5]
    filters = [replayed] if replayed else [one for _, one in subscriptions.entries(name.decode())]
    return identifiers_of(session, filters)


def identifiers_of(session: Session, topic_filters: Iterable[str]) -> bytes:
    """Return the subscription identifiers of some of a session's filters, as properties."""
    found = b""
    identifiers = session.particulars.identifiers
    for topic_filter in dict.fromkeys(topic_filters):
        if topic_filter in identifiers:
            found += identifier_property(identifiers[topic_filter])
    return found


def encode_for(
    connection: Connection,
    message: OutgoingMessage,
    first_byte: int,
    identifiers: bytes,
    *,
    with_alias: bool,
) -> tuple[bytes, int]:
    """Return a PUBLISH for one receiver, with its subscription identifiers and topic alias.

    A new alias takes effect when ``connection.note_alias`` is called, after the packet is sent.
    """
    assert message.body is not None
    if connection.version != 5:
        return encode_publish(message.name, message.body, first_byte, connection.version, None)
    name, block = message.name, identifiers + (message.properties or b"")
    if with_alias and connection.topic_alias_max:
        alias, is_known = connection.alias_for(name)
        if alias:
            block = _ALIAS + alias.to_bytes(2, "big") + block
            if is_known:
                name = b""
    return encode_publish(name, message.body, first_byte, 5, block or None)


def native_topic_name(record: BriefRecord) -> bytes:
    """Return the topic name of a native producer's message: its queue topic and tag."""
    tag = decode_properties(record[3]).get(TAGS)
    return record[2] + b"/" + tag.encode() if tag else record[2]
