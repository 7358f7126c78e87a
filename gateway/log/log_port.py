"""What the gateway needs from a log, whoever keeps it.

Owns: the LogPort protocol. Must not touch: a broker or a connection; implementations do
(``local_log``: a broker in this process).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from motelog.core.broker.acknowledge import Acknowledge
from motelog.core.broker.api import Pageable, ReadResult
from motelog.core.records.append import QueueTail


class LogPort(Protocol):
    """One log: append a batch, read a queue from an offset, hear of growth."""

    def queue_count(self, topic: str) -> int | None:
        """Return how many queues of ``topic`` can be written, None if there is no such topic."""
        ...

    def create_topic(self, topic: str, queue_count: int) -> int:
        """Create the topic unless it exists; return its queue count. BrokerError if refused."""
        ...

    def topics(self) -> Sequence[str]:
        """Return the names of all topics, system topics included."""
        ...

    def queue_tail(self, topic: str, queue_id: int) -> QueueTail:
        """Return what addresses appends to one queue."""
        ...

    def append(self, messages: list[Any]) -> int:
        """Append a batch of ``core.records.append.AppendMessage``.

        Return the end offset to wait for before acknowledging.

        All or nothing: on StoreError nothing of the batch was written.
        """
        ...

    @property
    def acknowledge(self) -> Acknowledge:
        """Return how far the log may be acknowledged."""
        ...

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        may_wait: bool,
    ) -> ReadResult:
        """Return the records at hand from ``queue_offset`` on, concatenated.

        Unless it ``may_wait`` for the disk, raises NotInMemoryError where it would have to; what
        that names is for ``page_in``.
        """
        ...

    def page_in(self, missing: Sequence[Pageable], then: Callable[[], None]) -> bool:
        """Call ``then`` later, when what a read missed is at hand; False if too many wait."""
        ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next record of the queue will have."""
        ...

    def on_growth(self, listener: Callable[[list[QueueTail]], None]) -> None:
        """Call ``listener`` with the queues that grew after each append, whoever appended."""
        ...

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each new topic before anything is appended to it."""
        ...
