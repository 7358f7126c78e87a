"""A broker in memory that answers the Spark source's questions; faults by request.

Owns: FakeConsumer. It behaves as bridge.sync.SyncPullConsumer against a broker that sends at most
``answer_rows`` messages at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from motelog.bridge.errors import RouteError
from motelog.bridge.pull import PullResult, PullStatus
from motelog.bridge.selector import TAGS_ALL
from motelog.core.message import MessageQueue
from tests.support.spark_records import Queue, Record


class FakeConsumer:
    """Queues of one topic, or more; ``faults`` are raised by the next calls, one each."""

    def __init__(
        self, topic: str = "telemetry", queue_count: int = 1, *, answer_rows: int = 32
    ) -> None:
        self.topic = topic
        self.broker: dict[MessageQueue, Queue] = {}
        self.answer_rows = answer_rows
        self.faults: deque[Exception] = deque()
        self.pulls: list[tuple[int, int, int]] = []
        self.is_closed = False
        #: Tags and SQL92 filter of the last puller, and what the broker makes of them.
        self.asked_for: tuple[str, str | None] = (TAGS_ALL, None)
        self.leaves_out: Callable[[Record], bool] = lambda record: False
        #: What the group has committed.
        self.offsets: dict[MessageQueue, int] = {}
        self._lock = threading.Lock()
        for queue_id in range(queue_count):
            self.add_queue(queue_id)

    def add_queue(self, queue_id: int, *records: Record, topic: str | None = None) -> MessageQueue:
        queue = MessageQueue(topic or self.topic, "broker-a", queue_id)
        self.broker[queue] = Queue(queue_id)
        self.broker[queue].put(*records)
        return queue

    def topics(self) -> list[str]:
        self._fail()
        return sorted({queue.topic for queue in self.broker})

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        self._fail()
        queues = tuple(queue for queue in self.broker if queue.topic == topic)
        if not queues:
            raise RouteError(f"topic {topic!r} does not exist", topic=topic)
        return queues

    def committed(self, queue: MessageQueue) -> int | None:
        self._fail()
        return self.offsets.get(queue)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._fail()
        self.offsets.update(offsets)

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        self._fail()
        return {queue: self.broker[queue].min_offset for queue in queues}

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        self._fail()
        return {queue: self.broker[queue].max_offset for queue in queues}

    def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        self._fail()
        return {
            queue: self.broker[queue].min_offset
            + sum(record.store_ms < timestamp_ms for record in self.broker[queue].records)
            for queue in queues
        }

    def pull(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> PullResult:
        with self._lock:
            self.pulls.append((queue.queue_id, queue_offset, count_max))
            self._fail()
            return self._answer(self.broker[queue], queue_offset, count_max, bytes_max)

    def open_puller(
        self,
        queue: MessageQueue,
        *,
        bytes_max: int,
        tags: str = TAGS_ALL,
        sql: str | None = None,
        may_map: bool = False,
    ) -> FakePuller:
        self.asked_for = (tags, sql)
        return FakePuller(self, queue, bytes_max)

    def close(self) -> None:
        self.is_closed = True

    def _answer(self, log: Queue, offset: int, count_max: int, bytes_max: int) -> PullResult:
        low, high = log.min_offset, log.max_offset
        if offset < low:
            return PullResult(PullStatus.OFFSET_ILLEGAL, low, low, high, b"")
        if offset > high:
            return PullResult(PullStatus.OFFSET_ILLEGAL, high, low, high, b"")
        if offset == high:
            return PullResult(PullStatus.NO_NEW_MESSAGE, offset, low, high, b"")
        found: list[bytes] = []
        seen = 0
        for record in log.records[offset - low :][: min(count_max, self.answer_rows)]:
            if self.leaves_out(record):
                seen += 1
                continue
            data = record.encode()
            if found and sum(map(len, found)) + len(data) > bytes_max:
                break
            found.append(data)
            seen += 1
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, offset + seen, low, high, b"".join(found))

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.popleft()


class FakePuller:
    """Pulls of one queue that are answered when their result is wanted, as far as it shows."""

    def __init__(self, consumer: FakeConsumer, queue: MessageQueue, bytes_max: int) -> None:
        self._consumer = consumer
        self._queue = queue
        self._bytes_max = bytes_max

    def ask(self, queue_offset: int, count_max: int) -> FakePull:
        return FakePull(
            lambda: self._consumer.pull(
                self._queue, queue_offset, count_max=count_max, bytes_max=self._bytes_max
            )
        )

    def close(self) -> None:
        return


class FakePull:
    def __init__(self, pull: Callable[[], PullResult]) -> None:
        self.result = pull

    def cancel(self) -> None:
        return


class ManualTime:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
