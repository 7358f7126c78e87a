"""``motelog demo``: agrees on a good run, and says so when something is lost."""

from __future__ import annotations

import json

import pytest

from motelog.cli.demo_run import DemoReport
from motelog.cli.tools import find_java, has_pyspark
from tests.support.cli import motelog


def test_short_demo_without_spark_agrees() -> None:
    result = motelog("demo", "--devices=10", "--seconds=1", "--no-spark", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["agrees"] is True
    counts = {step["name"]: step["messages"] for step in report["steps"]}
    assert counts["sent"] > 0
    assert set(counts.values()) == {counts["sent"]}
    assert set(counts) == {"sent", "acknowledged", "stored", "native consumer"}
    assert {step["devices"] for step in report["steps"]} == {10}


@pytest.mark.spark
@pytest.mark.skipif(
    not (has_pyspark() and find_java()), reason="needs Java 17 and the [spark] extra"
)
def test_short_demo_with_spark_agrees() -> None:
    result = motelog("demo", "--devices=5", "--seconds=1", within_s=230)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Spark rows" in result.stdout
    assert "No message was lost" in result.stdout


def test_lost_doubled_and_changed_messages_show() -> None:
    sent = {"a": (2, 30), "b": (1, 5), "c": (1, 6), "d": (1, 7)}
    report = DemoReport()
    report.add("sent", sent, sent)
    assert report.agrees
    report.add("read", {"a": (1, 10), "b": (2, 10), "c": (1, 60), "d": (1, 7), "e": (1, 1)}, sent)
    assert not report.agrees
    assert report.steps[-1].verdict == "4 devices differ"
    assert report.differences == [
        "read: a: 1 messages, checksum a, sent 2 messages, checksum 1e",
        "read: b: 2 messages, checksum a, sent 1 messages, checksum 5",
        "read: c: 1 messages, checksum 3c, sent 1 messages, checksum 6",
        "read: e: 1 messages, checksum 1, sent nothing",
    ]


def test_count_that_differs_shows() -> None:
    report = DemoReport()
    report.add_count("stored", 9, 1, 10)
    assert not report.agrees
    assert report.differences == ["stored: 9, sent 10"]
