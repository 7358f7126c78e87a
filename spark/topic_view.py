"""One topic as planning needs it from the brokers: its queues, where they begin and end.

Owns: TopicView, the meaning of startingOffsets and endingOffsets. Must not touch: pyspark,
messages. Calls wait for the end of short outages (spark.outage); that a topic does not exist is an
answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from motelog.bridge.errors import RouteError
from motelog.core.errors import MotelogError
from motelog.core.message import MessageQueue
from motelog.spark.connections import Consumer, drop
from motelog.spark.errors import DataLossError, OptionError, OutageError, SourceError
from motelog.spark.offsets import Edge, QueueOffsets, in_order, parse_offsets, queue_label
from motelog.spark.options import AtOffsets, AtTime, Position, SourceOptions
from motelog.spark.outage import Outage

T = TypeVar("T")

# Rows of a sample that says how large a row is: one small answer.
_SAMPLE_ROWS = 64
_SAMPLE_BYTES = 65_536


class TopicView:
    """One topic as its brokers know it now."""

    def __init__(
        self,
        open_consumer: Callable[[], Consumer],
        options: SourceOptions,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._open_consumer = open_consumer
        self._options = options
        self._clock_s = clock_s
        self._sleep = sleep

    def queues(self, *, is_known: bool) -> list[MessageQueue]:
        """Return the topic's queues.

        ``is_known`` says that the topic has been seen, so that its absence is an outage. Otherwise
        a missing topic is an OptionError, or with failOnMissingTopic=false a topic without queues.
        """
        topic = self._options.topic

        def ask(consumer: Consumer) -> list[MessageQueue]:
            try:
                return in_order(consumer.queues(topic))
            except RouteError:
                if is_known:
                    raise
                if not self._options.fail_on_missing_topic:
                    return []
                raise OptionError(
                    "topic",
                    topic,
                    "a topic that exists; publish to it first, or set failOnMissingTopic to false",
                ) from None

        return self._ask(ask)

    def begins(self, queues: Iterable[MessageQueue]) -> QueueOffsets:
        """Return the offset of each queue's oldest message."""
        asked = list(queues)
        return self._ask(lambda consumer: consumer.begin_offsets(asked))

    def ends(self, queues: Iterable[MessageQueue]) -> QueueOffsets:
        """Return the offset after each queue's newest message."""
        asked = list(queues)
        return self._ask(lambda consumer: consumer.end_offsets(asked))

    def row_bytes(self, begin: QueueOffsets) -> dict[MessageQueue, int]:
        """Return by queue about how many bytes a message has from these offsets on."""

        def sample(queue: MessageQueue, offset: int) -> int:
            result = self._ask(
                lambda consumer: consumer.pull(
                    queue, offset, count_max=_SAMPLE_ROWS, bytes_max=_SAMPLE_BYTES
                )
            )
            rows = max(1, result.next_offset - offset)
            return -(-len(result.records) // rows)

        return {queue: sample(queue, offset) for queue, offset in begin.items()}

    def resolve(self, option: str, position: Position, queues: list[MessageQueue]) -> QueueOffsets:
        """Return the offsets that ``startingOffsets`` or ``endingOffsets`` mean now."""
        match position:
            case "earliest":
                return self.begins(queues)
            case "latest":
                return self.ends(queues)
            case AtTime(timestamp_ms):
                return self._ask(lambda consumer: consumer.offsets_for_time(queues, timestamp_ms))
            case AtOffsets(text):
                return self._resolve_offsets(option, text, queues)

    def _resolve_offsets(self, option: str, text: str, queues: list[MessageQueue]) -> QueueOffsets:
        given = parse_offsets(self._options.topic, text)
        unknown = [queue_label(queue) for queue in given if queue not in queues]
        if unknown:
            labels = [queue_label(queue) for queue in queues]
            raise OptionError(option, text, f"offsets of the queues {labels}, not of {unknown}")
        begins, ends = self.begins(queues), self.ends(queues)
        edges: dict[Edge, QueueOffsets] = {"earliest": begins, "latest": ends}
        # Queues that are not named are read whole.
        offsets = dict(begins if option == "startingOffsets" else ends)
        for queue, value in given.items():
            offsets[queue] = value if isinstance(value, int) else edges[value][queue]
            if offsets[queue] > ends[queue]:
                raise OptionError(
                    option, text, f"offsets up to {ends[queue]} in queue {queue_label(queue)!r}"
                )
        return offsets

    def planned_begin(self, start: QueueOffsets, latest: QueueOffsets) -> QueueOffsets:
        """Return where a batch from ``start`` towards ``latest`` really begins in each queue.

        A queue that is new to the query begins where its log does. A queue whose end is before
        ``start`` was created again: that is a DataLossError, or it begins where its log does.
        """
        options = self._options
        from_begin = []
        for queue, end in latest.items():
            if queue not in start:
                from_begin.append(queue)
            elif end < start[queue]:
                if options.fail_on_data_loss:
                    raise DataLossError(
                        options.topic,
                        queue_label(queue),
                        offset_begin=end,
                        offset_end=start[queue],
                        why=f"the queue ends at {end}, the query had read up to {start[queue]}",
                    )
                from_begin.append(queue)
        # Where loss is allowed, offsets that retention took must not use up a batch's limit.
        asked = from_begin if options.fail_on_data_loss else list(latest)
        begins = self.begins(asked) if asked else {}
        return {
            queue: begins[queue] if queue in from_begin else max(start[queue], begins.get(queue, 0))
            for queue in latest
        }

    def _ask(self, ask: Callable[[Consumer], T]) -> T:
        options = self._options
        outage = Outage(options.outage_seconds_max, clock_s=self._clock_s, sleep=self._sleep)
        while True:
            try:
                return ask(self._open_consumer())
            except SourceError:
                raise
            except MotelogError as exc:
                try:
                    outage.pause_after(exc, f"brokers of topic {options.topic!r}")
                except OutageError:
                    drop(options.endpoint)
                    raise
