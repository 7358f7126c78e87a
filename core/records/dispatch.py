"""Messages in further queues besides their own: RocketMQ's multi-dispatch to light queues.

Owns: which messages these are, the properties with the queues and offsets. Must not touch: queues,
files, clocks. Spec: RocketMQ LmqDispatch, MultiDispatchUtils, MixAll.

    INNER_MULTI_DISPATCH      %LMQ%a,%LMQ%b     the producer's request
    INNER_MULTI_QUEUE_OFFSET  17,0              the queue offsets, added when the record is written

The record is stored once. Each light queue (its topic begins with %LMQ%, its queue id is 0) gets a
unit that names it, so that the units can be found again in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from motelog.core.records._properties_py import find_property
from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.records.decode import decode
from motelog.core.records.layout import has_unit
from motelog.core.topic_names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
SEPARATOR: Final = ","
LMQ_QUEUE_ID: Final = 0

_DISPATCH: Final = MULTI_DISPATCH.encode()
_OFFSET: Final = MULTI_OFFSET.encode()
_LMQ: Final = LMQ_PREFIX.encode()
_CLOSED: Final = frozenset(topic.encode() for topic in SYSTEM_TOPICS)
# Retries, dead letters and the broker's own messages are in their own queue only.
_CLOSED_PREFIXES: Final = (RETRY_PREFIX.encode(), DLQ_PREFIX.encode(), b"rmq_sys_", _LMQ)


class Dispatched(tuple[QueueTail, bytes, bytes, int, int, bytes, int, int, int, int]):
    """An AppendMessage for further queues; ``measure`` reports whether there is one."""

    __slots__ = ()

    @property
    def names(self) -> list[str]:
        """The topics of these queues."""
        value = find_property(self[2], _DISPATCH) or b""
        return value.decode(errors="replace").split(SEPARATOR)


def dispatched(message: AppendMessage) -> AppendMessage:
    """Return the message, marked if it requests further queues and may have them."""
    tail, _, properties, *_, sys_flag, _, _, _ = message
    if _DISPATCH in properties and may_dispatch(tail.topic) and has_unit(sys_flag):
        return Dispatched(message)
    return message


def may_dispatch(topic: bytes) -> bool:
    """Return whether messages of a topic may be in further queues."""
    return topic not in _CLOSED and not topic.startswith(_CLOSED_PREFIXES)


def offsets_property(offsets: Sequence[int]) -> bytes:
    """Return the property with a message's offsets in its further queues."""
    return _OFFSET + b"\x01" + SEPARATOR.join(map(str, offsets)).encode() + b"\x02"


def in_light_queue(records: bytes, name: bytes, begin: int, end: int) -> bool:
    """Return whether all of these records are in a light queue at offsets in [begin, end)."""
    return name.startswith(_LMQ) and all(
        any(
            place == name and begin <= offset < end
            for place, offset in dispatch_places(fields[0], fields[12])
        )
        for fields in decode(records)
    )


def dispatch_places(topic: bytes, properties: bytes) -> list[tuple[bytes, int]]:
    """Return the further queues of a record: topic and queue offset of each; empty if it has none.

    A malformed property counts as no queue.
    """
    offsets, names = find_property(properties, _OFFSET), find_property(properties, _DISPATCH)
    if offsets is None or names is None or not may_dispatch(topic):
        return []
    places = []
    for name, text in zip(names.split(b","), offsets.split(b","), strict=False):
        if name.startswith(_LMQ) and text.isdigit() and len(text) < 19:
            places.append((name, int(text)))
    return places
