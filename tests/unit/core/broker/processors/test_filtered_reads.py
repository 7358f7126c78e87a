"""Reads through a SQL92 filter: what they return, how far they look, when they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from motelog.core.broker.api import NotInMemoryError, ReadResult, ReadStatus
from motelog.core.broker.processors.filtered_reads import BUSY_MS, RECORDS_MAX, read_matching
from motelog.core.clock import ManualClock
from motelog.core.filter.sql_filter import SqlFilter, compile_sql
from motelog.core.records.decode import decode_messages
from motelog.core.store.disk.page_cache import Places
from tests.support.broker_stage import CountingApi, broker_stage
from tests.support.stores import message

EVEN = "number >= 0 AND kind = 'even'"


class Filtered:
    """Queue 0 of topic A with numbered messages, read through filters."""

    def __init__(self, api: CountingApi, count: int) -> None:
        self.api = api
        self.clock = ManualClock()
        self.batches: list[int] = []
        tail = api.queue_tail("A", 0)
        for first in range(0, count, 100):
            api.line.append([self.numbered(tail, n) for n in range(first, min(first + 100, count))])

    def numbered(self, tail: Any, number: int) -> Any:
        kind = "even" if number % 2 == 0 else "odd"
        return message(
            tail, b"%d" % number, properties=f"kind\x01{kind}\x02number\x01{number}\x02".encode()
        )

    def read(self, expression: str | SqlFilter, offset: int = 0, **limits: Any) -> ReadResult:
        wanted = compile_sql(expression) if isinstance(expression, str) else expression
        limits = {"count_max": 32, "bytes_max": 262_144, "may_wait": False} | limits
        self.api.reads.clear()
        return read_matching(self.api, self.clock, wanted, "A", 0, offset, **limits)

    def bodies(self, expression: str, offset: int = 0, **limits: Any) -> list[int]:
        records = self.read(expression, offset, **limits).records
        return [int(found.body) for found in decode_messages(records)]


@contextmanager
def filtered(folder: Path, count: int) -> Iterator[Filtered]:
    with broker_stage(folder, commitlog_file_bytes=1 << 20) as stage:
        yield Filtered(stage.api, count)


def test_what_matches_is_returned_in_order_and_the_rest_is_passed(tmp_path: Path) -> None:
    with filtered(tmp_path, 50) as queue:
        assert queue.bodies(EVEN, 9) == list(range(10, 50, 2))
        found = queue.read(EVEN, 9)
        assert (found.status, found.count, found.next_offset) == (ReadStatus.FOUND, 20, 50)
        assert (found.min_offset, found.max_offset) == (0, 50)
        nothing = queue.read("kind = 'none'", 9)
        assert (nothing.status, nothing.count, nothing.records) == (ReadStatus.NO_MATCH, 0, b"")
        assert nothing.next_offset == 50


@pytest.mark.parametrize("offset", [0, 1, 2, 7, 49])
@pytest.mark.parametrize("count_max", [1, 2, 5, 25])
def test_an_answer_ends_behind_the_last_that_fits(
    tmp_path: Path, offset: int, count_max: int
) -> None:
    with filtered(tmp_path, 50) as queue:
        expected = [n for n in range(offset, 50) if n % 2 == 0][:count_max]
        assert queue.bodies(EVEN, offset, count_max=count_max) == expected
        found = queue.read(EVEN, offset, count_max=count_max)
        assert found.next_offset == (expected[-1] + 1 if len(expected) == count_max else 50)


def test_bytes_are_limited_but_the_first_is_always_there(tmp_path: Path) -> None:
    with filtered(tmp_path, 50) as queue:
        (size,) = {m.stored_bytes for m in decode_messages(queue.read(EVEN, 10).records)}
        for bytes_max, count in (
            (1, 1),
            (size, 1),
            (2 * size - 1, 1),
            (2 * size, 2),
            (3 * size, 3),
        ):
            found = queue.read(EVEN, 10, bytes_max=bytes_max)
            assert (found.count, found.next_offset) == (count, 10 + 2 * count)


def test_one_read_looks_at_so_many_and_the_next_goes_on(tmp_path: Path) -> None:
    with filtered(tmp_path, 2000) as queue:
        nothing = queue.read("number > 1990", 100)
        assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCH, 100 + RECORDS_MAX)
        assert queue.read("number > 1990", 100, count_max=1000).next_offset == 1100
        offset, found = 0, 0
        while offset < 2000:
            result = queue.read("number >= 1990", offset)
            offset, found = result.next_offset, found + result.count
        assert found == 10


def test_a_read_ends_when_it_has_taken_its_time(tmp_path: Path) -> None:
    with filtered(tmp_path, 50) as queue:

        def slow(values: Any) -> bool:
            queue.clock.advance(1)
            return bool(values["kind"] == "even")

        wanted = SqlFilter("slow", ("kind",), slow)
        found = queue.read(wanted, 1)
        assert (found.count, found.next_offset) == (BUSY_MS // 2, 1 + BUSY_MS)


def test_the_store_says_what_there_is_not(tmp_path: Path) -> None:
    with filtered(tmp_path, 5) as queue:
        for offset, status in (
            (5, ReadStatus.OFFSET_OVERFLOW_ONE),
            (6, ReadStatus.OFFSET_OVERFLOW_BADLY),
            (-1, ReadStatus.OFFSET_TOO_SMALL),
        ):
            assert queue.read(EVEN, offset).status is status


def test_what_is_cold_behind_the_first_batch_is_left_to_the_next_read(tmp_path: Path) -> None:
    with filtered(tmp_path, 500) as queue:
        read = queue.api.read

        def partly_cold(topic: str, queue_id: int, queue_offset: int, **how: Any) -> ReadResult:
            if queue_offset >= 256:
                raise NotInMemoryError([Places("path", ((0, 1),))])
            return read(topic, queue_id, queue_offset, **how)

        queue.api.read = partly_cold
        nothing = queue.read("kind = 'none'", count_max=100)
        assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCH, 256)
        with pytest.raises(NotInMemoryError):
            queue.read("kind = 'none'", 256)
