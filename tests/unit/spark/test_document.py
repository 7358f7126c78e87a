"""docs/spark names every option, column and job option, with the defaults that the code has."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from motelog.spark.columns import COLUMN_TYPES, Column
from motelog.spark.jobs.job_options import defaults, job_parser
from motelog.spark.options import SourceOptions, parse_options
from motelog.spark.run import JOBS, parser
from motelog.spark.sink.options import COLUMNS, OWN_OPTIONS, SHARED_OPTIONS

FOLDER = Path(__file__).resolve().parents[3] / "docs/spark"


def section(page: str, heading: str) -> str:
    text = (FOLDER / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table(page: str, heading: str) -> dict[str, str]:
    """Return first cell -> second cell of the tables in a section, marks removed."""
    rows = re.findall(r"^\| `([^|]+)` \|([^|]*)\|", section(page, heading), re.MULTILINE)
    return {name: value.strip().strip("`") for name, value in rows}


def test_every_option_is_listed_with_its_default() -> None:
    listed = table("operating.md", "Options")
    shown = {
        "columns": "the first ten",
        "topic": "",
        "maxOffsetsPerTrigger": "no limit",
        "maxBytesPerTrigger": "no limit",
        "maxRecordsPerPartition": "no limit",
        "pushFilters": "false",
        "failOnDataLoss": "true",
        "failOnMissingTopic": "true",
        "mappedLog": "true",
    }
    for field in fields(SourceOptions):
        first, *rest = field.name.split("_")
        name = first + "".join(word.title() for word in rest)
        default = "" if field.default is MISSING else str(field.default)
        assert listed.pop(name) == shown.get(name, default)
    assert listed == {}


def test_every_column_is_listed_with_its_type() -> None:
    assert table("reading.md", "Columns") == {
        column.label: COLUMN_TYPES[column] for column in Column
    }


def test_the_offsets_shown_can_be_used() -> None:
    (offsets,) = re.findall(
        r"```json\n(.*?)```", section("operating.md", "Offsets and checkpoints"), re.DOTALL
    )
    parse_options({"topic": "telemetry", "startingOffsets": offsets})


def shown(defaults: dict[str, Any]) -> dict[str, str]:
    return {name: str(default or "") for name, default in defaults.items()}


def test_the_jobs_options_are_listed_with_their_defaults() -> None:
    common = defaults(job_parser("", ""))
    assert table("jobs.md", "Common options") == shown(common)
    for name in JOBS:
        own = {k: v for k, v in defaults(parser(name)).items() if k not in common}
        listed = table("jobs.md", f"The job {name}").items()
        assert {k: v for k, v in listed if k.startswith("--")} == shown(own)


def test_every_column_and_option_of_the_sink_is_listed() -> None:
    text = section("writing.md", "Columns and options")
    columns, options = text.split("| option | default | meaning |")
    cells = {name for row in columns.splitlines() for name in re.findall("`([a-z_]+)`", row[:40])}
    assert set(COLUMNS) <= cells
    listed = re.findall(r"^\|([^|]+)\|", options, re.MULTILINE)
    named = {name for cell in listed for name in re.findall("`([A-Za-z]+)`", cell)}
    assert named == {*SHARED_OPTIONS.values(), *OWN_OPTIONS.values()}
