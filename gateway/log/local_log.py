"""LogPort on a broker in this process.

Owns: the translation of BrokerApi into LogPort. Must not touch: the store; the broker does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from motelog.core.broker.api import BrokerApi
from motelog.core.records.append import QueueTail


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
        self.acknowledge = api.acknowledge

    def topics(self) -> Sequence[str]:
        return self._api.topics()

    def on_growth(self, listener: Callable[[list[QueueTail]], None]) -> None:
        self._api.on_growth(listener)

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        self._api.on_topic_created(listener)
