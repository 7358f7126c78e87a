"""Reports, on progress that a run of telemetry-lake has recorded and on events made up."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from motelog.spark.report import NoRecordError, Report, read_report, report_of
from motelog.spark.report_page import POINTS_MAX, page, thinned

RECORDED = Path(__file__).resolve().parents[2] / "vectors/spark/progress.jsonl"
EVENT: dict[str, Any] = {
    "runId": "r",
    "name": "lake",
    "timestamp": "2026-11-23T07:00:00.000Z",
    "batchId": 0,
    "numInputRows": 30,
    "durationMs": {"triggerExecution": 1500},
    "sources": [
        {
            "endOffset": {"T": {"a/0": 20, "a/1": 10}},
            "latestOffset": {"T": {"a/0": 25, "a/1": 10, "a/2": 4}},
        }
    ],
    "observedMetrics": {
        "motelog": {
            "devices": 3,
            "busiest": [{"item": "d<1>", "count": 20}, {"item": None, "count": 5}],
            "oldest": "2026-11-23T06:59:58.000Z",
        }
    },
}


def report(*events: dict[str, Any]) -> Report:
    return report_of([json.dumps(event).encode() for event in events], "test")


def test_a_recorded_run() -> None:
    found = read_report(RECORDED).as_json()
    events = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    rows = [event["numInputRows"] for event in events]
    assert (found["job"], found["topics"], found["runs"]) == ("telemetry-lake", ["telemetry"], 1)
    assert (found["batches"], found["messages"]) == (len(rows), sum(rows))
    end = events[-1]["sources"][0]["endOffset"]["telemetry"]
    assert found["messages"] == sum(end.values()), "every message of the log is in a batch"
    assert found["lag"] == {"last": rows[-1], "max": max(rows)}, "no batch left any"
    assert found["busiest"][0]["device"] == "dev0"
    assert 0 < found["delay_s"]["p50"] <= found["delay_s"]["max"] < 60
    assert found["devices"] == 49


def test_lag_delay_and_rate_of_a_batch() -> None:
    found = report(EVENT)
    (batch,) = found.batches
    assert (batch.messages_per_s, batch.lag, batch.delay_s) == (20, 30 + 5 + 4, 3.5)
    assert found.busiest() == [("d<1>", 20)], "messages without a device are no device"


def test_what_is_not_known_is_left_out() -> None:
    bare = {**EVENT, "sources": [{"endOffset": None}], "observedMetrics": {}, "name": None}
    found = report(bare)
    numbers = found.as_json()
    assert (numbers["lag"], numbers["delay_s"], numbers["devices"]) == (None, None, 0)
    assert numbers["job"] == "a query without a name"
    assert "<h2>Lag" not in page(found)
    assert "Busiest" not in page(found)


def test_a_batch_that_was_repeated_counts_once_and_torn_lines_are_counted() -> None:
    again = {**EVENT, "runId": "r2", "numInputRows": 31}
    later = {**EVENT, "runId": "r2", "batchId": 1}
    lines = [json.dumps(one).encode() for one in (EVENT, again, later)]
    found = report_of([lines[0], lines[1][:40], b"7", b"", *lines[1:]], "test").as_json()
    assert (found["batches"], found["messages"], found["damaged_lines"]) == (2, 61, 2)


def test_a_folder_has_the_older_file_too(tmp_path: Path) -> None:
    first, *others = RECORDED.read_bytes().splitlines(keepends=True)
    (tmp_path / "progress.jsonl.1").write_bytes(first)
    (tmp_path / "progress.jsonl").write_bytes(b"".join(others))
    assert read_report(tmp_path) == read_report(RECORDED)


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoRecordError, match=r"progress\.jsonl does not exist or is empty"):
        read_report(tmp_path)
    (tmp_path / "other").write_text("some text\n")
    with pytest.raises(NoRecordError, match="other has no progress events of Spark"):
        read_report(tmp_path / "other")


class Reader(HTMLParser):
    """The tags that are open, and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [pair for pair in attrs if pair[0] in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(read_report(RECORDED))
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.loads == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert "url(" not in text
    assert (reader.tags.count("svg"), reader.tags.count("circle")) == (4, 4 * 5)
    for number in re.findall(r'points="([^"]*)"', text):
        for x, y in (map(float, pair.split(",")) for pair in number.split()):
            assert 0 <= x <= 860
            assert 0 <= y <= 190


def test_names_of_devices_are_text() -> None:
    text = page(report(EVENT))
    assert "d&lt;1&gt;" in text
    assert "d<1>" not in text


def test_a_long_run_keeps_its_peaks() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    values = [(begin + timedelta(seconds=n), 100.0 if n == 7777 else 1.0) for n in range(10_000)]
    points = thinned(values)
    assert len(points) <= POINTS_MAX
    assert (begin + timedelta(seconds=7777), 100.0) in points
