"""Reading one queue range: each message once, over outages; what is lost is said."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from motelog.bridge.errors import UnreadableLogError
from motelog.bridge.pull import PullResult
from motelog.core.errors import BrokerError, RemotingConnectionError
from motelog.core.message import SYS_FLAG_COMPRESSED
from motelog.spark.columns import Column
from motelog.spark.errors import DataLossError, OutageError, RecordFormatError
from motelog.spark.layout import Beside
from motelog.spark.offsets import OffsetRange
from motelog.spark.options import SourceOptions, parse_options
from motelog.spark.payload_fields import Field, Kind
from motelog.spark.reading import read_range
from tests.support.spark_broker import FakeConsumer, ManualTime
from tests.support.spark_records import Record, telemetry

COLUMNS = (Column.QUEUE_OFFSET, Column.PAYLOAD)


def broker_with(count: int, **options: Any) -> FakeConsumer:
    consumer = FakeConsumer(**options)
    (queue,) = consumer.broker
    consumer.broker[queue].put(*(telemetry(n) for n in range(count)))
    return consumer


def read(
    consumer: FakeConsumer, begin: int, end: int, *, is_open: bool = False, **options: Any
) -> list[int]:
    (queue,) = consumer.broker
    time = ManualTime()
    batches = read_range(
        consumer,
        OffsetRange(queue, begin, end, is_open),
        COLUMNS,
        SourceOptions(topic=("telemetry",), **options),
        clock_s=time.clock_s,
        sleep=time.sleep,
    )
    return [row["queue_offset"] for batch in batches for row in batch.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 300),
    answer_rows=st.integers(1, 64),
    pull_records=st.integers(1, 64),
    prefetch=st.integers(1, 4),
    batch_rows=st.integers(1, 100),
    faults=st.integers(0, 3),
    data=st.data(),
)
def test_a_range_comes_once_whatever_the_broker_sends_at_a_time(
    count: int,
    answer_rows: int,
    pull_records: int,
    prefetch: int,
    batch_rows: int,
    faults: int,
    data: st.DataObject,
) -> None:
    consumer = broker_with(count, answer_rows=answer_rows)
    consumer.faults.extend(RemotingConnectionError("gone") for _ in range(faults))
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    got = read(
        consumer,
        begin,
        end,
        pull_records=pull_records,
        prefetch=prefetch,
        batch_rows=batch_rows,
    )
    assert got == list(range(begin, end))


def test_short_answers_are_learned_from() -> None:
    consumer = broker_with(320, answer_rows=32)
    assert len(read(consumer, 0, 320, pull_records=1024)) == 320
    # The first pulls ask for everything, then for what came or a little less: 10 answers of 32
    # would do, a hole behind each would make it 20.
    assert len(consumer.pulls) <= 16


def test_batches_have_the_rows_asked_for() -> None:
    consumer = broker_with(25)
    (queue,) = consumer.broker
    options = SourceOptions(topic=("telemetry",), batch_rows=10)
    batches = list(read_range(consumer, OffsetRange(queue, 0, 25), COLUMNS, options))
    assert [batch.num_rows for batch in batches] == [10, 10, 5]


def test_messages_that_retention_took_are_an_error_that_names_them() -> None:
    consumer = broker_with(20)
    next(iter(consumer.broker.values())).expire(7)
    with pytest.raises(DataLossError, match=r"'broker-a/0': messages \[3, 7\) are lost") as caught:
        read(consumer, 3, 20)
    assert (caught.value.offset_begin, caught.value.offset_end) == (3, 7)


@pytest.mark.parametrize("options", [{"fail_on_data_loss": False}, {"is_open": True}])
def test_reading_goes_on_after_loss_where_that_is_allowed(options: dict[str, Any]) -> None:
    consumer = broker_with(20)
    next(iter(consumer.broker.values())).expire(7)
    assert read(consumer, 0, 20, **options) == list(range(7, 20))
    assert read(consumer, 0, 5, **options) == []


def test_a_hole_in_the_queue_is_lost_data() -> None:
    consumer = broker_with(20)
    del next(iter(consumer.broker.values())).records[5]
    consumer.broker[next(iter(consumer.broker))].records[5:5] = [Record(queue_offset=4)]
    with pytest.raises(DataLossError, match="1 of them are not in the broker's answer"):
        read(consumer, 0, 20)
    expected = [n for n in range(20) if n != 5]
    assert read(consumer, 0, 20, fail_on_data_loss=False) == expected


def test_a_queue_shorter_than_planned_is_an_error_after_the_outage_limit() -> None:
    consumer = broker_with(20)
    with pytest.raises(DataLossError, match=r"\[20, 30\) are lost: the queue ends at 20"):
        read(consumer, 0, 30)
    assert read(consumer, 0, 30, fail_on_data_loss=False) == list(range(20))


def test_an_outage_longer_than_the_limit_is_an_error_with_its_cause() -> None:
    consumer = broker_with(20)
    consumer.faults.extend(RemotingConnectionError(f"refused {n}") for n in range(500))
    with pytest.raises(OutageError, match=r"queue 'broker-a/0' .*no answer for 30 s.*refused"):
        read(consumer, 0, 20)


def test_a_refusal_is_not_retried() -> None:
    consumer = broker_with(20)
    consumer.faults.extend([BrokerError(16, "no permission"), BrokerError(16, "no permission")])
    with pytest.raises(BrokerError, match="no permission"):
        read(consumer, 0, 20, prefetch=1)


def test_damaged_records_name_queue_and_offset() -> None:
    consumer = FakeConsumer()
    (queue,) = consumer.broker
    consumer.broker[queue].put(Record(body=b"no zlib", sys_flag=1))
    with pytest.raises(RecordFormatError, match=r"queue 'broker-a/0'.*queue offset 0 cannot be"):
        read(consumer, 0, 1)
    assert read(consumer, 0, 1, bad_payload="null") == [0]


def test_malformed_payloads_are_counted_in_the_log_and_come_as_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = broker_with(3)
    (queue,) = consumer.broker
    cut = zlib.compress(b'{"value": 3}')[:-2]
    consumer.broker[queue].put(
        Record(body=b'{"value": "x"}'), Record(body=cut, sys_flag=SYS_FLAG_COMPRESSED), telemetry(5)
    )
    options = parse_options({"topic": "telemetry", "payloadFormat": "json", "batchRows": "2"})
    layout = (Column.QUEUE_OFFSET, Field("value", Kind.DOUBLE), *Beside)
    rows = [
        row
        for batch in read_range(consumer, OffsetRange(queue, 0, 6), layout, options)
        for row in batch.to_pylist()
    ]
    assert [row["queue_offset"] for row in rows] == list(range(6))
    assert [row["value"] for row in rows] == [1.5, 1.5, 1.5, None, None, 1.5]
    reasons = [
        "value: expected a number at byte 10",
        "the message has no payload that can be read",
    ]
    assert [row["_malformed"] for row in rows if row["_malformed"]] == reasons
    assert [row["_payload"] for row in rows if row["_payload"]] == [b'{"value": "x"}']
    (line,) = caplog.messages
    assert line.endswith(f"offset_begin=0 offset_end=6 count=2 first={reasons[0]}")


class FilesOfConsumer(FakeConsumer):
    """Its answers are read in files, until the record at ``unreadable`` is not there."""

    unreadable = 1 << 62

    def pull(self, queue: Any, queue_offset: int, **how: Any) -> PullResult:
        result = super().pull(queue, queue_offset, **how)
        count = result.next_offset - queue_offset
        if not result.records or queue_offset > self.unreadable:
            return result

        def pieces() -> Iterator[bytes]:
            for record in self.broker[queue].records[queue_offset : queue_offset + count]:
                if record.queue_offset == self.unreadable:
                    self.unreadable = -1
                    raise UnreadableLogError("it is gone")
                yield record.encode()

        return replace(result, records=b"", mapped=pieces())


@pytest.mark.parametrize("unreadable", [0, 1, 31, 32, 99, 1 << 62])
@pytest.mark.parametrize("batch_rows", [1, 7, 100])
def test_what_cannot_be_read_in_files_comes_from_the_broker(
    unreadable: int, batch_rows: int
) -> None:
    consumer = FilesOfConsumer(answer_rows=32)
    consumer.unreadable = unreadable
    (queue,) = consumer.broker
    consumer.broker[queue].put(*(telemetry(n) for n in range(100)))
    assert read(consumer, 0, 100, batch_rows=batch_rows) == list(range(100))
    assert consumer.unreadable in (-1, 1 << 62)
