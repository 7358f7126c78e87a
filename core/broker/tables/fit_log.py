"""The tables of a broker that starts, made to fit its log.

Owns: what a crash between a table and the log is taken for. Must not touch: files, the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from motelog.core.broker.tables.tables import Tables
from motelog.core.store.message_store import MessageStore

logger = logging.getLogger(__name__)


def fit_log(tables: Tables, store: MessageStore, queue_count: int, now_ms: int) -> None:
    """Hide deleted messages, create topics that the log alone knows, lower offsets beyond its end.

    ``queue_count`` is that of such a topic.
    """
    _hide_deleted(tables, store)
    tables.topics.restore(_visible_queues(tables, store), queue_count, now_ms)
    lowered = tables.offsets.lower_to(store.reader.max_offset)
    if lowered:
        logger.warning(
            "the log has lost its end, and consumer groups had consumed some of it; they"
            " continue at the ends of their queues offsets_lowered=%d",
            lowered,
        )


def _visible_queues(tables: Tables, store: MessageStore) -> Iterator[tuple[str, int]]:
    """Yield the store's queues except those with deleted messages only."""
    deleted = tables.topics.deleted
    for topic, queue_id in store.queues():
        end = deleted.get(topic, {}).get(queue_id)
        if end is None or store.reader.max_offset(topic, queue_id) > end:
            yield topic, queue_id


def _hide_deleted(tables: Tables, store: MessageStore) -> None:
    """Hide the messages of deleted topics; a crash may have kept a group's offsets."""
    topics = tables.topics
    places = [
        (name, queue_id, end)
        for name, ends in topics.deleted.items()
        for queue_id, end in ends.items()
    ]
    for name, queue_id, noted_end in places:
        # If the log has lost its end, new messages get the offsets of the lost ones.
        end = min(noted_end, store.reader.max_offset(name, queue_id))
        tables.offsets.forget_below(name, queue_id, end)
        is_needed = store.hide_below(name, queue_id, end)
        topics.note_deleted(name, queue_id, end if is_needed else 0)
