"""Every figure of the store beside its bare floor, in one run.

Owns: which cases there are, the table as Markdown and JSON. Must not touch: the measuring (one
module a case).
Question: how near is each path of the store to the least cost of the same bytes on this machine?

    python -m motelog.loadtest.bench.store [--case NAME ...] [--rounds 3] [--quick]
        [--folder DIRECTORY] [--json] [--output FILE]

Floors are measured in the same run, in turn with their figures. CPU figures are of one
processor. The run of many millions of messages is ``python -m motelog.loadtest.bench.store.soak``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from motelog.loadtest.bench.report import Row, environment, machine, markdown, note, say
from motelog.loadtest.bench.store import append, dispatch, group_commit, keys, others, read
from motelog.loadtest.bench.store.figures import Figure, Options, compiled_floor

CASES: Final[dict[str, Callable[[Options], list[Figure]]]] = {
    "append": append.run,
    "group-commit": group_commit.run,
    "dispatch": dispatch.run,
    "read": read.run,
    "keys": keys.run,
    "recovery": others.run_recovery,
    "queues": others.run_queues,
    "write-buffer": others.run_write_buffer,
}
#: Details that the JSON has and the table leaves out.
UNSHOWN: Final = frozenset(
    ("records_per_s", "bytes_per_s", "memcpy_bytes_per_cpu_s", "index_behind_bytes", "records")
)
HEAD: Final[Row] = ("figure", "here", "floor", "times the floor", "goal", "more")


def main() -> None:
    arguments = _arguments()
    facts, header = environment(), machine()
    figures: dict[str, list[Figure]] = {}
    with compiled_floor() as floor:
        options = Options(
            folder=arguments.folder,
            rounds=1 if arguments.quick else arguments.rounds,
            floor=floor,
            quick=arguments.quick,
        )
        for name in arguments.case or CASES:
            begin = time.monotonic()
            figures[name] = CASES[name](options)
            note(f"{name}: {time.monotonic() - begin:.0f} s")
    found = [figure for case in figures.values() for figure in case]
    said, lines = explanation(options.rounds), table(found)
    text = "\n".join(("# Store", "", header, "", said, "", *lines, ""))
    if arguments.json:
        cases = {name: [as_json(one) for one in case] for name, case in figures.items()}
        report = {"bench": "store", **facts, "cases": cases, "explanation": said, "table": lines}
        say(json.dumps(report))
    else:
        say(text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


def explanation(rounds: int) -> str:
    return (
        "Each figure beside its floor: the same bytes moved by the least possible code, in turn "
        f"with it, {rounds} round{'s' * (rounds > 1)}. Rates per CPU second are of one processor."
    )


def table(figures: list[Figure]) -> list[str]:
    """Return the figures as lines of Markdown."""
    return list(markdown([HEAD, *map(_row, figures)]))


def as_json(figure: Figure) -> dict[str, Any]:
    return {**asdict(figure), "ratio": figure.ratio, "is_met": figure.is_met}


def _row(figure: Figure) -> Row:
    goal = ""
    if figure.goal is not None:
        bound = "at most" if figure.less_is_better else "at least"
        said = "met" if figure.is_met else "missed"
        goal = f"{bound} {_amount(figure.goal)}: {said}"
    return (
        figure.name,
        f"{_amount(figure.value)} {figure.unit}",
        f"{_amount(figure.floor)} ({figure.floor_name})" if figure.floor is not None else "",
        f"{figure.ratio:.2f}" if figure.ratio is not None else "",
        goal,
        ", ".join(
            f"{name} {_amount(value)}"
            for name, value in figure.details.items()
            if name not in UNSHOWN and not name.startswith("floor_")
        ),
    )


def _amount(value: float) -> str:
    for least, letter in ((1e9, "G"), (1e6, "M")):
        if value >= least:
            return f"{value / least:.2f} {letter}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The store's figures, each beside its floor.")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case (default 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="the disk to measure"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
