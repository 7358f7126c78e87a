"""What do typed payloads cost beside ``from_json``, per CPU-second of Spark's JVM and workers?

Three queries over the same messages in one session, in turn, to Spark's noop sink: the payload as
bytes, its fields by option ``payloadFormat``, its fields by ``from_json``. What a query costs
beyond the first is the parsing (and what typed rows cost Spark more, or less, than bytes).

Usage: python -m tests.bench.bench_typed [--rows N] [--rounds N]. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from motelog.bridge.sync import SyncProducer
from motelog.spark.session import start_session
from motelog.testing import MotelogProcess
from tests.bench.bench_spark import TOPIC, fill, machine, measure

FIELDS = "value double, unit string, ts timestamp"
#: What the payload has in ``ts`` is milliseconds; from_json takes seconds, so it reads a number.
FIELDS_OF_SPARK = "value double, unit string, ts bigint"


class Query:
    """A frame where ``measure`` expects a reader."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def load(self) -> Any:
        return self._frame


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with MotelogProcess() as motelog:
        namesrv = "{}:{}".format(*motelog.namesrv)
        with SyncProducer(namesrv=namesrv) as producer:
            fill(producer, arguments.rows)
        session = start_session("bench_typed", master="local[2]")
        try:
            costs = compare(session, namesrv, arguments)
        finally:
            session.stop()
    parsing = {name: costs[name] - costs["bytes"] for name in ("typed", "from_json")}
    report = {
        "question": "typed payloads beside from_json",
        **machine(),
        "rows": arguments.rows,
        "cpu_ns_per_row": costs,
        "parsing_ns_per_row": parsing,
        # Typed columns may be cheaper than the bytes themselves: then there is no ratio.
        "from_json_to_typed": (
            round(parsing["from_json"] / parsing["typed"], 1) if parsing["typed"] > 0 else None
        ),
    }
    print(json.dumps(report, indent=2))  # noqa: T201  # the result
    return 0


def compare(session: Any, namesrv: str, arguments: argparse.Namespace) -> dict[str, int]:
    def reader(columns: str) -> Any:
        source = session.read.format("motelog").option("namesrv", namesrv)
        return source.option("topic", TOPIC).option("columns", columns)

    typed = reader("device").option("payloadFormat", "json").option("payloadSchema", FIELDS)
    in_spark = f"from_json(string(payload), '{FIELDS_OF_SPARK}') AS v"
    queries = {
        "bytes": reader("device,payload").load(),
        "typed": typed.load(),
        "from_json": reader("device,payload").load().selectExpr("device", in_spark, "payload")
        .selectExpr("device", "v.*", "if(v.value is null, payload, null) AS _payload"),
    }  # fmt: skip
    measured: dict[str, list[float]] = {name: [] for name in queries}
    for turn in range(arguments.rounds + 1):
        for name, frame in queries.items():
            _, cpu_s = measure(session, Query(frame))
            if turn:  # the first turn warms up
                measured[name].append(cpu_s)
    return {
        name: round(statistics.median(runs) / arguments.rows * 1e9)
        for name, runs in measured.items()
    }


if __name__ == "__main__":
    sys.exit(main())
