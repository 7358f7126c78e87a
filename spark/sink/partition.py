"""One attempt to write one partition: each row exactly once, whatever earlier attempts wrote.

Owns: PartitionWriter: which attempt may write, which rows are in the log, when each is sent.
Must not touch: pyspark, Arrow; log, clock and sleep are arguments.
Every row has a unique id: 12 digits for query, batch and partition, 12 for its content, 8 for its
number. A later attempt searches for the first 12 digits after the ends in the ledger, counts the
rows by content, and sends the others. So the rows may come in another order, as after a shuffle,
but a partition must have the same rows.

    attempt 1:  ledger "writes" -> rows 0 1 2 3 | killed
    attempt 2:  ledger "writes" -> reads of attempt 1 -> waits for the rest of its lease
                -> finds 0 1 2 -> sends 3 4 5 -> ledger "over"

Invariants: a row is sent only while the attempt's last ledger record is younger than the lease less
the time that a send may take. No send is repeated before the log was searched for it. So two
attempts send at the same time only if a broker delays a request for longer than that.
"""

from __future__ import annotations

import logging
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, TypeVar

from motelog.bridge.errors import MessageRefusedError, RouteError
from motelog.core.errors import MotelogError, RemotingTimeoutError
from motelog.core.message import UNIQ_KEY, Message, MessageQueue
from motelog.spark.connections import LogReader
from motelog.spark.errors import ReplacedError, RowError, SourceError
from motelog.spark.offsets import in_order
from motelog.spark.outage import Outage
from motelog.spark.sink.ledger import OVER, Attempt, Ledger, Part
from motelog.spark.sink.rows import OutgoingRow
from motelog.spark.sink.scan import Sender, scan

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHUNK_ROWS: Final = 1000
CHUNK_BYTES: Final = 512 * 1024
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
#: The bytes of a message besides its body and properties.
_HEADER_BYTES: Final = 40
SEND_TIMEOUT_S: Final = 3.0
POLL_S: Final = 0.5
_PREFIX_BYTES: Final = 6
_CONTENT_BYTES: Final = 6
_CONTENT_END: Final = 2 * (_PREFIX_BYTES + _CONTENT_BYTES)
_NUMBER_MAX: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Written:
    """How many rows an attempt has sent, and how many it found in the log."""

    sent: int = 0
    found: int = 0
    #: Rows in the log that this attempt does not have: the plan does not repeat the same rows.
    strange: int = 0


@dataclass(slots=True)
class _Topic:
    queues: tuple[MessageQueue, ...]
    #: All rows of this partition before this offset were found, or their sends acknowledged.
    seen: dict[MessageQueue, int]
    #: Rows of earlier attempts that are in the log, by content.
    found: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Chunk:
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0


