"""The programs in docs/spark.md do what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from tests.integration.spark.conftest import send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TEXT = (Path(__file__).resolve().parents[3] / "docs/spark.md").read_text(encoding="utf-8")


def test_the_examples_read_what_was_sent(
    spark_session: Any,
    namesrv: str,
    producer: SyncProducer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = send(producer, "spark_document", 0, 100)
    batch, stream, typed, publishers, sink = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for text in (batch, stream, typed, publishers, sink):
        text = text.replace('"telemetry"', '"spark_document"').replace("127.0.0.1:9876", namesrv)
        text = re.sub('"(readings|alerts)(?=[-"])', rf'"{tmp_path}/\1', text)
        exec(compile(text, "docs/spark.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "|  dev1|   20|" in shown
    assert "|  dev1|      48.5|" in shown
    assert re.search(r"\|( *NULL\|){4} *100\|", shown), "a native producer's"
    with SyncPullConsumer(namesrv=namesrv, group="document") as consumer:
        consumer.assign(consumer.queues("alerts"))
        alerts = consumer.poll(timeout_s=30, count_max=1000)
        while len(alerts) < len(keys) - 31:
            alerts += consumer.poll(timeout_s=30)
    assert {one.mqtt_topic for one in alerts} == {f"alerts/dev{n}/high" for n in range(5)}
    assert sorted(one.json()["value"] for one in alerts) == [float(n) for n in range(31, 100)]
    written = spark_session.read.parquet(f"{tmp_path}/readings").collect()
    assert sorted(row["value"] for row in written) == [float(n) for n in range(len(keys))]
