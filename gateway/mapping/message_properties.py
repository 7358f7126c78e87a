"""The publisher's part of a message's property text, and MQTT 5 properties from it.

Owns: the property ``clientId`` and the JSON text of ``mqttProperties``. Must not touch: packets,
the log.
Invariant: receivers get only what a device could have sent; illegal properties of a native producer
are omitted.
Spec: MQTT 5.0 section 3.3.2.3.

    clientId \\x01 sensor-7 \\x02 mqttProperties \\x01 {"contentType":"text/plain", ...} \\x02

JSON keeps the MQTT 5 properties readable for native consumers and Spark; its escapes keep the
separators U+0001 and U+0002 out of the property text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from motelog.core.message import (
    MQTT_CLIENT_ID,
    MQTT_PROPERTIES,
    MQTT_TOPIC,
    NAME_END,
    VALUE_END,
    encode_properties,
)
from motelog.gateway.mqtt.packet_types import Properties, PropertyId, PropertyValue
from motelog.gateway.mqtt.properties import encode_properties as encode_block


class StoredProperties(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The MQTT 5 properties of a PUBLISH that are forwarded to receivers."""

    payload_format: int | None = None
    expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user: tuple[tuple[str, str], ...] = ()


#: Property with the topic name of an MQTT message, as ``decode_brief`` takes it.
TOPIC_PROPERTY: Final = MQTT_TOPIC.encode()
_NONE: Final = StoredProperties()
_EXPIRY_S_MAX: Final = 0xFFFFFFFF
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(StoredProperties)
_END: Final = VALUE_END.encode()
_CLIENT_ID: Final = (MQTT_CLIENT_ID + NAME_END).encode()
_PROPERTIES: Final = (MQTT_PROPERTIES + NAME_END).encode()

#: Called with the number of properties that were omitted from a message.
LeftOut: TypeAlias = Callable[[int], object]


def uncounted(_: int) -> None:
    """Ignore the number, if the caller does not count omitted properties."""


def publisher_properties(client_id: str) -> bytes:
    """Return the property text at the end of every message of one publisher."""
    return encode_properties({MQTT_CLIENT_ID: client_id})


def publish_properties(properties: Properties) -> bytes:
    """Return the property text of a PUBLISH's own properties; empty if it has none to forward."""
    stored = StoredProperties(
        payload_format=properties.payload_format_indicator,
        expiry_s=properties.message_expiry_interval_s,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user=properties.user_properties,
    )
    if stored == _NONE:
        return b""
    return _PROPERTIES + _encoder.encode(stored) + _END


def delivery_properties(
    text: bytes,
    *,
    store_ms: int,
    now_ms: int,
    was_sent: bool = False,
    left_out: LeftOut = uncounted,
) -> bytes | None:
    """Return the property block for MQTT 5 receivers, b"" if empty; None if the message expired.

    A receiver gets the remaining expiry interval. [MQTT-3.3.2-6] A message that ``was_sent`` before
    no longer expires; its remaining interval may be 0. [MQTT-4.3.3-7] ``left_out`` is called
    with the number of illegal properties; a list that cannot be read counts as one.
    """
    stored = _read(text, left_out)
    if stored is _NONE:
        return b""
    block: dict[PropertyId, PropertyValue] = {}
    if stored.payload_format is not None:
        block[PropertyId.PAYLOAD_FORMAT_INDICATOR] = stored.payload_format
    if stored.expiry_s is not None:
        left_s = stored.expiry_s - max(0, now_ms - store_ms) // 1000
        if left_s <= 0 and not was_sent:
            return None  # [MQTT-3.3.2-5]
        block[PropertyId.MESSAGE_EXPIRY_INTERVAL] = max(0, left_s)
    if stored.content_type is not None:
        block[PropertyId.CONTENT_TYPE] = stored.content_type
    if stored.response_topic is not None:
        block[PropertyId.RESPONSE_TOPIC] = stored.response_topic
    if stored.correlation_data is not None:
        block[PropertyId.CORRELATION_DATA] = stored.correlation_data
    if stored.user:
        block[PropertyId.USER_PROPERTY] = stored.user
    return encode_block(block, left_out=left_out)


def expires_ms(text: bytes, store_ms: int) -> int | None:
    """Return when a message stored at ``store_ms`` expires; None if it does not."""
    expiry_s = _read(text).expiry_s
    return None if expiry_s is None else store_ms + expiry_s * 1000


def _read(text: bytes, left_out: LeftOut = uncounted) -> StoredProperties:
    """Return the MQTT 5 properties in a property text; a native producer may write anything."""
    value = _value(text, _PROPERTIES)
    if value is None:
        return _NONE
    try:
        stored = _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        left_out(1)
        return _NONE
    if stored.expiry_s is not None and not 0 <= stored.expiry_s <= _EXPIRY_S_MAX:
        left_out(1)
        return msgspec.structs.replace(stored, expiry_s=None)
    return stored


def client_id_property(text: bytes) -> str:
    """Return the client identifier of the publisher, "" for a native producer's message."""
    value = _value(text, _CLIENT_ID)
    return value.decode(errors="replace") if value is not None else ""


def _value(text: bytes, name: bytes) -> bytes | None:
    """Return the value of a property; ``name`` includes the separator."""
    begin = len(name)
    if not text.startswith(name):
        before = text.find(_END + name)
        if before < 0:
            return None
        begin += before + 1
    end = text.find(_END, begin)
    return text[begin:] if end < 0 else text[begin:end]
