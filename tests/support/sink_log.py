"""A log in memory that the Spark sink writes to and looks in; sends fail as they are told to.

Owns: SinkLog, which is both sink.scan.Sender and LogReader, and Killed, the end of a process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from motelog.bridge.errors import RouteError, SendFailedError
from motelog.bridge.producer import SendResult, SendStatus
from motelog.bridge.pull import PullResult, PullStatus
from motelog.core.errors import RemotingTimeoutError
from motelog.core.message import KEYS, TAGS, UNIQ_KEY, Message, MessageQueue, encode_properties
from tests.support.spark_broker import ManualTime
from tests.support.spark_records import Queue, Record


class Killed(BaseException):
    """The process that was sending is gone."""


class SinkLog:
    """Topics of two brokers; ``ends`` says how the next sends end.

    "ok"; "lost": nothing was stored, and nobody says so; "unheard": stored, and nobody says so;
    "killed": the sender ends before, "killed after" once it is stored.
    """

    def __init__(
        self, time: ManualTime, *, brokers: tuple[str, ...] = ("a",), queue_count: int = 2
    ) -> None:
        self.time = time
        self.queue_ids = [(broker, n) for broker in brokers for n in range(queue_count)]
        self.stored: dict[MessageQueue, Queue] = {}
        self.ends: deque[str] = deque()
        self.offsets: dict[MessageQueue, int] = {}
        self.sends = 0

    def rows(self, topic: str) -> list[Record]:
        """Return what a topic has, queue by queue."""
        return [
            record
            for queue, log in self.stored.items()
            if queue.topic == topic
            for record in log.records
        ]

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(topic, *queue_id) for queue_id in self.queue_ids)

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self._log(queue).min_offset for queue in queues}

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self._log(queue).max_offset for queue in queues}

    def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        return {
            queue: self._log(queue).min_offset
            + sum(record.store_ms < timestamp_ms for record in self._log(queue).records)
            for queue in queues
        }

    def pull(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> PullResult:
        log = self._log(queue)
        low, high = log.min_offset, log.max_offset
        if queue_offset < low:
            return PullResult(PullStatus.OFFSET_ILLEGAL, low, low, high, b"")
        found = log.records[queue_offset - low :][: min(count_max, 3)]
        status = PullStatus.FOUND if found else PullStatus.NO_NEW_MESSAGE
        records = b"".join(record.encode() for record in found)
        return PullResult(status, queue_offset + len(found), low, high, records)

    def committed(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.offsets |= offsets

    def send_batch(
        self, messages: list[Message], *, queue: MessageQueue, timeout_s: float
    ) -> SendResult:
        self.sends += 1
        end = self.ends.popleft() if self.ends else "ok"
        if end == "killed":
            raise Killed
        log = self._log(queue)
        offset = log.max_offset
        if end != "lost":
            log.put(*(self._record(message) for message in messages))
        if end == "killed after":
            raise Killed
        if end != "ok":
            self.time.sleep(timeout_s)
            raise SendFailedError("no answer", attempts=()) from RemotingTimeoutError("no answer")
        return SendResult(SendStatus.OK, "", "", queue, offset)

    def _record(self, message: Message) -> Record:
        properties = dict(message.properties)
        properties.setdefault(UNIQ_KEY, "0")
        if message.tags is not None:
            properties[TAGS] = message.tags
        if message.keys:
            properties[KEYS] = " ".join(message.keys)
        now_ms = 1_700_000_000_000 + round(self.time.now_s * 1000)
        return Record(
            body=message.body,
            topic=message.topic.encode(),
            properties=encode_properties(properties),
            store_ms=now_ms,
        )

    def _log(self, queue: MessageQueue) -> Queue:
        if (queue.broker_name, queue.queue_id) not in self.queue_ids:
            raise RouteError("no such queue", topic=queue.topic)
        return self.stored.setdefault(queue, Queue(queue.queue_id))
