"""What do small triggers, the way from publisher to row, and the sink cost, beside Kafka's?

``trigger``: a stream of 400 rows a trigger to Spark's noop sink; how long triggers take by Spark's
own progress, and the CPU of JVM and Python for each (the first triggers are left out).
``latency``: triggers of one second; a message carries its send time, foreachBatch collects it.
``sink``: the same rows to format("motelog"), format("kafka") and the noop sink, in turn; the last
shows the cost of making them. CPU is that of the JVM, Python workers and the broker.

Usage: python -m motelog.loadtest.bench.bench_spark_stream [--case NAME] [--rounds N] [--kafka].
Prints JSON, and its progress on standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import psutil

from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message
from motelog.loadtest.bench.bench_spark import (
    TOPIC,
    cpu_s,
    fill,
    fill_kafka,
    machine,
    spark_jvm,
    start_kafka,
    tell,
)
from motelog.loadtest.bench.kafka_peer import KafkaServer, session_settings
from motelog.spark.session import start_session
from motelog.testing import MotelogProcess

TRIGGER_ROWS = 400
#: Triggers of a round, and how many at its beginning do not count: workers start in them.
TRIGGERS, FIRST_TRIGGERS = 40, 5
LATENCY_TOPIC = "bench_latency"
#: Messages and seconds of a round, and how many seconds at its beginning do not count.
SENT_PER_S, LATENCY_S, FIRST_S = 100, 30, 8
QUERY_WITHIN_S = 300
ROW = (
    "concat('dev', id % 1000) AS device",
    """encode(concat('{"value": ', id % 100, '.5, "unit": "celsius", "ts": ',"""
    """ 1700000000000 + id, '}'), 'UTF-8') AS payload""",
)


class Peers(NamedTuple):
    """The session and the brokers; Kafka if it is available."""

    session: Any
    motelog: MotelogProcess
    kafka: KafkaServer | None

    @property
    def namesrv(self) -> str:
        return "{}:{}".format(*self.motelog.namesrv)

    def stream(self, source: str, topic: str, columns: str, **options: str) -> Any:
        """Return a streaming frame of a topic: the named columns, or Kafka's equivalents."""
        reader = self.session.readStream.format(source)
        if source == "motelog":
            options |= {"topic": topic, "namesrv": self.namesrv, "columns": columns}
            return reader.options(**options).load()
        assert self.kafka is not None
        options |= {"subscribe": topic, "kafka.bootstrap.servers": self.kafka.address}
        frame = reader.options(**options).load()
        theirs = {"device": "key", "payload": "value", "store_time": "timestamp"}
        return frame.selectExpr(*(theirs[column] for column in columns.split(",")))

    @property
    def sources(self) -> list[str]:
        return ["motelog", "kafka"] if self.kafka is not None else ["motelog"]


def main() -> int:
    cases = {"trigger": bench_trigger, "latency": bench_latency, "sink": bench_sink}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=cases, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000, help="of a round of the sink")
    parser.add_argument("--kafka", action="store_true", help="beside Spark's Kafka source and sink")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        motelog = stack.enter_context(MotelogProcess())
        kafka = start_kafka(stack) if arguments.kafka else None
        conf = session_settings() if kafka is not None else None
        session = start_session("bench_spark_stream", master="local[2]", conf=conf)
        stack.callback(session.stop)
        peers = Peers(session, motelog, kafka)
        for name in arguments.case or cases:
            results[name] = cases[name](peers, arguments)
    print(json.dumps({**machine(), **results}, indent=2))  # noqa: T201  # the result
    return 0


# --- small triggers ----------------------------------------------------------------------------


class Trigger(NamedTuple):
    """Medians of a round, in ms."""

    wall: float
    add_batch: float
    planning: float
    log: float
    jvm_cpu: float
    python_cpu: float


def bench_trigger(peers: Peers, arguments: argparse.Namespace) -> dict[str, Any]:
    with SyncProducer(namesrv=peers.namesrv) as producer:
        fill(producer, TRIGGER_ROWS * TRIGGERS)
    if peers.kafka is not None:
        fill_kafka(peers.session, peers.motelog, peers.kafka)
    measured: dict[str, list[Trigger]] = {source: [] for source in peers.sources}
    for turn in range(arguments.rounds + 1):
        for source in peers.sources:
            one = run_triggers(peers, source)
            tell(f"trigger {turn} {source}: {one}")
            if turn:  # the first turn warms up
                measured[source].append(one)
    return {
        source: {
            f"{name}_ms": round(statistics.median(getattr(one, name) for one in runs), 1)
            for name in Trigger._fields
        }
        for source, runs in measured.items()
    }


