"""The texts with which POP names messages: receipts, offsets by queue, retry topics.

Owns: parsing and writing these texts, the content of a receipt. Must not touch: sockets, clocks,
which messages are in work. Spec: RocketMQ ExtraInfoUtil, KeyBuilder, BatchAck.

    receipt      "BEGIN POP_TIME INVISIBLE REVIVE_QUEUE KIND BROKER QUEUE OFFSET"
    by queue     "KIND QUEUE BEGIN;..."  "KIND QUEUE OFFSET,OFFSET;..."  "KIND qoQUEUE%OFFSET N;..."

BEGIN is the queue offset at which the pop began: together with the time it names the checkpoint.
KIND says in which topic the message is stored: 0 the topic itself, 1 and 2 its retry topic.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from motelog.core.remoting.fields import INT64
from motelog.core.topic_names import RETRY_PREFIX

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
# The revive queue in a receipt for ordered consumption, which has no checkpoint.
ORDER_QUEUE: Final = 999
RECEIPT_CHARACTERS_MAX: Final = 512
_SEPARATORS: Final = {RETRY_V1: "_", RETRY_V2: "+"}


@dataclass(frozen=True, slots=True)
class Receipt:
    """Identifies one delivery of a message to a group; needed to acknowledge it."""

    begin_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker_name: str
    queue_id: int
    # Clients of 4.9 do not write it.
    queue_offset: int | None = None

    @property
    def is_order(self) -> bool:
        return self.revive_queue == ORDER_QUEUE

    def encode(self) -> str:
        """Return the receipt as text, the property POP_CK of a message."""
        text = (
            f"{self.begin_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue}"
            f" {self.kind} {self.broker_name} {self.queue_id}"
        )
        return text if self.queue_offset is None else f"{text} {self.queue_offset}"


def decode_receipt(text: str) -> Receipt:
    """Return the parsed receipt; ValueError if it is malformed."""
    if len(text) > RECEIPT_CHARACTERS_MAX:
        raise ValueError(f"a receipt of {len(text)} characters")
    parts = text.split(" ")
    if len(parts) < 7:
        raise ValueError(f"a receipt has 7 parts or more, not {len(parts)}")
    # RocketMQ's proxy appends a part of its own.
    begin, pop_time, invisible, revive_queue, kind, broker_name, queue_id, *offset = parts
    if kind not in (NORMAL, RETRY_V1, RETRY_V2):
        raise ValueError(f"{kind!a} is not a kind of topic")
    return Receipt(
        _number(begin),
        _number(pop_time),
        _number(invisible),
        _number(revive_queue),
        kind,
        broker_name,
        _number(queue_id),
        _number(offset[0]) if offset else None,
    )


def retry_topic(topic: str, group: str, kind: str = RETRY_V1) -> str:
    """Return the retry topic of ``topic`` for ``group``."""
    return f"{RETRY_PREFIX}{group}{_SEPARATORS[kind]}{topic}"


def real_topic(topic: str, group: str, kind: str) -> str:
    """Return the topic in which a message of this kind is stored."""
    return topic if kind == NORMAL else retry_topic(topic, group, kind)


def kind_of(topic: str) -> str:
    """Return the kind of a stored message's topic in a receipt."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def encode_begins(begins: Iterable[tuple[str, int, int]]) -> str:
    """Return startOffsetInfo: topic, queue id and begin of the pop, for each queue."""
    return ";".join([f"{kind_of(topic)} {queue_id} {begin}" for topic, queue_id, begin in begins])


def encode_offsets(found: Iterable[tuple[str, int, Iterable[int]]]) -> str:
    """Return msgOffsetInfo: topic, queue id and the messages' offsets, for each queue."""
    return ";".join(
        [
            f"{kind_of(topic)} {queue_id} {','.join(map(str, offsets))}"
            for topic, queue_id, offsets in found
        ]
    )


def encode_deliveries(
    topic: str, queue_id: int, counts: Iterable[tuple[int, int]], least: int
) -> str:
    """Return orderCountInfo of one queue: the number of earlier deliveries of messages.

    ``least`` is for old clients, which only read the value of the queue.
    """
    kind = kind_of(topic)
    parts = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts]
    return ";".join([*parts, f"{kind} {queue_id} {least}"])


def decode_begins(text: str) -> dict[tuple[str, int], int]:
    """Return startOffsetInfo by kind and queue id; ValueError if malformed."""
    found = {}
    for one in text.split(";") if text else ():
        kind, queue_id, begin = one.split(" ")
        found[kind, _number(queue_id)] = _number(begin)
    return found


def decode_deliveries(text: str) -> dict[tuple[str, int, int], int]:
    """Return orderCountInfo by kind, queue id and offset; ValueError if malformed."""
    found = {}
    for one in text.split(";") if text else ():
        kind, place, count = one.split(" ")
        if place.startswith("qo"):
            queue_id, _, offset = place[2:].partition("%")
            found[kind, _number(queue_id), _number(offset)] = _number(count)
    return found


def encode_bits(indexes: Iterable[int]) -> str:
    """Return indexes as fastjson writes a BitSet."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str) -> int:
    """Return a BitSet as the bits of a number; ValueError if it is not one."""
    try:
        return int.from_bytes(base64.b64decode(text, validate=True), "little")
    except binascii.Error as exc:
        raise ValueError(f"a bit set is not base64: {exc}") from exc


def _number(text: str) -> int:
    # 64 bits need at most twenty characters.
    value = int(text) if len(text) <= 20 else None
    if value is None or value not in INT64:
        raise ValueError(f"{text[:32]!a} is not a 64-bit number")
    return value
