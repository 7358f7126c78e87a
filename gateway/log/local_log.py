"""LogPort on a broker in this process.

Owns: the translation of BrokerApi into LogPort. Must not touch: the store; the broker does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from motelog.core.broker.api import BrokerApi
from motelog.core.errors import StoreError, StoreFencedError
from motelog.core.records.record import QueueTail


class LocalLog:
    """The log of a broker that runs in this process and thread."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api
        self.queue_count = api.topic_queue_count
        self.create_topic = api.create_topic
        self.queue_tail = api.queue_tail
        self.append = api.append
        self.read = api.read
        self.page_in = api.cold_reads.page_in
        self.max_offset = api.max_offset
        self.want_acknowledged = api.want_durable
        self.on_acknowledged = api.on_durable

    def topics(self) -> Sequence[str]:
        return self._api.topics()

    @property
    def acknowledged_offset(self) -> int:
        # In asynchronous mode a record counts once it is in the mapped file (threats.md 11);
        # no offset is beyond that.
        return self._api.durable_offset if self._api.flush_is_sync else 1 << 63

    @property
    def failure(self) -> StoreError | None:
        reason = self._api.fence_reason
        return None if reason is None else StoreFencedError(reason)

    def on_growth(self, listener: Callable[[list[QueueTail]], None]) -> None:
        self._api.on_growth(listener)

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        self._api.on_topic_created(listener)
