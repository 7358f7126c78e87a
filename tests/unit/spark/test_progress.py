"""What a running query tells of its batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from motelog.spark.jobs.progress import Progress


class Event(dict[str, Any]):
    """As pyspark has them."""

    @property
    def json(self) -> str:
        return json.dumps(self)


def batch(number: int, rows: int, *, left: int | None = None, oldest: str | None = None) -> Event:
    """Return an event of a batch that took two seconds and left so many messages."""
    event = Event(
        runId="r",
        batchId=number,
        timestamp="2026-11-23T07:00:10.000Z",
        durationMs={"triggerExecution": 2000},
        numInputRows=rows,
        sources=[],
    )
    if left is not None:
        begin, end = {"T": {"b/0": 100}}, {"T": {"b/0": 100 + left}}
        event["sources"] = [{"endOffset": begin, "latestOffset": end}]
    if oldest is not None:
        event["observedMetrics"] = {"motelog": {"oldest": oldest}}
    return event


def test_each_batch_that_has_read_anything_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("job", "T")
    batches = [batch(0, 3000), batch(1, 0), batch(2, 10)]
    for recent in ([], batches[:1], batches[:1], batches[:2], batches, batches):
        progress.tell(recent, reads=False)
    assert capsys.readouterr().err.splitlines() == [
        "job: batch 0: 3,000 messages at 1,500 /s, 3,000 so far",
        "job: batch 2: 10 messages at 5 /s, 3,010 so far",
    ]


def test_it_tells_how_far_it_is_behind(capsys: pytest.CaptureFixture[str]) -> None:
    oldest = "2026-11-23 07:00:09.5"
    batches = [batch(0, 6, left=1200, oldest=oldest), batch(1, 6, left=0, oldest=oldest)]
    Progress("job", "T").tell(batches, reads=False)
    assert capsys.readouterr().err.splitlines() == [
        "job: batch 0: 6 messages at 3 /s, 6 so far; 1,200 more are waiting; 2.5 s behind",
        "job: batch 1: 6 messages at 3 /s, 12 so far; 2.5 s behind",
    ]


def test_it_tells_that_it_runs_and_once_that_there_is_nothing_to_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress("job", "T")
    progress.begin()
    for _ in range(9):
        progress.tell([], reads=False)
    assert capsys.readouterr().err == "job: reading topic 'T'; Ctrl-C stops it\n"
    for _ in range(30):
        progress.tell([batch(0, 0)], reads=False)
    text = "job: waiting: 'T' has no new messages, or does not exist yet\n"
    assert capsys.readouterr().err == text


def test_a_first_batch_that_takes_long_is_not_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("job", "T")
    for _ in range(30):
        progress.tell([], reads=True)
    assert capsys.readouterr().err == ""
    for _ in range(10):
        progress.tell([], reads=False)
    assert "waiting" in capsys.readouterr().err


def test_a_batch_that_another_follows_at_once_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("job", "T").tell([batch(0, 6), batch(1, 0)], reads=False)
    assert capsys.readouterr().err == "job: batch 0: 6 messages at 3 /s, 6 so far\n"
