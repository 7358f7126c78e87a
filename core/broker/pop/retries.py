"""Messages to be delivered again: read as stored, for the retry topic or the dead letters.

Owns: Retries: reading such a message, which topic it goes to, how many became dead letters.
Must not touch: when it is due, what is in work (service), appends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.records import (
    encode_retry,
    retry_pairs,
)
from motelog.core.broker.tables.tables import Tables
from motelog.core.clock import Clock
from motelog.core.errors import RecordError
from motelog.core.limited_log import LimitedLog
from motelog.core.message import (
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
    encode_offset_id,
)
from motelog.core.records.append import AppendMessage
from motelog.core.records.decode import decode
from motelog.core.remoting.pop_fields import RETRY_V1, RETRY_V2, retry_topic
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadResult
from motelog.core.topic_names import RETRY_PREFIX

logger = logging.getLogger(__name__)


class Retries:
    """Turns messages whose invisible time is over into retries or dead letters."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, store: MessageStore, tables: Tables
    ) -> None:
        self._store = store
        self._reader = store.reader
        self._topics = tables.topics
        self._groups = tables.groups
        self._clock = clock
        self._retry_kind = RETRY_V2 if config.pop_retry_topic_v2 else RETRY_V1
        self._dead_log = LimitedLog(logger)
        self.dead_letters_count = 0

    def is_wanted(self, checkpoint: Checkpoint) -> bool:
        """Return whether the group that the messages would be delivered to still exists."""
        return (
            self._topics.get(checkpoint.topic) is not None
            and self._groups.get(checkpoint.group) is not None
        )

    async def fields_of(self, checkpoint: Checkpoint, offset: int) -> list[tuple[Any, ...]]:
        """Return the stored message at an offset; empty if it is removed or damaged."""
        read: Callable[..., ReadResult] = partial(
            self._reader.read,
            checkpoint.topic,
            checkpoint.queue_id,
            offset,
            count_max=1,
            bytes_max=1,
        )
        result = await self._reader.when_in_memory(read)
        try:
            return [fields for fields in decode(result.records, verify=True) if fields[2] == offset]
        except RecordError as exc:
            logger.error(
                "the disk has damaged an unacknowledged message, which is not delivered again:"
                " check the disk topic=%s queue_id=%d queue_offset=%d reason=%s",
                ascii(checkpoint.topic),
                checkpoint.queue_id,
                offset,
                exc,
            )
            return []

    def message(self, checkpoint: Checkpoint, fields: tuple[Any, ...]) -> AppendMessage:
        """Return the message for its next delivery, or for the group's dead letters."""
        now_ms = self._clock.now_ms()
        group = self._groups.find(checkpoint.group)
        physical, store_host, times, text = fields[3], fields[9], fields[10], fields[12]
        pairs = retry_pairs(text, checkpoint.pop_time_ms)
        is_retry = checkpoint.topic.startswith(RETRY_PREFIX)
        if not is_retry:
            pairs.setdefault(RETRY_TOPIC, checkpoint.topic)
            pairs.setdefault(ORIGIN_MESSAGE_ID, encode_offset_id(store_host, physical))
        if times >= group.retry_max_times:
            target = self._topics.create_dead_letter_topic(group.group_name, now_ms).topic_name
            self.dead_letters_count += 1
            self._dead_log.warning(
                "a message was not acknowledged in all its deliveries; it is now in the"
                " group's %%DLQ%% topic: find out why it fails, then send it once more"
                " group=%s topic=%s message_id=%s",
                ascii(group.group_name),
                ascii(pairs.get(RETRY_TOPIC, checkpoint.topic)),
                ascii(pairs.get(UNIQ_KEY) or pairs.get(ORIGIN_MESSAGE_ID, "")),
            )
        elif is_retry:
            target = checkpoint.topic
        else:
            target = retry_topic(checkpoint.topic, checkpoint.group, self._retry_kind)
            if self._topics.get(target) is None:
                config = TopicConfig(topic_name=target, read_queue_nums=1, write_queue_nums=1)
                self._topics.put(config, now_ms)
        return encode_retry(self._store.queue_tail(target, 0), fields, pairs)
