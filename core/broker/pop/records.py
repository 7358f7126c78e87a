"""POP's records in the log: checkpoints, acknowledgements, messages to be delivered again.

Owns: the records of the revive topic, read and written; a message as it is stored for its next
delivery; a retry in the form for consumers. Must not touch: the store, clocks, which messages are
in work (checkpoints). Spec: RocketMQ PopCheckPoint, AckMsg, BatchAckMsg, PopReviveService.

    rmq_sys_REVIVE_LOG_CLUSTER   tag ck    the messages of one queue that one pop delivered
                                 tag ack   one of these is acknowledged; bAck: several

RocketMQ lets these records wait in its timer and reads them in the order in which they are due.
Here they are in the revive topic at once. RocketMQ's revival can read them too: it stops at the
first that is not due. ``again`` is a member of ours: the checkpoint does not show the group's
progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from motelog.core.broker.pop.checkpoints import Checkpoint, Key
from motelog.core.message import (
    NAME_END,
    PROPERTIES_BYTES_MAX,
    TAGS,
    VALUE_END,
    decode_properties,
    encode_properties,
    tags_code,
)
from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.records.layout import (
    FIRST,
    LATER,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_V1_BYTES_MAX,
    Record,
)
from motelog.core.remoting.fields import Int64

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
#: The most messages of one checkpoint: RocketMQ keeps the acknowledged ones as bits of an int.
CHECKPOINT_MESSAGES_MAX: Final = 32
_CODES: Final = {tag: tags_code(tag) for tag in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)}


class _CheckpointJson(msgspec.Struct, omit_defaults=True):
    so: Int64
    pt: Int64
    it: Int64
    bm: Int64
    n: int
    q: int
    t: str
    c: str
    d: list[int] | None = None
    bn: str | None = None
    again: bool = False


class _AckJson(msgspec.Struct, omit_defaults=True):
    so: Int64
    c: str
    t: str
    q: int
    pt: Int64
    ao: Int64 = -1
    aol: list[Int64] | None = None
    bn: str | None = None


class AckRecord(msgspec.Struct, frozen=True):
    """An acknowledgement that was read: its checkpoint, and which of its messages."""

    key: Key
    offsets: tuple[int, ...]


def encode_checkpoint(
    tail: QueueTail, checkpoint: Checkpoint, broker_name: str, host: bytes, now_ms: int
) -> AppendMessage:
    """Return the record of a checkpoint; its acknowledged messages are marked."""
    begin = checkpoint.begin_offset
    bits = 0
    for index, offset in enumerate(checkpoint.offsets):
        bits |= (offset not in checkpoint.open) << index
    body = _CheckpointJson(
        so=begin,
        pt=checkpoint.pop_time_ms,
        it=checkpoint.invisible_ms,
        # A Java int: the last bit is its sign.
        bm=bits - (1 << 32) if bits >> 31 else bits,
        n=len(checkpoint.offsets),
        q=checkpoint.queue_id,
        t=checkpoint.topic,
        c=checkpoint.group,
        d=[offset - begin for offset in checkpoint.offsets],
        bn=broker_name,
        again=checkpoint.is_again,
    )
    return _record(tail, CHECKPOINT_TAG, body, checkpoint.due_ms - 1000, host, now_ms)


def encode_ack(
    tail: QueueTail,
    checkpoint: Checkpoint,
    offsets: list[int],
    broker_name: str,
    host: bytes,
    now_ms: int,
) -> AppendMessage:
    """Return the record that acknowledges messages of a checkpoint."""
    body = _AckJson(
        so=checkpoint.begin_offset,
        c=checkpoint.group,
        t=checkpoint.topic,
        q=checkpoint.queue_id,
        pt=checkpoint.pop_time_ms,
        bn=broker_name,
    )
    if len(offsets) == 1:
        body.ao = offsets[0]
        return _record(tail, ACK_TAG, body, checkpoint.due_ms, host, now_ms)
    body.aol = offsets
    return _record(tail, BATCH_ACK_TAG, body, checkpoint.due_ms, host, now_ms)


def _record(
    tail: QueueTail, tag: str, body: msgspec.Struct, due_ms: int, host: bytes, now_ms: int
) -> AppendMessage:
    properties = encode_properties({TAGS: tag, TIMER_DELIVER_MS: str(due_ms)})
    text = msgspec.json.encode(body)
    return (tail, text, properties, _CODES[tag], now_ms, host, 0, 0, 0, 0)


def decode_revive(tag: str | None, body: bytes, revive_queue: int) -> Checkpoint | AckRecord | None:
    """Return the content of a record of the revive topic; None if it has no effect."""
    try:
        if tag == CHECKPOINT_TAG:
            return _checkpoint(msgspec.json.decode(body, type=_CheckpointJson), revive_queue)
        if tag in (ACK_TAG, BATCH_ACK_TAG):
            json = msgspec.json.decode(body, type=_AckJson)
            offsets = (json.ao,) if json.aol is None else tuple(json.aol)
            return AckRecord((json.t, json.c, json.q, json.so, json.pt), offsets)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None


def _checkpoint(json: _CheckpointJson, revive_queue: int) -> Checkpoint | None:
    if not 0 <= json.n <= CHECKPOINT_MESSAGES_MAX or json.it < 0:
        return None
    differences = json.d or range(json.n)
    offsets = tuple([json.so + difference for difference in differences][: json.n])
    found = Checkpoint(
        (json.t, json.c, json.q),
        json.so,
        offsets,
        pop_time_ms=json.pt,
        invisible_ms=json.it,
        revive_queue=revive_queue,
        is_again=json.again,
    )
    found.open.difference_update(
        [offset for index, offset in enumerate(offsets) if json.bm >> index & 1]
    )
    return found


def encode_retry(
    tail: QueueTail, fields: tuple[Any, ...], pairs: Mapping[str, str]
) -> AppendMessage:
    """Return a stored message for its next delivery: with ``pairs``, its count increased by one."""
    _, _, _, _, flag, sys_flag, born_ms, born_host, _, _, times, _, _, body = fields
    properties = _fitting(pairs)
    code = tags_code(pairs.get(TAGS))
    return (tail, body, properties, code, born_ms, born_host, sys_flag, flag, times + 1, 0)


def retry_pairs(properties: bytes, pop_time_ms: int) -> dict[str, str]:
    """Return the properties of a message to be delivered again, as RocketMQ's revival does."""
    pairs = decode_properties(properties)
    return {FIRST_POP_TIME: str(pop_time_ms)} | pairs


