"""How much does reading from a broker cost in Spark, against a source that has nothing to do?

Both sources give the same columns, rows, batches and partitions to Spark's noop sink, in turn, in
one session. The idle source returns one prepared Arrow batch over and over, so it shows what Spark
itself costs. CPU is that of Spark's JVM and Python workers; the broker is another process.

Usage: python -m tests.bench.bench_spark [--rows N] [--rounds N]. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from motelog.bridge.sync import SyncProducer
from motelog.core.message import MQTT_TOPIC, Message
from motelog.spark import arrow
from motelog.spark.columns import Column, schema_ddl
from motelog.spark.session import start_session
from motelog.testing import MotelogProcess

TOPIC = "bench_spark"
BATCH_ROWS = 10_000
SEND_AT_ONCE = 1000
COLUMNS = {
    "telemetry": (Column.DEVICE, Column.PAYLOAD, Column.STORE_TIME),
    "all": tuple(Column),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with MotelogProcess() as motelog:
        namesrv = "{}:{}".format(*motelog.namesrv)
        with SyncProducer(namesrv=namesrv) as producer:
            fill(producer, arguments.rows)
        session = start_session("bench_spark", master="local[2]")
        try:
            session.dataSource.register(IdleSource)
            results = {
                name: compare(session, namesrv, columns, arguments)
                for name, columns in COLUMNS.items()
            }
        finally:
            session.stop()
    report = {"question": "Spark source against an idle one", **machine(), "columns": results}
    print(json.dumps(report, indent=2))  # noqa: T201  # the result
    return 0


def fill(producer: SyncProducer, rows: int) -> None:
    """Send telemetry of 1000 devices, spread over the topic's queues."""
    for at in range(0, rows, SEND_AT_ONCE):
        messages = [
            Message(
                TOPIC,
                b'{"value": %d.5, "unit": "celsius", "ts": %d}' % (n % 100, 1_700_000_000_000 + n),
                tags=f"dev{n % 1000}",
                properties={MQTT_TOPIC: f"{TOPIC}/dev{n % 1000}/temp"},
            )
            for n in range(at, min(at + SEND_AT_ONCE, rows))
        ]
        producer.send_batch(messages)


def compare(
    session: Any, namesrv: str, columns: tuple[Column, ...], arguments: argparse.Namespace
) -> dict[str, Any]:
    motelog = (
        session.read.format("motelog").option("namesrv", namesrv).option("topic", TOPIC)
    ).option("columns", ",".join(column.label for column in columns))
    partitions = motelog.load().rdd.getNumPartitions()
    # One batch as the source gives it, for the idle source to repeat.
    sample = motelog.option("endingOffsets", "latest").load().limit(BATCH_ROWS).toArrow()
    path = os.path.join(session.conf.get("spark.local.dir", "/tmp"), f"sample-{os.getpid()}.arrow")
    write_sample(path, sample)
    idle = session.read.format("idle").options(
        path=path, rows=str(arguments.rows), partitions=str(partitions), schema=schema_ddl(columns)
    )
    measured: dict[str, list[tuple[float, float]]] = {"idle": [], "motelog": []}
    try:
        for turn in range(arguments.rounds + 1):
            for name, reader in (("idle", idle), ("motelog", motelog)):
                result = measure(session, reader)
                if turn:  # the first turn warms up
                    measured[name].append(result)
    finally:
        os.unlink(path)
    return summary(measured, arguments.rows) | {"partitions": partitions}


def summary(measured: dict[str, list[tuple[float, float]]], rows: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, runs in measured.items():
        wall_s = statistics.median(wall for wall, _ in runs)
        cpu_s = statistics.median(cpu for _, cpu in runs)
        result[name] = {
            "rows_per_s": round(rows / wall_s),
            "cpu_ns_per_row": round(cpu_s / rows * 1e9),
            "cpu_ns_per_row_all": [round(cpu / rows * 1e9) for _, cpu in runs],
        }
    ratios = [own / base for (_, own), (_, base) in zip(*reversed(measured.values()), strict=True)]
    result["cpu_ratio"] = round(statistics.median(ratios), 3)
    return result


def measure(session: Any, reader: Any) -> tuple[float, float]:
    """Return (wall seconds, CPU seconds of Spark's processes) of one read to the noop sink."""
    cpu_before = spark_cpu_s()
    begin = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    wall_s = time.perf_counter() - begin
    return wall_s, spark_cpu_s() - cpu_before


def spark_cpu_s() -> float:
    """Return the CPU seconds of the JVM that we started, and of the workers that it started."""
    seconds = 0.0
    for child in psutil.Process().children():
        if "java" in child.name():
            for process in (child, *child.children(recursive=True)):
                times = process.cpu_times()
                seconds += times.user + times.system
    return seconds


def write_sample(path: str, table: Any) -> None:
    import pyarrow as pa

    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=BATCH_ROWS)


class IdleSource(DataSource):
    """Returns one Arrow batch over and over; travels to the workers by value."""

    @classmethod
    def name(cls) -> str:
        return "idle"

    def schema(self) -> str:
        return str(self.options["schema"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return IdleReader(dict(self.options))


class IdleReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        rows, count = int(self.options["rows"]), int(self.options["partitions"])
        return [InputPartition(rows * (i + 1) // count - rows * i // count) for i in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        with pa.memory_map(self.options["path"]) as file:
            (batch,) = pa.ipc.open_file(file).read_all().to_batches()
        left = partition.value
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": commit,
        "kernel_compiled": arrow.COMPILED,
    }


if __name__ == "__main__":
    sys.exit(main())
