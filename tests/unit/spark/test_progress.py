"""What a running query tells of its batches."""

from __future__ import annotations

import pytest

from motelog.spark.jobs.progress import Progress


def batch(number: int, rows: int) -> dict[str, object]:
    return {"batchId": number, "numInputRows": rows, "processedRowsPerSecond": rows / 2}


def test_each_batch_that_has_read_anything_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("job", "T")
    batches = [batch(0, 3000), batch(1, 0), batch(2, 10)]
    for recent in ([], batches[:1], batches[:1], batches[:2], batches, batches):
        progress.tell(recent, reads=False)
    assert capsys.readouterr().err.splitlines() == [
        "job: batch 0: 3,000 messages at 1,500 /s, 3,000 so far",
        "job: batch 2: 10 messages at 5 /s, 3,010 so far",
    ]


def test_it_tells_that_it_runs_and_once_that_there_is_nothing_to_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress("job", "T")
    progress.begin()
    for _ in range(9):
        progress.tell([], reads=False)
    assert capsys.readouterr().err == "job: reads the topic 'T'; Ctrl-C stops it\n"
    for _ in range(30):
        progress.tell([batch(0, 0)], reads=False)
    text = "job: waits: 'T' has no new messages, or does not exist yet\n"
    assert capsys.readouterr().err == text


def test_a_first_batch_that_takes_long_is_not_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("job", "T")
    for _ in range(30):
        progress.tell([], reads=True)
    assert capsys.readouterr().err == ""
    for _ in range(10):
        progress.tell([], reads=False)
    assert "waits" in capsys.readouterr().err


def test_a_batch_that_another_follows_at_once_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("job", "T").tell([batch(0, 6), batch(1, 0)], reads=False)
    assert capsys.readouterr().err == "job: batch 0: 6 messages at 3 /s, 6 so far\n"