def with_topic(record: Record, topic: str, receipt: str) -> bytes:
    """Return the record of a retry for consumers: with its original topic and a receipt."""
    name = topic.encode()
    pairs = {POP_CK: receipt} | decode_properties(record.properties) | {POP_CK: receipt}
    properties = _fitting(pairs)
    is_long = len(name) > TOPIC_V1_BYTES_MAX
    later = LATER.pack(record.reconsume_times, record.prepared_offset, len(record.body))
    tail = b"".join(
        [
            record.born_host,
            record.store_ms.to_bytes(8, "big"),
            record.store_host,
            later,
            record.body,
            len(name).to_bytes(2 if is_long else 1, "big"),
            name,
            len(properties).to_bytes(2, "big"),
            properties,
        ]
    )
    head = FIRST.pack(
        FIRST.size + len(tail),
        MAGIC_V2 if is_long else MAGIC_V1,
        record.crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_ms,
    )
    return head + tail


def _fitting(pairs: Mapping[str, str]) -> bytes:
    """Return the property text, without the pairs that do not fit."""
    parts = []
    room = PROPERTIES_BYTES_MAX
    for name, value in pairs.items():
        part = f"{name}{NAME_END}{value}{VALUE_END}".encode()
        if len(part) <= room:
            room -= len(part)
            parts.append(part)
    return b"".join(parts)


def checked_offsets(offsets: Iterable[int], checkpoint: Checkpoint) -> list[int]:
    """Return the offsets that are open messages of a checkpoint."""
    return [offset for offset in offsets if offset in checkpoint.open]
