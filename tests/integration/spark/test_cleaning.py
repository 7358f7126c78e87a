"""Old files are removed while a range is read: what is left comes once, and the loss is exact."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from motelog.bridge import queue_puller
from motelog.bridge.sync import SyncPullConsumer
from motelog.core.message import MessageQueue
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.config import StoreConfig
from motelog.spark.columns import Column
from motelog.spark.errors import DataLossError
from motelog.spark.offsets import OffsetRange
from motelog.spark.options import SourceOptions
from motelog.spark.reading import read_range
from tests.support.broker_stack import started_stack
from tests.support.stores import message

COUNT = 600
QUEUE = MessageQueue("cleaned", "broker-a", 0)
STORE = {
    "commitlog_file_bytes": 16_384,
    # Any disk is fuller than that: a round removes all files but the newest.
    "cleanup_oldest_percent": 1,
    "disk_used_percent_max": 100,
    "cleanup_interval_ms": 3_600_000,
    "cleanup_pause_ms": 1,
}


@pytest.mark.parametrize("mapped_log", [True, False])
async def test_what_cleaning_takes_from_a_range_is_told(
    tmp_path: Path, mapped_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_puller, "COUNT_MIN", 1)
    store_config = StoreConfig(directory=str(tmp_path), **STORE)  # type: ignore[arg-type]  # by key
    async with started_stack(tmp_path, store=store_config) as stack:
        store = stack.broker.parts.store
        topic = TopicConfig(topic_name=QUEUE.topic, read_queue_nums=1, write_queue_nums=1)
        stack.broker.tables.topics.put(topic, 0)
        for number in range(COUNT):
            store.append([message(store.queue_tail(QUEUE.topic, 0), b"%d" % number * 30)])
        assert len(store._log.queue.files) > 4
        consumer = SyncPullConsumer(namesrv=stack.namesrv_address, group="cleaned")
        await trio.to_thread.run_sync(consumer.__enter__)
        try:
            strict, lenient = (
                _batches(consumer, mapped_log=mapped_log, fail_on_data_loss=fails)
                for fails in (True, False)
            )
            rows: dict[Iterator[Any], list[int]] = {strict: [], lenient: []}
            for batches, read in rows.items():
                await _rows(batches, 6, read)
            assert await store.cleaner.clean() > 2
            left_from = store.reader.min_offset(QUEUE.topic, 0)
            assert len(rows[strict]) < left_from < COUNT
            with pytest.raises(DataLossError) as caught:
                await _rows(strict, COUNT, rows[strict])
            await _rows(lenient, COUNT, rows[lenient])
        finally:
            await trio.to_thread.run_sync(consumer.close)
    kept = rows[strict]
    # What was decoded and not yet handed out goes with the task.
    lost = caught.value
    assert lost.offset_end == left_from
    assert kept == list(range(len(kept)))
    assert len(kept) <= lost.offset_begin <= len(kept) + 10
    begun = [offset for offset in rows[lenient] if offset < left_from]
    assert begun == list(range(len(begun)))
    assert rows[lenient][len(begun) :] == list(range(left_from, COUNT))


def _batches(consumer: SyncPullConsumer, **options: Any) -> Iterator[Any]:
    chosen = SourceOptions(topic=(QUEUE.topic,), batch_rows=10, pull_records=10, **options)
    columns = (Column.QUEUE_OFFSET, Column.PAYLOAD)
    return read_range(consumer, OffsetRange(QUEUE, 0, COUNT), columns, chosen)


async def _rows(batches: Iterator[Any], count: int, offsets: list[int]) -> None:
    """Add the offsets of up to ``count`` batches; their bodies are what they were."""

    def read() -> None:
        for batch in itertools.islice(batches, count):
            for row in batch.to_pylist():
                assert row["payload"] == b"%d" % row["queue_offset"] * 30
                offsets.append(row["queue_offset"])

    await trio.to_thread.run_sync(read)
