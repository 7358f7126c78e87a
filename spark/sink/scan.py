"""Looking for messages in a queue by a mark that their records hold.

Owns: the protocol of what the sink sends by, scan. Must not touch: pyspark, what a mark
means. A pull's answer is decoded only where the mark is in its bytes, so that the messages of
others cost little more than their way here.
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
    """Return the messages from offset ``begin`` on that may hold ``mark``, and the queue's end.

    Messages that were deleted before they could be looked at are a LedgerGapError, unless they
    ``may_be_gone``.
    """
    end = reader.end_offsets((queue,))[queue]
    if end < begin:  # the topic was made anew
        begin = reader.begin_offsets((queue,))[queue]
    found: list[StoredMessage] = []
    while begin < end:
        result = reader.pull(queue, begin, count_max=PULL_COUNT, bytes_max=PULL_BYTES)
        if result.min_offset > begin and not may_be_gone:
            raise LedgerGapError(
                f"topic {queue.topic!r} queue {queue_label(queue)!r}: messages [{begin},"
                f" {result.min_offset}) are deleted, and rows of an attempt that was ended may"
                " have been among them. Option 'failOnDataLoss' = 'false' writes them again."
            )
        if result.status is PullStatus.FOUND and mark in result.records:
            found += [one for one in decode_messages(result.records) if one.queue_offset >= begin]
        next_begin = max(result.next_offset, result.min_offset)
        if next_begin <= begin:
            # A restart or a change of master can look like that for a moment.
            raise RemotingError(f"queue {queue_label(queue)!r} ends at {begin} and not at {end}")
        begin = next_begin
    return found, end
