"""Searching a queue for messages whose records contain a mark.

Owns: the protocols for the sink's use of a log, scan. Must not touch: pyspark, the meaning of a
mark. A pull's answer is decoded only if its bytes contain the mark, so that other messages cost
little more than their transfer.
"""

from __future__ import annotations

from typing import Final, Protocol

from motelog.bridge.producer import SendResult
from motelog.bridge.pull import PullStatus
from motelog.core.errors import RemotingError
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.spark.connections import LogReader
from motelog.spark.errors import LedgerGapError
from motelog.spark.offsets import queue_label

PULL_COUNT: Final = 4096
PULL_BYTES: Final = 1024 * 1024


class Sender(Protocol):
    """The part of ``bridge.sync.SyncProducer`` that the sink needs."""

    def queues(self, topic: str) -> tuple[MessageQueue, ...]: ...
    def send_batch(
        self, messages: list[Message], *, queue: MessageQueue, timeout_s: float
    ) -> SendResult: ...


def scan(
    reader: LogReader, queue: MessageQueue, begin: int, mark: bytes, *, may_be_gone: bool
) -> tuple[list[StoredMessage], int]:
    """Return the messages from offset ``begin`` on that may contain ``mark``, and the queue's end.

    LedgerGapError if messages were deleted before they could be searched, unless ``may_be_gone``.
    """
    end = reader.end_offsets((queue,))[queue]
    if end < begin:  # the topic was created again
        begin = reader.begin_offsets((queue,))[queue]
    found: list[StoredMessage] = []
    while begin < end:
        result = reader.pull(queue, begin, count_max=PULL_COUNT, bytes_max=PULL_BYTES)
        if result.min_offset > begin and not may_be_gone:
            raise LedgerGapError(
                f"topic {queue.topic!r} queue {queue_label(queue)!r}: messages [{begin},"
                f" {result.min_offset}) are deleted, and may have included rows of an earlier"
                " attempt. With option 'failOnDataLoss' = 'false' these rows are written again."
            )
        if result.status is PullStatus.FOUND and mark in result.records:
            found += [one for one in decode_messages(result.records) if one.queue_offset >= begin]
        next_begin = max(result.next_offset, result.min_offset)
        if next_begin <= begin:
            # A restart or a change of master can look like this for a moment.
            raise RemotingError(f"queue {queue_label(queue)!r} ends at {begin} and not at {end}")
        begin = next_begin
    return found, end
