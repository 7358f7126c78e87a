r"""Messages as values: those of producers, their queues, their property text.

Owns: Message, MessageQueue, the offset types, the property text codec, Java's string hash, host
encoding and message ids. Must not touch: sockets, files, clocks; messages that were read
(core.records.decode).
Spec: RocketMQ MessageDecoder, MessageConst, UtilAll.

    property text:  name \x01 value \x02 name \x01 value \x02 ...      (UTF-8, at most 32767 bytes)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"
PROPERTIES_BYTES_MAX: Final = 32767

# Property names that RocketMQ gives a meaning to (MessageConst).
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
REAL_QID: Final = "REAL_QID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
# In a record that recalls a waiting message: the unique key of that message.
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
# In a request, which waits for a reply, and in the reply.
MSG_TYPE: Final = "MSG_TYPE"
CLUSTER: Final = "CLUSTER"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
REPLY_TTL_MS: Final = "TTL"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
# Properties of transactions. TRAN_MSG: the message is a half message; PGROUP: its producer group;
# TRAN_PREPARED_QUEUE_OFFSET: its first queue offset, if it has been appended again.
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
# Property names of an MQTT message in the log (docs/mqtt-mapping.md); the first
# and third are those of rocketmq-mqtt.
MQTT_TOPIC: Final = "mqttRealTopic"
MQTT_QOS: Final = "qosLevel"
MQTT_CLIENT_ID: Final = "clientId"
MQTT_PROPERTIES: Final = "mqttProperties"
MQTT_RETAIN: Final = "mqttRetain"
MQTT_PACKET_ID: Final = "mqttPacketId"

SYS_FLAG_COMPRESSED: Final = 0x1
SYS_FLAG_BORN_IPV6: Final = 0x10
SYS_FLAG_STORE_IPV6: Final = 0x20


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """One queue of a topic on one broker group."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return its name in errors and log lines; a topic's name has neither of the two signs."""
        return f"{self.topic}/{self.queue_id}@{self.broker_name}"


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message to be sent; it can be found by each of its ``keys``.

    An argument of the wrong type is a TypeError that names it, when the message is made and not
    when it is sent.
    """

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    flag: int

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> None:
        _check_type("topic", topic, str)
        if not isinstance(body, bytes):
            body = _as_bytes(body)
        if tags is not None:
            _check_type("tags", tags, str)
        _check_type("flag", flag, int)
        words = () if keys == () else _as_words(keys)
        pairs = dict(properties) if properties else {}
        for name, value in pairs.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                _refuse_property(name, value)
        put = object.__setattr__
        put(self, "topic", topic)
        put(self, "body", body)
        put(self, "tags", tags)
        put(self, "keys", words)
        put(self, "properties", pairs)
        put(self, "flag", flag)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        wanted = {str: "text", int: "a number"}.get(kind, "bytes")
        raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def _as_bytes(body: object) -> bytes:
    if isinstance(body, str):
        raise TypeError("body is text, but a message carries bytes: write text.encode()")
    if not isinstance(body, bytearray | memoryview):
        raise TypeError(f"body must be bytes, not {type(body).__name__}")
    return bytes(body)


def _as_words(keys: str | Iterable[str]) -> tuple[str, ...]:
    words = (keys,) if isinstance(keys, str) else tuple(keys)
    for word in words:
        _check_type("a key", word, str)
    return words


def _refuse_property(name: object, value: object) -> None:
    _check_type("the name of a property", name, str)
    kind = type(value).__name__
    raise TypeError(f"property {name!r} is {kind}, but properties are text: write str()")


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property text; ValueError if a name or value holds a separator or is too long."""
    text = "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items()])
    count = len(properties)
    if text.count(NAME_END) != count or text.count(VALUE_END) != count:
        for name, value in properties.items():
            if NAME_END in name + value or VALUE_END in name + value:
                raise ValueError(f"property {name!r} holds a separator (U+0001 or U+0002)")
    encoded = text.encode()
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise ValueError(
            f"properties take {len(encoded)} bytes, at most {PROPERTIES_BYTES_MAX} fit"
        )
    return encoded


def decode_properties(text: bytes) -> dict[str, str]:
    """Return the pairs of a property text.

    Some releases omit the last separator, so it is optional; pairs without a value are dropped, as
    Java's decoder does; bytes that are not UTF-8 become U+FFFD.
    """
    pairs: dict[str, str] = {}
    for item in text.decode(errors="replace").split(VALUE_END):
        name, found, value = item.partition(NAME_END)
        if found and value:
            pairs[name] = value
    return pairs


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: 31 * h + UTF-16 code unit, as a signed 32-bit integer."""
    h = 0
    units = text.encode("utf-16-le", errors="surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] | units[i + 1] << 8)) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h


def tags_code(tags: str | None) -> int:
    """Return the ConsumeQueue unit's tag hash; 0 without tags."""
    return string_hash(tags) if tags else 0


def encode_host(address: str, port: int) -> bytes:
    """Return 4 or 16 address bytes and the port as four, as records hold them."""
    return _packed(address) + port.to_bytes(4, "big")


# A few hosts write most records, and parsing an address costs more than encoding the rest.
@lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


@lru_cache(maxsize=4096)
def decode_host(host: bytes) -> tuple[str, int]:
    """Return (address, port) from the 8 or 20 bytes of a record's host field."""
    return str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big")


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the message id that names a record by its place (32 or 56 hex digits)."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def decode_offset_id(message_id: str) -> tuple[bytes, int]:
    """Return (store host bytes, physical offset); ValueError if it is not an offset id."""
    data = bytes.fromhex(message_id)
    if len(data) not in (16, 28):
        raise ValueError(f"message id has {len(message_id)} digits, expected 32 or 56")
    return data[:-8], int.from_bytes(data[-8:], "big")
