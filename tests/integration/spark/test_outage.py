"""Reading a range while its broker goes away and comes back: a real stack, every row once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.message import Message
from motelog.spark.columns import Column
from motelog.spark.offsets import OffsetRange
from motelog.spark.options import SourceOptions
from motelog.spark.reading import read_range
from motelog.testing import MotelogProcess


def test_a_broker_killed_and_started_again_costs_no_row(tmp_path: Path) -> None:
    first = MotelogProcess(data=tmp_path / "data")
    first.start()
    try:
        addresses = [
            f"--{name}={'{}:{}'.format(*getattr(first, name))}" for name in ("namesrv", "broker")
        ]
        namesrv = addresses[0].partition("=")[2]
        with SyncProducer(namesrv=namesrv) as producer:
            queue = producer.send(Message("outage", b"0")).queue
            for at in range(1, 401, 40):
                messages = [Message("outage", b"%d" % n) for n in range(at, at + 40)]
                producer.send_batch(messages, queue=queue)
        options = SourceOptions(topic=("outage",), namesrv=namesrv, batch_rows=20, pull_records=20)
        with SyncPullConsumer(namesrv=namesrv, group="outage") as consumer:
            columns = (Column.QUEUE_OFFSET, Column.PAYLOAD)
            batches = read_range(consumer, OffsetRange(queue, 0, 401), columns, options)
            rows = next(batches).to_pylist()
            first.kill()
            with MotelogProcess(data=tmp_path / "data", options=addresses):
                rows += [row for batch in batches for row in batch.to_pylist()]
    finally:
        first.stop()
    assert [row["queue_offset"] for row in rows] == list(range(401))
    assert [row["payload"] for row in rows] == [b"%d" % n for n in range(401)]