class PartitionWriter:
    """Writes the rows of ``part``; for one attempt."""

    def __init__(
        self,
        part: Part,
        sender: Sender,
        reader: LogReader,
        ledger: Ledger,
        *,
        lease_s: float,
        outage_seconds_max: float,
        may_be_gone: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._part = part
        self._sender = sender
        self._reader = reader
        self._ledger = ledger
        self._lease_s = lease_s
        self._timeout_s = min(SEND_TIMEOUT_S, lease_s / 3)
        self._outage_seconds_max = outage_seconds_max
        self._may_be_gone = may_be_gone
        self._clock_s = clock_s
        self._sleep = sleep
        self._name = uuid.uuid4().hex[:12]
        self._prefix = row_prefix(part)
        self._claimed_s: float | None = None
        self._topics: dict[str, _Topic] = {}
        self._chunks: dict[MessageQueue, _Chunk] = {}
        self._held_bytes = 0
        self._number = 0
        self._is_settled = True
        self._written = Written()

    def write(self, rows: Iterable[OutgoingRow]) -> Written:
        """Send the rows that are not in the log; return when all are in the log.

        Errors are those of an outage, of rows that cannot be sent, ReplacedError, LedgerGapError.
        The next attempt finds the rows that were sent before an error.
        """
        try:
            for row in rows:
                self._add(row)
            for queue in list(self._chunks):
                self._flush(queue)
        finally:
            # After a send with unknown outcome the next attempt must wait for the lease.
            if self._claimed_s is not None and self._is_settled:
                with suppress(MotelogError):
                    self._ledger.append(self._part, self._name, tag=OVER, timeout_s=self._timeout_s)
        strange = sum(sum(topic.found.values()) for topic in self._topics.values())
        if strange:
            logger.warning(
                "rows of an earlier attempt are missing: the query returns different rows each"
                " time query=%s batch=%d partition=%d rows=%d",
                *self._part,
                strange,
            )
        return replace(self._written, strange=strange)

    # --- rows ----------------------------------------------------------------------------

    def _add(self, row: OutgoingRow) -> None:
        topic = self._topics.get(row.topic)
        if topic is None:
            topic = self._topics[row.topic] = self._open(row.topic)
        content = content_digits(row)
        if topic.found and topic.found[content]:
            topic.found[content] -= 1
            self._written = replace(self._written, found=self._written.found + 1)
            return
        if self._number >= _NUMBER_MAX:
            raise RowError(f"a partition has at most {_NUMBER_MAX} rows: repartition the data")
        unique_id = f"{self._prefix}{content}{self._number:08X}"
        self._number += 1
        row.properties[UNIQ_KEY] = unique_id
        message = Message(row.topic, row.body, row.tag, row.keys, row.properties)
        # Chosen as in the gateway, so that a device has all its messages in one queue.
        queue = topic.queues[zlib.crc32((row.selector or content).encode()) % len(topic.queues)]
        # A character has up to three bytes, or four and counts twice in its length.
        characters = len("".join((*row.properties, *row.properties.values())))
        size_bytes = _HEADER_BYTES + len(row.body) + 3 * characters
        chunk = self._chunks.get(queue)
        if chunk is not None and chunk.size_bytes + size_bytes > CHUNK_BYTES:
            self._flush(queue)
            chunk = None
        if chunk is None:
            chunk = self._chunks[queue] = _Chunk()
        chunk.messages.append(message)
        chunk.size_bytes += size_bytes
        self._held_bytes += size_bytes
        if len(chunk.messages) >= CHUNK_ROWS:
            self._flush(queue)
        elif self._held_bytes > HELD_BYTES_MAX:
            self._flush(max(self._chunks, key=lambda one: self._chunks[one].size_bytes))

    def _flush(self, queue: MessageQueue) -> None:
        chunk = self._chunks.pop(queue)
        self._held_bytes -= chunk.size_bytes
        self._send(queue, chunk.messages)
        self._written = replace(self._written, sent=self._written.sent + len(chunk.messages))

    def _send(self, queue: MessageQueue, messages: list[Message]) -> None:
        """Return when the messages are in the log; a send is repeated only if they are not."""
        seen = self._topics[queue.topic].seen
        outage = self._outage()
        while True:
            self._keep_lease()
            self._is_settled = False
            try:
                result = self._sender.send_batch(messages, queue=queue, timeout_s=self._timeout_s)
            except MessageRefusedError as exc:
                self._is_settled = True
                raise RowError(f"a row for topic {queue.topic!r}: {exc}") from exc
            except MotelogError as exc:
                outage.pause_after(exc, f"topic {queue.topic!r}")
                if isinstance(exc.__cause__, RemotingTimeoutError):
                    # The send may still be on its way.
                    self._sleep(self._timeout_s)
            else:
                seen[queue] = result.queue_offset + len(messages)
                break
            found, end = self._asked(lambda: self._own_rows(queue, seen[queue]))
            seen[queue] = max(end, seen[queue])
            # A batch is stored completely or not at all.
            if messages[0].properties[UNIQ_KEY] in found:
                break
        self._is_settled = True

    # --- rows in the log -----------------------------------------------------------------

    def _open(self, name: str) -> _Topic:
        """Write to the ledger, wait for earlier attempts, find their rows in a topic."""
        queues, ends = self._asked(lambda: self._ends(name))
        self._claim(name, ends)
        own = self._ledger.attempts(self._part)[self._name]
        self._ledger.begin_batch(self._part.batch)
        topic = _Topic(tuple(queues), dict(ends))
        first: tuple[MessageQueue, ...] | None = None
        for earlier in self._earlier(own):
            self._wait_for_end(earlier, own)
            begins = earlier.ends.get(name)
            if begins is None:
                continue
            offsets = {_named(name, label): begin for label, begin in begins.items()}
            for queue, begin in offsets.items():
                topic.seen[queue] = min(begin, topic.seen.get(queue, begin))
            # All attempts use the queues of the first one.
            topic.queues = tuple(offsets) if first is None else first
            first = topic.queues
        if first is not None:
            for queue in in_order(topic.seen):
                self._find(topic, queue)
        return topic

    def _find(self, topic: _Topic, queue: MessageQueue) -> None:
        found, end = self._asked(lambda: self._own_rows(queue, topic.seen[queue]))
        topic.seen[queue] = max(end, topic.seen[queue])
        for unique_id in found:
            topic.found[unique_id[2 * _PREFIX_BYTES : _CONTENT_END]] += 1
            # Two rows must not have the same id.
            self._number = max(self._number, int(unique_id[_CONTENT_END:], 16) + 1)

    def _ends(self, name: str) -> tuple[list[MessageQueue], dict[MessageQueue, int]]:
        queues = in_order(self._sender.queues(name))
        try:
            known = self._reader.queues(name)
        except RouteError:
            known = ()  # the first message creates the topic
        asked = [queue for queue in queues if queue in known]
        return queues, dict.fromkeys(queues, 0) | (self._reader.end_offsets(asked) if asked else {})

    def _own_rows(self, queue: MessageQueue, begin: int) -> tuple[set[str], int]:
        """Return the ids of this partition's rows in a queue from ``begin`` on, and its end."""
        found, end = scan(
            self._reader, queue, begin, self._prefix.encode(), may_be_gone=self._may_be_gone
        )
        ids = {message.properties.get(UNIQ_KEY, "") for message in found}
        return {one for one in ids if one.startswith(self._prefix)}, end

    # --- the lease -----------------------------------------------------------------------

    def _claim(self, topic: str = "", ends: dict[MessageQueue, int] | None = None) -> None:
        def claim() -> None:
            claimed_s = self._clock_s()
            self._ledger.append(
                self._part, self._name, topic=topic, ends=ends, timeout_s=self._timeout_s
            )
            self._claimed_s = claimed_s

        self._asked(claim)
        self._asked(self._ledger.read)

    def _earlier(self, own: Attempt) -> list[Attempt]:
        attempts = self._ledger.attempts(self._part).values()
        return [one for one in attempts if one is not own and one.precedes(own)]

    def _wait_for_end(self, earlier: Attempt, own: Attempt) -> None:
        """Return when an earlier attempt has finished, or its lease has expired."""
        told_ms = earlier.last_ms
        left_s = self._lease_s - (own.last_ms - told_ms) / 1000
        until_s = self._clock_s() + min(self._lease_s, left_s)
        while not earlier.is_over and self._clock_s() < until_s:
            self._sleep(min(POLL_S, until_s - self._clock_s()))
            self._asked(self._ledger.read)
            if earlier.last_ms > told_ms:
                told_ms = earlier.last_ms
                until_s = self._clock_s() + self._lease_s

    def _keep_lease(self) -> None:
        assert self._claimed_s is not None, "rows are sent after a record in the ledger"
        age_s = self._clock_s() - self._claimed_s
        if age_s < self._lease_s / 3:
            return
        self._claim()
        own = self._ledger.attempts(self._part)[self._name]
        if age_s < self._lease_s - self._timeout_s:
            return
        # The lease may have expired before this record.
        for other in self._ledger.attempts(self._part).values():
            if other is not own and own.precedes(other):
                raise ReplacedError(
                    f"partition {self._part.partition} of batch {self._part.batch}: another"
                    f" attempt has begun because this one paused for {age_s:.0f} s; the lease is"
                    f" {self._lease_s:g} s (option 'leaseSeconds')"
                )

    # --- outages -------------------------------------------------------------------------

    def _asked(self, ask: Callable[[], T]) -> T:
        outage = self._outage()
        while True:
            try:
                return ask()
            except SourceError:
                raise
            except MotelogError as exc:
                outage.pause_after(exc, "the brokers")

    def _outage(self) -> Outage:
        return Outage(self._outage_seconds_max, clock_s=self._clock_s, sleep=self._sleep)


def row_prefix(part: Part) -> str:
    """Return the digits with which the unique ids of a partition's rows begin."""
    text = f"{part.query}/{part.batch}/{part.partition}"
    return blake2b(text.encode(), digest_size=_PREFIX_BYTES).hexdigest().upper()


def content_digits(row: OutgoingRow) -> str:
    """Return the digits for the content of a row."""
    texts = [row.tag or "", *row.keys, ""]
    for name, value in sorted(row.properties.items()):
        texts += (name, value)
    content = "\0".join(texts).encode() + b"\0\0" + row.body
    return blake2b(content, digest_size=_CONTENT_BYTES).hexdigest().upper()


def _named(topic: str, label: str) -> MessageQueue:
    broker, _, queue_id = label.rpartition("/")
    return MessageQueue(topic, broker, int(queue_id))
