"""The Spark data source ``format("motelog")``: batch and micro-batch reads of queue topics.

Owns: mapping Spark's Data Source API to offsets, plans and reads. Must not touch: sockets (bridge),
the encoding of records (spark.arrow).

Spark creates readers in several processes: one lives as long as the query and plans, others only
``read``. The partition carries everything that ``read`` needs; it does not share the planner's
memory. pyarrow, trio and the client are imported only when a broker is asked, because Spark imports
this module in every worker that looks for data sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from motelog.spark.columns import Column
from motelog.spark.errors import OutageError
from motelog.spark.layout import Layout, layout_of, schema_of
from motelog.spark.offsets import (
    OffsetRange,
    QueueOffsets,
    decode_offsets,
    encode_offsets,
    limit_bytes,
    limit_rows,
    ranges_between,
    share_tasks,
    split_ranges,
)
from motelog.spark.options import GROUP, SourceOptions, parse_options
from motelog.spark.sink.options import parse_sink_options
from motelog.spark.sink.writer import MotelogStreamWriter, MotelogWriter
from motelog.spark.wanted import TAGS_ALL

if TYPE_CHECKING:
    from motelog.spark.topic_view import TopicView


class QueuePartition(InputPartition):
    """One Spark task: a range of one queue, or small ranges of several."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class MotelogDataSource(DataSource):
    """Reads and writes topics; options are in spark.options and spark.sink.options."""

    @classmethod
    def name(cls) -> str:
        return "motelog"

    def schema(self) -> str:
        return schema_of(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        kind = MotelogFilteredReader if options.push_filters else MotelogReader
        return kind(options, layout_of(schema.jsonValue(), options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options)
        return MotelogStreamReader(options, layout_of(schema.jsonValue(), options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return MotelogWriter(parse_sink_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = parse_sink_options(self.options, is_stream=True)
        return MotelogStreamWriter(options, schema, overwrite)


class _Reader:
    """The common part of both readers. It holds only options, so that it can be pickled."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the partition's messages as Arrow batches."""
        # If there are no partitions, Spark adds one of its own.
        if not isinstance(partition, QueuePartition):
            return
        from motelog.spark.connections import consumer_for, drop, settle
        from motelog.spark.reading import read_range

        endpoint = self._options.endpoint
        if TaskContext.get() is not None:
            settle()
        try:
            for offset_range in partition.ranges:
                consumer = consumer_for(endpoint)
                yield from read_range(consumer, offset_range, self._layout, self._options)
        except OutageError:
            drop(endpoint)
            raise

    def _view(self) -> TopicView:
        from motelog.spark.connections import consumer_for
        from motelog.spark.topic_view import TopicView

        endpoint = self._options.endpoint
        return TopicView(lambda: consumer_for(endpoint), self._options)

    def _split(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        pieces = split_ranges(
            ranges,
            partitions_min=self._options.min_partitions,
            rows_max=self._options.max_records_per_partition,
        )
        rows_max = self._options.max_records_per_partition
        tasks = share_tasks(
            pieces,
            tasks_min=self._options.min_partitions,
            rows_max=min(rows_max or self._options.batch_rows, self._options.batch_rows),
        )
        return [QueuePartition(task) for task in tasks]


class MotelogReader(_Reader, DataSourceReader):
    """One batch query: the offsets between start and end, both fixed when it is planned."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = self._view()
        queues = view.queues()
        start = view.resolve("startingOffsets", options.starting_offsets, queues)
        end = view.resolve("endingOffsets", options.ending_offsets, queues)
        # Here an end before the start means no rows, not a queue that was created again.
        end = {queue: max(offset, start[queue]) for queue, offset in end.items()}
        return self._split(ranges_between(start, end))


class MotelogFilteredReader(MotelogReader):
    """A batch query that lets brokers filter by tag if the query compares ``device``.

    Spark refuses readers with pushFilters unless a setting allows it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the tags of the first filter that has some; Spark applies all filters again."""
        found = next((tags for one in filters if (tags := _tags_of(one))), None)
        if found and self._options.tags == TAGS_ALL and self._options.sql_filter is None:
            self._options = replace(self._options, tags=" || ".join(found))
        return filters


def _tags_of(one: Filter) -> tuple[str, ...]:
    """Return the tags that a filter allows, () if it does not name them."""
    match one:
        case EqualTo(attribute=(name,), value=str(value)):
            values = (value,)
        case In(attribute=(name,), value=tuple(values)):
            pass
        case _:
            return ()
    # What a tag expression cannot express is left to Spark.
    is_plain = all(
        isinstance(value, str) and value == value.strip() and value not in ("", TAGS_ALL)
        and "||" not in value
        for value in values
    )  # fmt: skip
    return values if name.lower() == Column.DEVICE.label and is_plain else ()


class MotelogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. Its fields belong to the planning process; ``read`` never sees them."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        self._initial: dict[str, Any] | None = None
        self._target: QueueOffsets | None = None
        self._latest: QueueOffsets | None = None
        self._committed: QueueOffsets = {}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts. Spark asks twice and expects the same answer."""
        if self._initial is None:
            view = self._view()
            queues = view.queues()
            start = view.resolve("startingOffsets", self._options.starting_offsets, queues)
            self._initial = encode_offsets(self._options.topics, start)
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: messages that come later belong to the next run."""
        view = self._view()
        self._target = view.ends(view.queues())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that starts at ``start``."""
        topics = self._options.topics
        known = decode_offsets(topics, start)
        view = self._view()
        latest = self._target
        if latest is None:
            latest = view.ends(view.queues({queue.topic for queue in known}))
        self._commit(view, known)
        self._latest = known | latest
        begin = view.planned_begin(known, latest)
        end = self._limited(view, begin, latest, limit)
        # Queues that are not listed now may come back: the query keeps its offsets in them.
        return encode_offsets(topics, known | end)

    def _commit(self, view: TopicView, done: QueueOffsets) -> None:
        """Commit the ends of batches. Spark calls its own ``commit`` only with the next batch."""
        if self._options.group == GROUP:
            return
        moved = {queue: at for queue, at in done.items() if self._committed.get(queue) != at}
        if moved:
            view.commit(moved)
            self._committed = done

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._latest is None:
            return None
        return encode_offsets(self._options.topics, self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        topics = self._options.topics
        ranges = ranges_between(decode_offsets(topics, start), decode_offsets(topics, end))
        return self._split(ranges)

    def _limited(
        self, view: TopicView, begin: QueueOffsets, latest: QueueOffsets, limit: ReadLimit
    ) -> QueueOffsets:
        # With fewer rows than queues, the rows read so far say which queue is next.
        first = sum(begin.values())
        match limit:
            case ReadMaxRows(max_rows=rows_max):
                return limit_rows(begin, latest, rows_max, first=first)
            case ReadMaxBytes(max_bytes=bytes_max):
                waiting = {queue: begin[queue] for queue in latest if latest[queue] > begin[queue]}
                row_bytes = view.row_bytes(waiting)
                return limit_bytes(begin, latest, bytes_max, row_bytes=row_bytes, first=first)
            case _:
                return latest