def run_triggers(peers: Peers, source: str) -> Trigger:
    frame = peers.stream(
        source,
        TOPIC,
        "device,payload,store_time",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(TRIGGER_ROWS),
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        # The CPU time of workers that have ended is lost, so it is read while they run.
        seen: list[tuple[int, float, float]] = []
        while not query.awaitTermination(0.1):
            progress = query.lastProgress
            if progress is not None and progress.batchId < TRIGGERS - 1:
                seen.append((progress.batchId, *spark_cpu_s(peers.session)))
        durations = [
            one.durationMs for one in query.recentProgress if one.batchId >= FIRST_TRIGGERS
        ]
    first = next(one for one in seen if one[0] >= FIRST_TRIGGERS)
    triggers, jvm_s, python_s = (b - a for a, b in zip(first, seen[-1], strict=True))

    def median(*names: str) -> float:
        return statistics.median(
            float(sum(one.get(name, 0) for name in names)) for one in durations
        )

    return Trigger(
        median("triggerExecution"),
        median("addBatch"),
        median("latestOffset", "getBatch", "queryPlanning"),
        median("walCommit", "commitOffsets"),
        1000 * jvm_s / triggers,
        1000 * python_s / triggers,
    )


def spark_cpu_s(session: Any) -> tuple[float, float]:
    """Return the CPU seconds of Spark's JVM, and of the Python processes that it started."""
    jvm = spark_jvm(session)
    for worker in jvm.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            _workers_cpu_s[worker.pid] = cpu_s(worker)
    return cpu_s(jvm), sum(_workers_cpu_s.values())


#: What Spark's Python processes had used when they were last seen: idle ones end.
_workers_cpu_s: dict[int, float] = {}


# --- from publisher to row ---------------------------------------------------------------------


def bench_latency(peers: Peers, arguments: argparse.Namespace) -> dict[str, Any]:
    with SyncProducer(namesrv=peers.namesrv) as producer:
        senders: dict[str, Callable[[str], object]] = {
            "motelog": lambda text: producer.send(Message(LATENCY_TOPIC, text.encode()))
        }
        if peers.kafka is not None:
            senders["kafka"] = kafka_sender(peers)
        for send in senders.values():
            send(str(time.time_ns()))  # makes the topic
        late_ms: dict[str, list[float]] = {source: [] for source in senders}
        for turn in range(arguments.rounds + 1):
            for source, send in senders.items():
                one = run_latency(peers, source, send)
                tell(f"latency {turn} {source}: {spread(one)}")
                if turn:  # the first turn warms up
                    late_ms[source] += one
    return {source: spread(values) for source, values in late_ms.items()}


def kafka_sender(peers: Peers) -> Callable[[str], object]:
    """Return a function that sends a text with Kafka's producer, in Spark's JVM, and waits."""
    assert peers.kafka is not None
    jvm = peers.session._jvm
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    settings = jvm.java.util.HashMap()
    settings["bootstrap.servers"] = peers.kafka.address
    settings["key.serializer"] = settings["value.serializer"] = serializer
    clients = jvm.org.apache.kafka.clients.producer
    producer = clients.KafkaProducer(settings)
    return lambda text: producer.send(clients.ProducerRecord(LATENCY_TOPIC, text)).get()


def run_latency(peers: Peers, source: str, send: Callable[[str], object]) -> list[float]:
    """Return the ms from send to row for the messages of a round."""
    rows: list[tuple[int, int]] = []

    def arrived(frame: Any, batch: int) -> None:
        sent = [int(bytes(row[0])) for row in frame.collect()]
        now = time.time_ns()
        rows.extend((at, now) for at in sent)

    stopped = threading.Event()

    def publish() -> None:
        while not stopped.wait(1 / SENT_PER_S):
            send(str(time.time_ns()))

    frame = peers.stream(source, LATENCY_TOPIC, "payload", startingOffsets="latest")
    publisher = threading.Thread(target=publish)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream.foreachBatch(arrived).option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="1 second").start()
        publisher.start()
        begin_ns = time.time_ns()
        try:
            query.awaitTermination(LATENCY_S)
        finally:
            stopped.set()
            publisher.join()
            query.stop()
    first_ns = begin_ns + FIRST_S * 1_000_000_000
    return [(now - at) / 1e6 for at, now in rows if at >= first_ns]


def spread(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"messages": len(values), "p50_ms": round(cuts[49]), "p99_ms": round(cuts[98])}


# --- the sink ----------------------------------------------------------------------------------


def bench_sink(peers: Peers, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = arguments.rows
    frame = peers.session.range(0, rows, 1, 4).selectExpr(*ROW)
    motelog = frame.write.format("motelog").mode("append")
    motelog = motelog.option("namesrv", peers.namesrv).option("topic", "bench_sink")
    writers = {
        "noop": (frame.write.format("noop").mode("overwrite"), None),
        "motelog": (motelog, psutil.Process(peers.motelog.pid)),
    }
    if peers.kafka is not None:
        theirs = frame.selectExpr("device AS key", "payload AS value").write.format("kafka")
        theirs = theirs.option("kafka.bootstrap.servers", peers.kafka.address)
        writers["kafka"] = (theirs.option("topic", "bench_sink"), psutil.Process(peers.kafka.pid))
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in writers}
    for turn in range(arguments.rounds + 1):
        for name, (writer, broker) in writers.items():
            before = *spark_cpu_s(peers.session), cpu_s(broker) if broker else 0.0
            begin = time.perf_counter()
            writer.save()
            wall_s = time.perf_counter() - begin
            after = *spark_cpu_s(peers.session), cpu_s(broker) if broker else 0.0
            jvm_s, python_s, broker_s = (b - a for a, b in zip(before, after, strict=True))
            tell(
                f"sink {turn} {name}: {wall_s:.1f} s, CPU of JVM {jvm_s:.2f},"
                f" Python {python_s:.2f}, broker {broker_s:.2f}"
            )
            if turn:  # the first turn warms up
                measured[name].append((wall_s, jvm_s + python_s, broker_s))
    result: dict[str, Any] = {}
    for name, runs in measured.items():
        walls, spark, broker = (statistics.median(values) for values in zip(*runs, strict=True))
        result[name] = {
            "rows_per_s": round(rows / walls),
            "cpu_ns_per_row": round(spark / rows * 1e9),
            "broker_cpu_ns_per_row": round(broker / rows * 1e9),
        }
    return result


if __name__ == "__main__":
    sys.exit(main())
