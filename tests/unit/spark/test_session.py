"""What is told where Spark does not start."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the [spark] extra")

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from motelog.spark import session as sessions
from motelog.spark.errors import SourceError


def test_a_master_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> Any:
        raise PySparkRuntimeError("Java gateway process exited\nbefore sending its port number")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fails)
    monkeypatch.setattr(sessions, "has_java", lambda: True)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "python")
    with pytest.raises(SourceError) as caught:
        sessions.start_session("x", master="spark://nowhere:1")
    assert str(caught.value) == (
        "Spark does not start with master 'spark://nowhere:1': Java gateway process exited"
    )
