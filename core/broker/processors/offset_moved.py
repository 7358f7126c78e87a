"""Events for consumers whose offset is outside its queue: records of OFFSET_MOVED_EVENT.

Owns: the content of such a record, how often one is written. Must not touch: the pull that found
it, its answer. Spec: RocketMQ 4.9 DefaultPullMessageResultHandler.generateOffsetMovedEvent, read by
MonitorService of its tools.

A client that keeps asking causes one record per PERIOD_MS, group and queue.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import StoreError
from motelog.core.limited_log import LimitedLog
from motelog.core.message import KEYS, TAGS, encode_properties, tags_code
from motelog.core.topic_names import OFFSET_MOVED_TOPIC

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 60_000
_KNOWN_MAX: Final = 10_000


class OffsetMovedEvents:
    """One broker's events; state changes only within a turn."""

    def __init__(self, shared: Shared) -> None:
        self._api = shared.api
        self._clock = shared.clock
        self._broker_name = shared.config.name
        #: (group, topic, queue id) -> when its last event was written.
        self._written: dict[tuple[str, str, int], int] = {}
        self._unwritten = LimitedLog(logger)

    def note(self, group: str, topic: str, queue_id: int, asked: int, told: int) -> None:
        """Write that a group asked for one offset and received another."""
        key, now_ms = (group, topic, queue_id), self._clock.monotonic_ms()
        last_ms = self._written.get(key)
        if last_ms is not None and now_ms - last_ms < PERIOD_MS:
            return
        if len(self._written) >= _KNOWN_MAX:
            self._written.clear()
        self._written[key] = now_ms
        queue = {"brokerName": self._broker_name, "queueId": queue_id, "topic": topic}
        event = {
            "consumerGroup": group,
            "messageQueue": queue,
            "offsetNew": told,
            "offsetRequest": asked,
        }
        tail = self._api.queue_tail(OFFSET_MOVED_TOPIC, 0)
        text = encode_properties({KEYS: group, TAGS: group})
        messages = [
            (tail, msgspec.json.encode(event), text, tags_code(group), self._clock.now_ms(),
             self._api.store_host, 0, 0, 0, 0)
        ]  # fmt: skip
        try:
            if self._api.line.append(messages) is None:
                self._api.line.wait(messages, appended=lambda _: None, refused=self._lose)
        except StoreError as exc:
            self._lose(exc)

    def _lose(self, exc: StoreError) -> None:
        self._unwritten.warning("an event of a moved offset is not written reason=%s", exc)
