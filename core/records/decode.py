"""Decode: decodes concatenated records, as in a pull's answer, into messages for readers.

Its kernel is _decode.pyx; _decode_py.py is the reference, which specifies the result.
Owns: StoredMessage, its fields and their types, and inflating bodies. Must not touch: files,
clocks, sockets; the layout (layout). Spec: RocketMQ MessageDecoder.
"""

from __future__ import annotations

import json
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from motelog.core import kernels
from motelog.core.message import (
    KEYS,
    MQTT_TOPIC,
    SYS_FLAG_COMPRESSED,
    TAGS,
    UNIQ_KEY,
    encode_host,
    encode_offset_id,
)

if TYPE_CHECKING:
    from motelog.core.records import _decode as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "StoredMessage",
    "body_bytes",
    "decode",
    "decode_brief",
    "decode_messages",
    "decode_values",
    "in_queue",
    "inflate",
]

BODY_BYTES_MAX: Final = 16_777_216  # the limit of a remoting frame

body_bytes = _kernel.body_bytes
decode = _kernel.decode
decode_brief = _kernel.decode_brief
decode_values = _kernel.decode_values
in_queue = _kernel.in_queue


class StoredMessage(_kernel.StoredFields):
    """A message read back from the log; times are milliseconds since the epoch.

    It has ``topic``, ``queue_id``, ``queue_offset``, ``physical_offset``, ``body``, ``properties``,
    ``flag``, ``sys_flag``, ``born_timestamp_ms``, ``born_host`` and ``store_host`` (address and
    port), ``store_timestamp_ms``, ``reconsume_times``, ``prepared_transaction_offset`` and
    ``stored_bytes``. ``body`` is the producer's original body, unless ``is_compressed``. Properties
    are parsed when they are accessed, so unused messages cost little.
    """

    __slots__ = ()
    #: The arguments of the constructor, in order.
    FIELDS: ClassVar[tuple[str, ...]] = (
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "body",
        "properties",
        "flag",
        "sys_flag",
        "born_timestamp_ms",
        "born_host",
        "store_timestamp_ms",
        "store_host",
        "reconsume_times",
        "prepared_transaction_offset",
        "stored_bytes",
    )

    def as_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments by name."""
        return {name: getattr(self, name) for name in self.FIELDS}

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the message with some fields changed."""
        return type(self)(**self.as_dict() | changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]  # the dictionary of properties may change

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[partial[Self], tuple[()]]:
        return partial(type(self), **self.as_dict()), ()

    @property
    def is_compressed(self) -> bool:
        """Whether ``body`` is still compressed, because it could not be inflated.

        It is damaged, too large, or not compressed with zlib.
        """
        return bool(self.sys_flag & SYS_FLAG_COMPRESSED)

    @property
    def tags(self) -> str | None:
        return self.value_of(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple((self.value_of(KEYS) or "").split())

    @property
    def device(self) -> str | None:
        """The tag, which for an MQTT message is its topic name's second level, or None."""
        return self.tags

    @property
    def mqtt_topic(self) -> str:
        """The topic name for MQTT subscribers: its publisher's, else topic and tag."""
        found = self.value_of(MQTT_TOPIC)
        if found is not None:
            return found
        return f"{self.topic}/{self.tags}" if self.tags else self.topic

    def json(self) -> Any:
        """Return the body parsed as JSON; ValueError names the message if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as exc:
            place = f"{self.topic}, queue {self.queue_id}, offset {self.queue_offset}"
            raise ValueError(f"the body of the message at {place} is not JSON: {exc}") from exc

    @property
    def offset_id(self) -> str:
        """The record's id, made of store address and physical offset."""
        return encode_offset_id(encode_host(*self.store_host), self.physical_offset)

    @property
    def message_id(self) -> str:
        """The producer's unique id if it has one, else the offset id."""
        return self.value_of(UNIQ_KEY) or self.offset_id


def decode_messages(records: Any, *, body_bytes_max: int = BODY_BYTES_MAX) -> list[StoredMessage]:
    """Return concatenated records as messages, bodies inflated to at most ``body_bytes_max``.

    A body that cannot be inflated within that size stays as stored, and its message
    ``is_compressed``: one producer's message must not block a consumer's further messages.
    RecordError for bytes that are not a record.
    """
    messages, sys_flags = _kernel.decode_stored(records, StoredMessage)
    if sys_flags & SYS_FLAG_COMPRESSED:
        messages = [_inflated(message, body_bytes_max) for message in messages]
    return messages


def inflate(body: bytes, bytes_max: int) -> bytes | None:
    """Return the inflated body, or None if that is not possible.

    None for damaged bytes, for compression other than zlib (Java's producers have LZ4 and ZSTD),
    and for a body that would be larger than ``bytes_max``, for which no more memory is used.
    """
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed distinguishes "exactly as much" from "more".
        inflated = inflater.decompress(body, bytes_max + 1)
    except zlib.error:
        return None
    return inflated if inflater.eof and len(inflated) <= bytes_max else None


def _inflated(message: StoredMessage, body_bytes_max: int) -> StoredMessage:
    body = inflate(message.body, body_bytes_max) if message.is_compressed else None
    if body is None:
        return message
    return message.replace(body=body, sys_flag=message.sys_flag & ~SYS_FLAG_COMPRESSED)
