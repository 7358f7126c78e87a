"""Reading a range while its broker goes away and comes back: a real stack, every row once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from motelog.bridge import queue_puller
from motelog.bridge.mapped_log import MappedLog
from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.message import Message
from motelog.core.reader_key import read_key
from motelog.spark.columns import Column
from motelog.spark.offsets import OffsetRange
from motelog.spark.options import SourceOptions
from motelog.spark.reading import read_range
from motelog.testing import MotelogProcess


@pytest.mark.parametrize("mapped_log", [True, False])
def test_a_broker_killed_and_started_again_costs_no_row(
    tmp_path: Path, mapped_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str | None] = []
    pieces = MappedLog.pieces

    def noted(log: MappedLog, *units: Any, **how: Any) -> Iterator[bytes]:
        for piece in pieces(log, *units, **how):
            keys.append(log.key)
            yield piece

    monkeypatch.setattr(MappedLog, "pieces", noted)
    monkeypatch.setattr(queue_puller, "COUNT_MIN", 1)
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
        options = SourceOptions(
            topic=("outage",),
            namesrv=namesrv,
            batch_rows=20,
            pull_records=20,
            mapped_log=mapped_log,
        )
        (folder,) = {path.parent for path in (tmp_path / "data").rglob("commitlog")}
        with SyncPullConsumer(namesrv=namesrv, group="outage") as consumer:
            columns = (Column.QUEUE_OFFSET, Column.PAYLOAD)
            batches = read_range(consumer, OffsetRange(queue, 0, 401), columns, options)
            # More than the pulls that are under way before the key is known.
            rows = [row for _ in range(5) for row in next(batches).to_pylist()]
            wanted = [read_key(str(folder))]
            first.kill()
            with MotelogProcess(data=tmp_path / "data", options=addresses):
                rows += [row for batch in batches for row in batch.to_pylist()]
                wanted.append(read_key(str(folder)))
    finally:
        first.stop()
    assert [row["queue_offset"] for row in rows] == list(range(401))
    assert [row["payload"] for row in rows] == [b"%d" % n for n in range(401)]
    assert list(dict.fromkeys(keys)) == (wanted if mapped_log else [])
