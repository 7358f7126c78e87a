"""The topics of a query for planning: their queues, where they begin and end.

Owns: TopicView, the meaning of startingOffsets and endingOffsets. Must not touch: pyspark,
messages. Calls wait for the end of short outages (spark.outage); a missing topic is not an outage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.core.errors import MotelogError
from motelog.core.message import MessageQueue
from motelog.spark import connections
from motelog.spark.connections import Consumer, drop
from motelog.spark.errors import DataLossError, OptionError, OutageError, SourceError
from motelog.spark.offsets import Edge, QueueOffsets, in_order, parse_offsets, queue_label
from motelog.spark.options import AtOffsets, AtTime, Position, SourceOptions
from motelog.spark.outage import Outage

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MISSING = "a topic that exists; publish to it first, or set failOnMissingTopic to false"
#: How long a plan waits for name servers that have never answered this process: their address may
#: be mistyped, and the user is waiting. Long enough for the restart of a name server.
FIRST_ANSWER_S = 3.0
# Rows of the sample that estimates the size of a row: one small answer.
_SAMPLE_ROWS = 64
_SAMPLE_BYTES = 65_536


class TopicView:
    """The topics of a query as their brokers know them now."""

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

    def queues(self, seen: Collection[str] = ()) -> list[MessageQueue]:
        """Return the queues of all topics.

        The absence of a topic that has been ``seen`` is an outage. Otherwise a missing topic is an
        OptionError, or with failOnMissingTopic=false a topic without queues.
        """
        options = self._options
        topics = options.topics

        def ask(consumer: Consumer) -> list[MessageQueue]:
            names = {*topics.names, *seen}
            if topics.pattern is not None:
                names.update(topics.among(consumer.topics()))
                if not names and options.fail_on_missing_topic:
                    raise OptionError(*topics.asked, _MISSING)
            found: list[MessageQueue] = []
            for topic in sorted(names):
                found += queues_of(consumer, topic)
            return in_order(found)

        def queues_of(consumer: Consumer, topic: str) -> Iterable[MessageQueue]:
            try:
                return consumer.queues(topic)
            except RouteError:
                if topic in seen:
                    raise
                if topic in topics.names and options.fail_on_missing_topic:
                    raise OptionError("topic", topic, _MISSING) from None
                return ()

        return self._ask(ask)

    def commit(self, offsets: QueueOffsets) -> None:
        """Commit the query's progress, so that the lag of its group can be observed."""
        try:
            self._open_consumer().commit(offsets)
        except MotelogError as exc:
            logger.warning(
                "offsets could not be committed; the group's lag is out of date until the next"
                " batch group=%s error=%s",
                self._options.group,
                exc,
            )

    def begins(self, queues: Iterable[MessageQueue]) -> QueueOffsets:
        """Return the offset of each queue's oldest message."""
        asked = list(queues)
        return self._ask(lambda consumer: consumer.begin_offsets(asked))

    def ends(self, queues: Iterable[MessageQueue]) -> QueueOffsets:
        """Return the offset after each queue's newest message."""
        asked = list(queues)
        return self._ask(lambda consumer: consumer.end_offsets(asked))

    def row_bytes(self, begin: QueueOffsets) -> dict[MessageQueue, int]:
        """Return the approximate bytes of a message by queue, from these offsets on."""

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
        """Return the current offsets for ``startingOffsets`` or ``endingOffsets``."""
        match position:
            case "earliest":
                return self.begins(queues)
            case "latest":
                return self.ends(queues)
            case "committed":
                return self._committed(queues)
            case AtTime(timestamp_ms):
                return self._ask(lambda consumer: consumer.offsets_for_time(queues, timestamp_ms))
            case AtOffsets(text):
                return self._resolve_offsets(option, text, queues)

    def _committed(self, queues: list[MessageQueue]) -> QueueOffsets:
        """Return the group's committed offsets, or the beginning of queues without one."""
        found = self._ask(lambda consumer: {queue: consumer.committed(queue) for queue in queues})
        begins = self.begins(queues)
        return {queue: begins[queue] if at is None else at for queue, at in found.items()}

    def _resolve_offsets(self, option: str, text: str, queues: list[MessageQueue]) -> QueueOffsets:
        given = parse_offsets(self._options.topics, text)
        unknown = [queue_label(queue) for queue in given if queue not in queues]
        if unknown:
            labels = [queue_label(queue) for queue in queues]
            raise OptionError(option, text, f"offsets of the queues {labels}, not of {unknown}")
        begins, ends = self.begins(queues), self.ends(queues)
        edges: dict[Edge, QueueOffsets] = {"earliest": begins, "latest": ends}
        # Queues that are not named are read completely.
        offsets = dict(begins if option == "startingOffsets" else ends)
        for queue, value in given.items():
            offsets[queue] = value if isinstance(value, int) else edges[value][queue]
            if offsets[queue] > ends[queue]:
                raise OptionError(
                    option, text, f"offsets up to {ends[queue]} in queue {queue_label(queue)!r}"
                )
        return offsets

    def planned_begin(self, start: QueueOffsets, latest: QueueOffsets) -> QueueOffsets:
        """Return where a batch from ``start`` to ``latest`` actually begins in each queue.

        A queue that is new to the query begins where its log begins. A queue whose end is before
        ``start`` was created again: a DataLossError, or if allowed it begins where its log begins.
        """
        options = self._options
        from_begin = []
        for queue, end in latest.items():
            if queue not in start:
                from_begin.append(queue)
            elif end < start[queue]:
                if options.fail_on_data_loss:
                    raise DataLossError(
                        queue.topic,
                        queue_label(queue),
                        offset_begin=end,
                        offset_end=start[queue],
                        why=f"the queue ends at {end}, the query had read up to {start[queue]}",
                    )
                from_begin.append(queue)
        # If loss is allowed, deleted offsets must not use up a batch's limit.
        asked = from_begin if options.fail_on_data_loss else list(latest)
        begins = self.begins(asked) if asked else {}
        return {
            queue: begins[queue] if queue in from_begin else max(start[queue], begins.get(queue, 0))
            for queue in latest
        }

    def _refuse_names(self, exc: NoNameServerError, waited_s: float) -> None:
        """Raise an error if the option is probably wrong.

        For name servers that have answered before, the query waits as for brokers.
        """
        if waited_s >= FIRST_ANSWER_S:
            text = f"option 'namesrv': no answer within {FIRST_ANSWER_S:g} s: {exc}"
            raise OutageError(text) from exc

    def _ask(self, ask: Callable[[Consumer], T]) -> T:
        options = self._options
        outage = Outage(options.outage_seconds_max, clock_s=self._clock_s, sleep=self._sleep)
        begun_s = self._clock_s()
        while True:
            try:
                answer = ask(self._open_consumer())
                connections.answered(options.endpoint)
                return answer
            except SourceError:
                raise
            except MotelogError as exc:
                try:
                    if not isinstance(exc, NoNameServerError):
                        connections.answered(options.endpoint)
                    elif not connections.has_answered(options.endpoint):
                        self._refuse_names(exc, self._clock_s() - begun_s)
                    outage.pause_after(exc, f"brokers of {options.topics}")
                except OutageError:
                    drop(options.endpoint)
                    raise
