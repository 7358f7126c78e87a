"""Reads through a SQL92 filter: reads records in batches and keeps those that match.

Owns: how many records one read examines. Must not touch: sockets, files; which records match
(sql_filter), which pulls are held (the pull processor).

A read ends when the answer is full, at the queue's end, after RECORDS_MAX records, when BUSY_MS
have passed, or before records that are not in memory. Its result is like one of the store:
``next_offset`` is after the last record examined; NO_MATCH means that no record matched.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from motelog.core.broker.api import BrokerApi, NotInMemoryError, ReadResult, ReadStatus
from motelog.core.clock import Clock
from motelog.core.filter.sql_filter import SqlFilter
from motelog.core.records.decode import decode_values

# The store examines as many units for tags; a read that wants more records examines more.
RECORDS_MAX: Final = 800
BUSY_MS: Final = 2
_BATCH_COUNT_MAX: Final = 256
_BATCH_BYTES_MAX: Final = 262_144
# Records read for each wanted one while the share of matches is unknown.
_READ_PER_WANTED: Final = 4

_LOOKED_AT: Final = (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVED)


def read_matching(
    api: BrokerApi,
    clock: Clock,
    wanted: SqlFilter,
    topic: str,
    queue_id: int,
    queue_offset: int,
    *,
    count_max: int,
    bytes_max: int,
    may_wait: bool,
) -> ReadResult:
    """Return records from ``queue_offset`` on that match, as ``BrokerApi.read`` does for tags.

    At most ``count_max`` records and ``bytes_max`` bytes, but always the first that matches.
    Records after the first batch that are not in memory are left to the next read.
    """
    search = _Search(wanted, clock, count_max, bytes_max, queue_offset)
    end_offset = queue_offset + max(RECORDS_MAX, count_max)
    result: ReadResult | None = None
    is_over = False
    while not is_over:
        try:
            batch = api.read(
                topic,
                queue_id,
                search.next_offset,
                count_max=min(search.batch_count, end_offset - search.next_offset),
                bytes_max=_BATCH_BYTES_MAX,
                may_wait=may_wait,
            )
        except NotInMemoryError:
            if result is None:
                raise
            break
        if batch.status not in _LOOKED_AT:
            if result is None:
                return batch
            break
        result = batch
        is_over = search.look_at(batch)
        is_over = is_over or search.next_offset >= min(end_offset, batch.max_offset)
    assert result is not None
    return replace(
        result,
        status=ReadStatus.FOUND if search.count else ReadStatus.NO_MATCH,
        next_offset=search.next_offset,
        records=b"".join(search.parts),
        count=search.count,
        record_bytes=search.found_bytes,
    )


class _Search:
    """The records that one read has found so far, and when it is to end."""

    __slots__ = (
        "_bytes_max",
        "_clock",
        "_count_max",
        "_stop_ms",
        "_wanted",
        "count",
        "found_bytes",
        "next_offset",
        "parts",
    )

    def __init__(
        self, wanted: SqlFilter, clock: Clock, count_max: int, bytes_max: int, queue_offset: int
    ) -> None:
        self._wanted = wanted
        self._clock = clock
        self._stop_ms = clock.monotonic_ms() + BUSY_MS
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.found_bytes = 0
        self.count = 0
        self.next_offset = queue_offset
        self.parts: list[memoryview] = []

    @property
    def batch_count(self) -> int:
        return min(_READ_PER_WANTED * (self._count_max - self.count), _BATCH_COUNT_MAX)

    def look_at(self, batch: ReadResult) -> bool:
        """Keep the records of a batch that match; return whether the read ends with it."""
        matches, monotonic_ms = self._wanted.matches, self._clock.monotonic_ms
        view = memoryview(batch.records)
        at = 0
        for queue_offset, size, values in decode_values(view, self._wanted.names):
            if matches(values):
                if self.count and self.found_bytes + size > self._bytes_max:
                    self.next_offset = queue_offset
                    return True
                self.parts.append(view[at : at + size])
                self.count += 1
                self.found_bytes += size
            at += size
            # Checked after each record: a hostile filter on a hostile message is slow.
            if self.count >= self._count_max or monotonic_ms() >= self._stop_ms:
                self.next_offset = queue_offset + 1
                return True
        self.next_offset = batch.next_offset
        return False
