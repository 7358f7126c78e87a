"""LogPort on a broker in this process.

Owns: the translation of BrokerApi into LogPort. Must not touch: the store; the broker does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.broker.api import BrokerApi, ReadResult
from core.record import QueueTail


class LocalLog:
    """The log of a broker that runs in this process and thread."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api
        self.queue_count = api.topic_queue_count
        self.create_topic = api.create_topic
        self.queue_tail = api.queue_tail
        self.append = api.append
        self.max_offset = api.max_offset

    def topics(self) -> Sequence[str]:
        return self._api.topics()

    @property
    def acknowledged_offset(self) -> int:
        # In asynchronous mode a record counts once it is in the mapped file (threats.md 11);
        # no offset is beyond that.
        return self._api.durable_offset if self._api.flush_is_sync else 1 << 63

    async def wait_acknowledged(self, end_offset: int) -> None:
        if self._api.flush_is_sync:
            await self._api.wait_durable(end_offset)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> ReadResult:
        return self._api.read(
            topic, queue_id, queue_offset, count_max=count_max, bytes_max=bytes_max
        )

    def on_growth(self, listener: Callable[[list[QueueTail]], None]) -> None:
        self._api.on_growth(listener)

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        self._api.on_topic_created(listener)
