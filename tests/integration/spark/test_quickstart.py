"""The Spark program of docs/quickstart.md, in the session of the other Spark tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message

QUICKSTART = Path(__file__).resolve().parents[3] / "docs" / "quickstart.md"


def test_quickstart_shows_a_table(
    spark_session: Any, namesrv: str, producer: SyncProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    for body in (b"21.5", b"22.5", b"no number"):
        producer.send(Message("telemetry", body, tags="quickstart"))
    blocks = re.findall(r"```python\n(.*?)```", QUICKSTART.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = (block for block in blocks if "motelog.spark" in block)
    exec(program.replace("127.0.0.1:9876", namesrv), {})
    assert re.search(r"\|quickstart\|.*\b3\b.*\|", table := capsys.readouterr().out), table
    assert re.search(r"\|quickstart\|.*\b22\.0\b", table), table
