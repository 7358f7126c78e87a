"""What do the parsers of payloads cost a row, beside a library for the format and Python columns?

Each is asked for the same Arrow columns of the same payloads, in turn, in one process: three fields
of five in JSON and MessagePack, five metrics of ten columns in Sparkplug B. The libraries' side
does less: it finds no field twice, bounds nothing and gives fewer columns of Sparkplug B.

Usage: python -m tests.bench.bench_payloads [--rows N] [--rounds N]. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from motelog.spark.payload_columns import PayloadColumns
from motelog.spark.payload_fields import Field, Kind, PayloadFormat, numbered
from motelog.spark.sparkplug_fields import SPARKPLUG_FIELDS
from tests.bench.report import machine
from tests.support.payloads import payload_column
from tests.support.sparkplug_payloads import sparkplug_messages

FIELDS = (Field("value", Kind.DOUBLE), Field("unit", Kind.STRING), Field("ts", Kind.TIMESTAMP))
METRICS = 5
TIME_MS = 1_795_230_000_000


class Reading(msgspec.Struct, gc=False):
    """FIELDS as msgspec knows them."""

    value: float | None = None
    unit: str | None = None
    ts: int | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    readings = [
        {"value": 20 + i / 8, "unit": "C", "ts": TIME_MS + i, "seq": i, "firmware": "1.2.3"}
        for i in range(arguments.rows)
    ]
    messages = [sparkplug(i) for i in range(arguments.rows)]
    in_json = [json.dumps(reading).encode() for reading in readings]
    in_msgpack = [msgspec.msgpack.encode(reading) for reading in readings]
    measured: dict[str, Callable[[], object]] = {
        "json": compiled("json", FIELDS, in_json),
        "json by msgspec": lambda: by_msgspec(msgspec.json.Decoder(Reading), in_json),
        "msgpack": compiled("msgpack", FIELDS, in_msgpack),
        "msgpack by msgspec": lambda: by_msgspec(msgspec.msgpack.Decoder(Reading), in_msgpack),
        "sparkplug": compiled("sparkplug", SPARKPLUG_FIELDS, messages),
        "sparkplug by protobuf": lambda: by_protobuf(messages),
    }
    costs: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(arguments.rounds):
        for name, run in measured.items():
            begin_s = time.process_time()
            run()
            costs[name].append((time.process_time() - begin_s) / arguments.rows * 1e6)
    report = {
        "question": "parsers of payloads beside libraries",
        "machine": machine(),
        "rows": arguments.rows,
        "cpu_us_per_row": {name: round(statistics.median(runs), 3) for name, runs in costs.items()},
    }
    print(json.dumps(report, indent=2))  # noqa: T201  # the result
    return 0


def compiled(
    payload_format: PayloadFormat, fields: Sequence[Field], payloads: list[bytes]
) -> Callable[[], object]:
    columns = PayloadColumns(payload_format, numbered(fields))
    column = payload_column(payloads)

    def run() -> object:
        columns.parse(column, 0, len(payloads))
        return columns.take()

    return run


def by_msgspec(decoder: Any, payloads: list[bytes]) -> list[Any]:
    values, units, times = [], [], []
    for payload in payloads:
        try:
            reading = decoder.decode(payload)
        except msgspec.DecodeError:
            continue
        values.append(reading.value)
        units.append(reading.unit)
        times.append(reading.ts)
    return [
        pa.array(values, pa.float64()),
        pa.array(units, pa.string()),
        pa.array(times, pa.timestamp("ms")),
    ]


def by_protobuf(payloads: list[bytes]) -> list[Any]:
    """Return name, alias, time, datatype and value of every metric, flat."""
    payload_class, _ = sparkplug_messages()
    columns: list[list[Any]] = [[], [], [], [], []]
    names, aliases, times, datatypes, values = columns
    for payload in payloads:
        for metric in payload_class.FromString(payload).metrics:
            names.append(metric.name if metric.HasField("name") else None)
            aliases.append(metric.alias if metric.HasField("alias") else None)
            times.append(metric.timestamp)
            datatypes.append(metric.datatype)
            is_double = metric.WhichOneof("value") == "double_value"
            values.append(metric.double_value if is_double else None)
    return [pa.array(column) for column in columns]


def sparkplug(number: int) -> bytes:
    metrics = [
        {
            "name": f"Tank/Level {i}",
            "alias": i,
            "timestamp": TIME_MS,
            "datatype": 10,
            "double_value": number / 7,
        }
        for i in range(METRICS)
    ]
    payload = sparkplug_messages()[0](timestamp=TIME_MS, seq=number % 256, metrics=metrics)
    return bytes(payload.SerializeToString())


if __name__ == "__main__":
    raise SystemExit(main())
