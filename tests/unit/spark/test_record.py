"""The file of progress events: whole lines over kills, a bound, a job that goes on without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.spark.jobs.record import RECORD_NAME, ProgressRecord, older, record_path


def test_a_line_that_a_kill_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint" / RECORD_NAME
    ProgressRecord(path).add(['{"batchId": 0}', '{"batchId": 1}'])
    with path.open("a") as file:
        file.write('{"bat')
    ProgressRecord(path).add([])
    ProgressRecord(path).add(['{"batchId": 2}'])
    assert path.read_text() == '{"batchId": 0}\n{"batchId": 1}\n{"bat\n{"batchId": 2}\n'


def test_a_full_file_is_kept_and_the_one_before_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / RECORD_NAME
    for n in range(7):
        ProgressRecord(path, bytes_max=10).add([f"{n}234"])
    assert (older(path).read_text(), path.read_text()) == ("4234\n5234\n", "6234\n")


def test_a_job_goes_on_where_nothing_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    record = ProgressRecord(tmp_path / "file" / RECORD_NAME)
    record.add(["{}"])
    record.add(["{}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("motelog: the run's progress is no longer recorded: ")


def test_only_a_checkpoint_on_this_machine_has_a_record() -> None:
    assert record_path("lake-checkpoint") == Path("lake-checkpoint/progress.jsonl")
    assert record_path("file:///data/c") == Path("/data/c/progress.jsonl")
    for elsewhere in ("hdfs://host/c", "s3a://bucket/c", "hdfs:/c"):
        assert record_path(elsewhere) is None
    ProgressRecord(None).add(["{}"])
