"""The messages made from waiting records: for their own topics, or to wait further.

Owns: these messages. Must not touch: what is due, the progress of delivery (schedule), appends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from motelog.core.errors import RecordError, StoreError
from motelog.core.message import (
    DELAY,
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_OUT_MS,
    decode_properties,
    encode_properties,
    tags_code,
)
from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.records.decode import decode
from motelog.core.records.dispatch import dispatched
from motelog.core.store.due_time import number, timer_queue
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import TIMER_TOPIC, TOPICS_CLOSED_TO_SENDERS

logger = logging.getLogger(__name__)

_SYS_FLAG_TRANSACTION: Final = 0xC


def restored(store: MessageStore, fields: tuple[Any, ...]) -> Iterator[AppendMessage]:
    """Yield the message of a waiting record for its own topic."""
    _, _, _, physical, flag, sys_flag, born_ms, born_host, _, _, reconsume, _, text, body = fields
    pairs = decode_properties(text)
    tail = _real_tail(store, pairs)
    if tail is None:
        logger.error(
            "a delayed message does not name its topic: it is not delivered, and"
            " stays in the log until the log is cleaned physical_offset=%d",
            physical,
        )
        return
    sys_flag &= ~_SYS_FLAG_TRANSACTION
    code = tags_code(pairs.get(TAGS))
    yield dispatched((tail, body, text, code, born_ms, born_host, sys_flag, flag, reconsume, 0))


def _real_tail(store: MessageStore, pairs: Mapping[str, str]) -> QueueTail | None:
    topic = pairs.get(REAL_TOPIC, "")
    queue_id = number(pairs.get(REAL_QID, ""))
    if queue_id is None or topic in TOPICS_CLOSED_TO_SENDERS:
        return None
    try:
        return store.queue_tail(topic, queue_id)
    except StoreError:
        return None


def moved(store: MessageStore, fields: tuple[Any, ...], due_ms: int) -> Iterator[AppendMessage]:
    """Yield the message that replaces a waiting record and waits for the same time.

    For a recall, ``due_ms`` is negative.
    """
    _, _, _, _, flag, sys_flag, born_ms, born_host, _, _, reconsume, _, text, body = fields
    pairs = decode_properties(text)
    pairs.pop(DELAY, None)
    pairs[TIMER_OUT_MS] = str(abs(due_ms))
    try:
        text = encode_properties(pairs)
    except ValueError:
        # The properties have no room for the time: too early is better than never.
        logger.warning(
            "a delayed message has no room for its due time: it is delivered early"
            " properties_bytes_max=%d",
            PROPERTIES_BYTES_MAX,
        )
        yield from restored(store, fields)
        return
    tail = store.queue_tail(TIMER_TOPIC, timer_queue(abs(due_ms)))
    yield (tail, body, text, due_ms, born_ms, born_host, sys_flag, flag, reconsume, 0)


def decode_intact(records: bytes) -> list[tuple[Any, ...]]:
    """Return the fields of intact records; a new CRC would hide the damage of the others."""
    try:
        return decode(records, verify=True)
    except RecordError:
        pass
    found = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "big")
        try:
            found += decode(records[at : at + size], verify=True)
        except RecordError as exc:
            logger.error(
                "the disk has changed a delayed message, and it is not delivered: check the disk"
                " reason=%s",
                exc,
            )
        at += max(size, 1)
    return found
