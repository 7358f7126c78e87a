"""Reads one queue range: pulls -> Arrow batches, across short outages, each message exactly once.

Owns: interpreting answers, deciding when messages are lost. Must not touch: pyspark; consumer,
clock and sleep are arguments.
Invariants: rows come in order of queue offsets; unless loss is allowed, every offset of the range
comes exactly once or the read ends with a DataLossError, OutageError or RecordFormatError. With
tags or a SQL92 filter brokers omit messages, and only a later begin of the queue reveals a loss.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from motelog.bridge.errors import UnreadableLogError
from motelog.bridge.pull import PullStatus
from motelog.core.errors import MotelogError, RecordError
from motelog.spark.arrow import RecordColumns
from motelog.spark.batches import Batches
from motelog.spark.connections import Consumer, Puller
from motelog.spark.errors import DataLossError, RecordFormatError
from motelog.spark.layout import Layout
from motelog.spark.offsets import OffsetRange, queue_label
from motelog.spark.options import SourceOptions
from motelog.spark.outage import Outage
from motelog.spark.pull_ahead import Answer, PullAhead

logger = logging.getLogger(__name__)

# A batch ends when its texts and payloads reach this, even if it has few rows.
BATCH_BYTES_MAX = 64 * 1024 * 1024


def read_range(
    consumer: Consumer,
    offset_range: OffsetRange,
    layout: Layout,
    options: SourceOptions,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Any]:
    """Yield the range's messages as Arrow batches of ``options.batch_rows`` rows."""
    wanted = options.wanted
    puller = consumer.open_puller(
        offset_range.queue,
        bytes_max=options.pull_bytes,
        tags=wanted.tags,
        sql=wanted.sql,
        may_map=options.mapped_log,
    )
    with closing(puller):
        reader = _RangeReader(consumer, puller, offset_range, layout, options)
        outage = Outage(options.outage_seconds_max, clock_s=clock_s, sleep=sleep)
        yield from reader.batches(outage)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Offsets up to ``end`` will not come."""

    end: int
    why: str


class _RangeReader:
    def __init__(
        self,
        consumer: Consumer,
        puller: Puller,
        offset_range: OffsetRange,
        layout: Layout,
        options: SourceOptions,
    ) -> None:
        self._consumer = consumer
        self._range = offset_range
        self._queue = offset_range.queue
        self._batches = Batches(layout, options.wanted, options.payload_format)
        self._is_filtered = options.wanted.by_broker
        self._options = options
        self._decoder = RecordColumns(
            self._batches.columns,
            broker=self._queue.broker_name,
            offset_begin=offset_range.begin,
            offset_end=offset_range.end,
            payload_bytes_max=options.payload_bytes_max,
            bad_payload_null=options.bad_payload == "null",
        )
        self._pulls = PullAhead(
            puller.ask,
            offset_range.begin,
            offset_range.end,
            count_max=options.pull_records,
            # A broker that filters messages goes far beyond the requested offsets.
            ahead=1 if self._is_filtered else options.prefetch,
        )
        self._rows_taken = 0

    def batches(self, outage: Outage) -> Iterator[Any]:
        pulls = self._pulls
        what = f"queue {queue_label(self._queue)!r} of topic {self._queue.topic!r}"
        while not pulls.is_done:
            try:
                answer = pulls.take()
            except MotelogError as exc:
                outage.pause_after(exc, what)
                self._look_for_broker()
                continue
            result = answer.result
            if result.status is PullStatus.FOUND and result.next_offset > answer.begin:
                yield from self._decode(answer)
                outage.over()
                continue
            gap = self._judge(answer)
            if gap is not None and self._is_filtered and answer.begin >= result.min_offset:
                # Nothing is lost: the broker has filtered out messages.
                outage.over()
                pulls.restart(min(gap.end, self._range.end))
                continue
            if gap is None:
                # The broker has fewer messages than when the batch was planned. A restart or a
                # change of master can look like this for a moment.
                if outage.pause():
                    pulls.restart(answer.begin)
                    continue
                why = f"the queue ends at {result.max_offset}"
                gap = _Gap(self._range.end, why)
            # The beginning of an open range may be missing: retention may have deleted it.
            if not (self._range.is_open and answer.begin == self._range.begin):
                self._skip(answer.begin, gap)
            pulls.restart(min(gap.end, self._range.end))
        if self._decoder.rows:
            yield from self._take()
        if self._batches.malformed:
            logger.warning(
                "payloads are malformed; their rows say why in _malformed topic=%s queue=%s"
                " offset_begin=%d offset_end=%d count=%d first=%s",
                self._queue.topic,
                queue_label(self._queue),
                self._range.begin,
                self._range.end,
                self._batches.malformed,
                self._batches.first_reason,
            )

    def _decode(self, answer: Answer) -> Iterator[Any]:
        """Add an answer's records; yield the batches that they fill."""
        rows_before = self._rows_taken + self._decoder.rows
        try:
            for records in answer.result.pieces():
                yield from self._add(records, answer)
        except UnreadableLogError:
            # The cause shows when the records themselves are requested from the broker.
            self._pulls.restart(max(answer.begin, self._decoder.next_offset))
            return
        end = min(answer.result.next_offset, self._range.end)
        missing = end - answer.begin - (self._rows_taken + self._decoder.rows - rows_before)
        if missing and not self._is_filtered:
            why = f"{missing} of them are not in the broker's answer"
            self._skip(answer.begin, _Gap(end, why))
        self._pulls.go_on(answer, end)

    def _add(self, records: bytes | memoryview, answer: Answer) -> Iterator[Any]:
        """Add records of an answer; yield the batches that they fill."""
        position = 0
        while True:
            try:
                position = self._decoder.append(
                    records,
                    position,
                    rows_max=self._options.batch_rows,
                    bytes_max=BATCH_BYTES_MAX,
                )
            except (RecordError, ValueError) as exc:
                raise RecordFormatError(
                    f"topic {self._queue.topic!r} queue {queue_label(self._queue)!r}: answer to the"
                    f" pull at offset {answer.begin}: {exc}"
                ) from exc
            if position == len(records):
                return
            yield from self._take()

    def _judge(self, answer: Answer) -> _Gap | None:
        """Return the gap that an answer without messages reveals; None if it is uncertain."""
        result = answer.result
        if result.status is PullStatus.OFFSET_ILLEGAL and result.min_offset > answer.begin:
            return _Gap(result.min_offset, f"the queue now begins at {result.min_offset}")
        if (
            result.status in (PullStatus.NO_MATCHED_MESSAGE, PullStatus.NO_NEW_MESSAGE)
            and result.next_offset > answer.begin
        ):
            return _Gap(result.next_offset, "the broker has removed them")
        return None

    def _skip(self, begin: int, gap: _Gap) -> None:
        """Skip offsets that will not come; DataLossError if that is not allowed."""
        end = min(gap.end, self._range.end)
        if self._options.fail_on_data_loss:
            raise DataLossError(
                self._queue.topic,
                queue_label(self._queue),
                offset_begin=begin,
                offset_end=end,
                why=gap.why,
            )
        logger.warning(
            "messages were deleted before they were read and are skipped; with failOnDataLoss=true "
            "the query would fail topic=%s queue=%s offset_begin=%d offset_end=%d why=%s",
            self._queue.topic,
            queue_label(self._queue),
            begin,
            end,
            gap.why,
        )

    def _take(self) -> Iterator[Any]:
        rows = self._decoder.rows
        self._rows_taken += rows
        return self._batches.made_of(rows, self._decoder.take())

    def _look_for_broker(self) -> None:
        """Ask for the route again, because the broker may have another address after an outage."""
        try:
            self._consumer.queues(self._queue.topic)
        except MotelogError as exc:
            logger.info(
                "the route could not be refreshed; it is requested again topic=%s error=%s",
                self._queue.topic,
                exc,
            )
