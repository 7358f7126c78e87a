"""How much does reading from a broker cost in Spark, beside an idle source?

All sources give the same columns, rows, batches and partitions to Spark's noop sink, in turn, in
one session. The idle source returns one prepared Arrow batch over and over, so it shows the cost of
Spark itself. ``pulled`` receives all records, ``motelog`` reads them in the broker's files. With
``--kafka``, Spark's Kafka source reads the same keys and payloads from a Kafka broker, in as many
partitions: key, value and timestamp beside three columns, all of its seven beside all of ours.
CPU is that of Spark's JVM and Python workers; ``cpu_ns_per_row_with_broker`` adds the broker's.

Usage: python -m motelog.loadtest.bench.bench_spark [--rows N] [--rounds N] [--kafka]. Prints JSON,
and its progress on standard error.
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
from contextlib import ExitStack
from typing import Any

import psutil
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from motelog.bridge.sync import SyncProducer
from motelog.core.message import MQTT_TOPIC, Message
from motelog.loadtest.bench.kafka_peer import KafkaServer, NoKafkaError, session_settings
from motelog.spark.columns import Column, schema_ddl
from motelog.spark.session import start_session
from motelog.testing import MotelogProcess

TOPIC = "bench_spark"
BATCH_ROWS = 10_000
SEND_AT_ONCE = 1000
# Seconds by the clock, CPU seconds of Spark's processes, of the broker.
Measured = tuple[float, float, float]
COLUMNS = {
    "telemetry": (Column.DEVICE, Column.PAYLOAD, Column.STORE_TIME),
    "all": tuple(Column),
}
KAFKA_COLUMNS = {"telemetry": ("key", "value", "timestamp"), "all": ("*",)}
#: The same number as in our broker's topics.
KAFKA_PARTITIONS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kafka", action="store_true", help="beside Spark's Kafka source")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        motelog = stack.enter_context(MotelogProcess())
        kafka = start_kafka(stack) if arguments.kafka else None
        tell(f"sending {arguments.rows} messages")
        with SyncProducer(namesrv="{}:{}".format(*motelog.namesrv)) as producer:
            fill(producer, arguments.rows)
        session = start_session(
            "bench_spark", master="local[2]", conf=session_settings() if kafka else None
        )
        stack.callback(session.stop)
        session.dataSource.register(IdleSource)
        if kafka is not None:
            tell("copying them to Kafka")
            fill_kafka(session, motelog, kafka)
        results = {name: compare(session, motelog, kafka, name, arguments) for name in COLUMNS}
    report = {"question": "Spark source against an idle one", **machine(), "columns": results}
    print(json.dumps(report, indent=2))  # noqa: T201  # the result
    return 0


def start_kafka(stack: ExitStack) -> KafkaServer | None:
    """Return a running Kafka; None, and a sentence on standard error, if it is not available."""
    try:
        return stack.enter_context(KafkaServer(partitions=KAFKA_PARTITIONS))
    except NoKafkaError as exc:
        tell(f"measuring without Kafka: {exc}")
        return None


def fill_kafka(session: Any, motelog: MotelogProcess, kafka: KafkaServer) -> None:
    """Send the content of our topic to Kafka's: the device as key, the payload as value."""
    source = session.read.format("motelog").option("columns", "device,payload")
    source = source.option("topic", TOPIC).option("namesrv", "{}:{}".format(*motelog.namesrv))
    frame = source.load().selectExpr("device AS key", "payload AS value")
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    writer.option("topic", TOPIC).save()


