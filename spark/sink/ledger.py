"""The ledger: which attempts have begun to write which rows, and the ends of the topics before.

Owns: the ledger's records, which of them a query reads. Must not touch: pyspark, the topics of the
rows.
A record says that an attempt at one partition of one batch begins to write to a topic, and where
that topic's queues end; or that it is still writing; or that it has finished. It is stored
before any row is sent. So a later attempt finds the rows of earlier attempts after those ends.
Records go to the first queue of the ledger's topic at every broker, so that the loss of one broker
loses none of them, and everything before an attempt's own record is older. The query's consumer
group stores the offset from which its records matter. If that is lost, more is read and nothing is
missed.

    tag "writes" or "over", key the query, body
    {"query": "9a7...", "batch": 4, "partition": 1, "attempt": "5f02", "topic": "alerts",
     "ends": {"broker-a/0": 17}}
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from motelog.core.errors import MotelogError, RemotingError
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.spark.connections import LogReader
from motelog.spark.offsets import in_order, queue_label
from motelog.spark.sink.scan import Sender, scan

logger = logging.getLogger(__name__)

WRITES: Final = "writes"
OVER: Final = "over"


class Part(NamedTuple):
    """What an attempt writes: one partition of one batch of one query."""

    query: str
    batch: int
    partition: int


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a record; ``topic`` is "" if an attempt only says that it is still writing."""

    query: str
    batch: int
    partition: int
    attempt: str
    topic: str = ""
    ends: dict[str, int] = {}


@dataclass(slots=True)
class Attempt:
    """The ledger's entries about one attempt."""

    name: str
    #: The offset of its first record, by ledger queue.
    first: dict[MessageQueue, int] = field(default_factory=dict)
    #: Topic -> where each of its queues ended before the attempt wrote anything.
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    last_ms: int = 0
    is_over: bool = False

    def precedes(self, other: Attempt) -> bool:
        """Return whether it began before ``other``; both attempts get the same answer."""
        for queue in in_order(self.first):
            if queue in other.first:
                return self.first[queue] < other.first[queue]
        return True


class Ledger:
    """The ledger for one query's attempts. ``read`` brings it up to date.

    ``since_ms`` is a time before which the query has written nothing, None if it is not known.
    """

    def __init__(
        self,
        sender: Sender,
        reader: LogReader,
        *,
        topic: str,
        query: str,
        since_ms: int | None = None,
    ) -> None:
        self._sender = sender
        self._reader = reader
        self._topic = topic
        self._query = query
        self._since_ms = since_ms
        self._position: dict[MessageQueue, int] = {}
        self._appended: dict[MessageQueue, int] = {}
        self._attempts: dict[Part, dict[str, Attempt]] = {}
        self._batch = -1

    def append(
        self,
        part: Part,
        attempt: str,
        *,
        tag: str = WRITES,
        topic: str = "",
        ends: Mapping[MessageQueue, int] | None = None,
        timeout_s: float,
    ) -> None:
        """Store a record at each broker that has the ledger."""
        labels = {queue_label(queue): end for queue, end in (ends or {}).items()}
        body = msgspec.json.encode(Entry(*part, attempt=attempt, topic=topic, ends=labels))
        message = Message(self._topic, body, tags=tag, keys=(part.query,))
        for queue in _first_of_brokers(self._sender.queues(self._topic)):
            result = self._sender.send_batch([message], queue=queue, timeout_s=timeout_s)
            self._appended[queue] = result.queue_offset

    def read(self) -> None:
        """Read new records; RemotingError while our own record cannot be read yet."""
        mark = self._query.encode()
        for queue in self._queues():
            if queue not in self._position:
                self._position[queue] = self._start(queue)
            # Records deleted by retention are older than any attempt that is still writing.
            found, end = scan(self._reader, queue, self._position[queue], mark, may_be_gone=True)
            for message in found:
                self._note(queue, message)
            self._position[queue] = end
            if end <= self._appended.get(queue, -1):
                raise RemotingError(f"queue {queue_label(queue)!r} of the ledger lags behind")

    def attempts(self, part: Part) -> dict[str, Attempt]:
        """Return the attempts at a part, by name, as read so far."""
        return self._attempts.get(part, {})

    def begin_batch(self, batch: int) -> None:
        """Forget earlier batches, which have finished, and let later processes begin here.

        A record of ``batch`` has been appended and read.
        """
        if batch <= self._batch:
            return
        self._batch = batch
        for part in [part for part in self._attempts if part.batch < batch]:
            del self._attempts[part]
        if self._since_ms is not None:
            return
        offsets = dict(self._position)
        for attempts in self._attempts.values():
            for attempt in attempts.values():
                for queue, offset in attempt.first.items():
                    offsets[queue] = min(offset, offsets[queue])
        try:
            self._reader.commit(offsets)
        except MotelogError as exc:
            logger.warning("progress in the ledger is not committed query=%s: %s", self._query, exc)

    def _queues(self) -> list[MessageQueue]:
        known = dict.fromkeys(_first_of_brokers(self._reader.queues(self._topic)))
        # While a broker restarts, its route is missing for a moment.
        return in_order(known | self._position | self._appended)

    def _start(self, queue: MessageQueue) -> int:
        committed = self._reader.committed(queue) if self._since_ms is None else None
        if committed is not None and committed >= 0:
            return committed
        if self._since_ms is not None:
            return self._reader.offsets_for_time((queue,), self._since_ms)[queue]
        return self._reader.begin_offsets((queue,))[queue]

    def _note(self, queue: MessageQueue, message: StoredMessage) -> None:
        try:
            entry = msgspec.json.decode(message.body, type=Entry)
        except msgspec.DecodeError:
            return  # not a record of the ledger
        if entry.query != self._query or entry.batch < self._batch:
            return
        part = Part(entry.query, entry.batch, entry.partition)
        attempts = self._attempts.setdefault(part, {})
        attempt = attempts.setdefault(entry.attempt, Attempt(entry.attempt))
        attempt.first.setdefault(queue, message.queue_offset)
        attempt.last_ms = max(attempt.last_ms, message.store_timestamp_ms)
        attempt.is_over = attempt.is_over or message.tags == OVER
        if entry.topic:
            attempt.ends.setdefault(entry.topic, entry.ends)


def _first_of_brokers(queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
    first: dict[str, MessageQueue] = {}
    for queue in in_order(queues):
        first.setdefault(queue.broker_name, queue)
    return list(first.values())
