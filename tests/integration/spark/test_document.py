"""The programs in docs/spark.md do what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
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
    batch, stream = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for text in (batch, stream):
        text = text.replace('"telemetry"', '"spark_document"').replace("127.0.0.1:9876", namesrv)
        text = text.replace('"readings', f'"{tmp_path}/readings')
        exec(compile(text, "docs/spark.md", "exec"), {})
    assert "|  dev1|   20|" in capsys.readouterr().out
    written = spark_session.read.parquet(f"{tmp_path}/readings").collect()
    assert sorted(row["value"] for row in written) == [float(n) for n in range(len(keys))]
