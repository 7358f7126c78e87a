"""The summary of a load run."""

from __future__ import annotations

from motelog.loadtest.report import Row, machine, row_of, summary


class FakeEntry:
    def __init__(self, name: str, requests: int) -> None:
        self.name = name
        self.num_requests = requests
        self.num_failures = 1
        self.total_rps = 12.34

    def get_response_time_percentile(self, percent: float) -> float:
        return percent * 100


def test_row_takes_its_figures_from_the_entry() -> None:
    assert row_of(FakeEntry("connect", 5)) == Row("connect", 5, 1, 12.34, 50.0, 95.0, 99.0)
    assert row_of(FakeEntry("connect", 0)).p99_ms == 0.0


def test_summary_says_where_it_was_measured_and_aligns_its_columns() -> None:
    rows = [Row("publish:1:telemetry/{device}/temp", 7, 0, 1, 2, 3, 4), Row("connect", *[1] * 6)]
    first, head, *lines = summary(rows).splitlines()
    assert first == machine()
    assert "commit" in first
    assert "Python" in first
    assert [line.split()[0] for line in lines] == ["connect", "publish:1:telemetry/{device}/temp"]
    assert {len(line) for line in lines} == {len(head)}
