"""The Spark data source ``format("motelog")``: writing, as a batch and as a stream.

Owns: mapping Spark's writers to attempts at partitions. Must not touch: sockets, the ledger's
records, the meaning of columns. Like the source it imports the client only in tasks.

Spark creates a writer for each batch and pickles it for the tasks, which learn from the task's
properties for which query and batch they write. A batch job gets an id when it is planned, so that
a task that Spark repeats adds nothing; with option ``writeId`` the id outlives the job.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from motelog.spark.errors import ModeError
from motelog.spark.sink.options import SinkOptions, check_columns

if TYPE_CHECKING:
    from motelog.spark.sink.clients import Clients
    from motelog.spark.sink.ledger import Part

#: How far the clocks of driver and broker may differ.
_CLOCKS_MS: Final = 600_000


@dataclass
class RowsWritten(WriterCommitMessage):
    """The result of one task: see ``partition.Written``."""

    sent: int = 0
    found: int = 0
    strange: int = 0


class MotelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch; a batch that Spark repeats adds nothing."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check(options, schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> RowsWritten:
        from motelog.spark.sink.clients import drop, kept_clients
        from motelog.spark.sink.ledger import Part

        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise ModeError("the task has no properties of Spark for its query and batch")
        part = Part(query, int(batch), context.partitionId())
        try:
            clients = kept_clients(query, self._options)
            return write_part(part, iterator, clients, self._options)
        except BaseException:
            drop(query, self._options)
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: rows are in the log when their task ends."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the batch is repeated, and finds the rows that it has written."""


class MotelogWriter(DataSourceArrowWriter):
    """Writes one batch; a task that Spark repeats adds nothing."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check(options, schema, overwrite)
        self._options = options
        self._since_ms: int | None = None
        if options.write_id is None:
            self._id = uuid.uuid4().hex
            self._since_ms = time.time_ns() // 1_000_000 - _CLOCKS_MS
        else:
            self._id = blake2b(options.write_id.encode(), digest_size=16).hexdigest()

    def write(self, iterator: Iterator[Any]) -> RowsWritten:
        from motelog.spark.sink.clients import open_clients
        from motelog.spark.sink.ledger import Part

        part = Part(self._id, 0, _task().partitionId())
        clients = open_clients(self._id, self._options, since_ms=self._since_ms)
        try:
            return write_part(part, iterator, clients, self._options)
        finally:
            clients.close()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: rows are in the log when their task ends."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: rows that tasks have written stay in the log."""


def check(options: SinkOptions, schema: StructType, overwrite: bool) -> None:
    """Check the columns when Spark plans; the error is one sentence."""
    if overwrite:
        raise ModeError(
            "a topic cannot be overwritten: write a batch with mode('append'), a stream with"
            " outputMode('append') or 'update'"
        )
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_columns(columns, options)


def write_part(
    part: Part, batches: Iterator[Any], clients: Clients, options: SinkOptions
) -> RowsWritten:
    """Write the rows of one partition that are not in the log."""
    from motelog.spark.sink.partition import PartitionWriter
    from motelog.spark.sink.rows import outgoing_rows

    def rows() -> Iterator[Any]:
        begin = 0
        for batch in batches:
            yield from outgoing_rows(batch, options, begin=begin)
            begin += batch.num_rows

    writer = PartitionWriter(
        part,
        clients.producer,
        clients.reader,
        clients.ledger,
        lease_s=options.lease_s,
        outage_seconds_max=options.outage_seconds_max,
        may_be_gone=not options.fail_on_data_loss,
    )
    written = writer.write(rows())
    return RowsWritten(written.sent, written.found, written.strange)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write in tasks"
    return context