class KafkaReader:
    """Reads the columns that Kafka has in place of ours; loads like one of Spark's readers."""

    def __init__(self, session: Any, kafka: KafkaServer, columns: str) -> None:
        self._reader = session.read.format("kafka").options(
            **{"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC}
        )
        self._columns = columns

    def load(self) -> Any:
        return self._reader.load().selectExpr(*KAFKA_COLUMNS[self._columns])


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
    session: Any,
    stack: MotelogProcess,
    kafka: KafkaServer | None,
    name: str,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    columns = COLUMNS[name]
    pulled, mapped = (
        session.read.format("motelog").options(
            namesrv="{}:{}".format(*stack.namesrv),
            topic=TOPIC,
            columns=",".join(column.label for column in columns),
            mappedLog=str(mapped_log),
        )
        for mapped_log in (False, True)
    )
    partitions = mapped.load().rdd.getNumPartitions()
    # One batch as the source gives it, for the idle source to repeat.
    sample = mapped.load().limit(BATCH_ROWS).toArrow()
    path = os.path.join(session.conf.get("spark.local.dir", "/tmp"), f"sample-{os.getpid()}.arrow")
    write_sample(path, sample)
    idle = session.read.format("idle").options(
        path=path, rows=str(arguments.rows), partitions=str(partitions), schema=schema_ddl(columns)
    )
    readers = {"idle": idle, "pulled": pulled, "motelog": mapped}
    brokers = dict.fromkeys(readers, psutil.Process(stack.pid))
    if kafka is not None:
        readers["kafka"] = KafkaReader(session, kafka, name)
        brokers["kafka"] = psutil.Process(kafka.pid)
    measured: dict[str, list[Measured]] = {source: [] for source in readers}
    try:
        for turn in range(arguments.rounds + 1):
            for source, reader in readers.items():
                broker_before = cpu_s(brokers[source])
                wall_s, spark_s = measure(session, reader)
                broker_s = cpu_s(brokers[source]) - broker_before
                tell(f"{name} {turn} {source}: {wall_s:.1f} s, CPU {spark_s:.2f} + {broker_s:.2f}")
                if turn:  # the first turn warms up
                    measured[source].append((wall_s, spark_s, broker_s))
    finally:
        os.unlink(path)
    return summary(measured, arguments.rows) | {"partitions": partitions}


def summary(measured: dict[str, list[Measured]], rows: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, runs in measured.items():
        wall_s = statistics.median(wall for wall, _, _ in runs)
        spark_s = statistics.median(spark for _, spark, _ in runs)
        all_s = statistics.median(spark + broker for _, spark, broker in runs)
        result[name] = {
            "rows_per_s": round(rows / wall_s),
            "cpu_ns_per_row": round(spark_s / rows * 1e9),
            "cpu_ns_per_row_with_broker": round(all_s / rows * 1e9),
            "cpu_ns_per_row_all": [round(spark / rows * 1e9) for _, spark, _ in runs],
        }
    result["cpu_ratio"] = _ratio(measured["motelog"], measured["idle"])
    result["cpu_ratio_pulled"] = _ratio(measured["pulled"], measured["idle"])
    result["pulled_to_mapped_with_broker"] = _ratio(
        measured["pulled"], measured["motelog"], with_broker=True
    )
    if "kafka" in measured:
        for name in ("pulled", "motelog"):
            ratio = _ratio(measured[name], measured["kafka"], with_broker=True)
            result[f"{name}_to_kafka_with_broker"] = ratio
    return result


def _ratio(own: list[Measured], base: list[Measured], *, with_broker: bool = False) -> float:
    """Return the median of the turns' ratios."""

    def counted(one: Measured) -> float:
        _, spark_s, broker_s = one
        return spark_s + broker_s if with_broker else spark_s

    ratios = [counted(a) / counted(b) for a, b in zip(own, base, strict=True)]
    return round(statistics.median(ratios), 3)


def measure(session: Any, reader: Any) -> tuple[float, float]:
    """Return (wall seconds, CPU seconds of Spark's processes) of one read to the noop sink."""
    cpu_before = spark_cpu_s(session)
    begin = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    wall_s = time.perf_counter() - begin
    return wall_s, spark_cpu_s(session) - cpu_before


def spark_cpu_s(session: Any) -> float:
    """Return the CPU seconds of Spark's JVM, and of the workers that it started."""
    jvm = spark_jvm(session)
    return sum(map(cpu_s, (jvm, *jvm.children(recursive=True))))


def spark_jvm(session: Any) -> psutil.Process:
    """Return the JVM of a session, which need not be the only one that we started."""
    return psutil.Process(session.sparkContext._gateway.proc.pid)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


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


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # progress


def machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": commit,
    }


if __name__ == "__main__":
    sys.exit(main())
