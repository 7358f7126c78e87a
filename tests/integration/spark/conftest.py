"""One local Spark session per test run, and what the Spark tests ask of a running stack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.message import MQTT_TOPIC, Message
from motelog.core.records.decode import StoredMessage
from motelog.testing import MotelogProcess

# Starting a session and running its first job takes most of a minute on a busy machine.
QUERY_S_MAX = 90


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with two threads; skips, saying why, where Spark cannot run."""
    pytest.importorskip("pyspark", reason="needs the [spark] extra")
    pytest.importorskip("pyarrow", reason="needs the [spark] extra")
    from motelog.spark.session import JAVA_NEEDED, has_java, start_session

    if not has_java():
        pytest.skip(JAVA_NEEDED)
    session = start_session(
        "motelog tests",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            # Small queries spend their time in starting and compiling, not in running.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def namesrv(motelog_stack: MotelogProcess) -> str:
    host, port = motelog_stack.namesrv
    return f"{host}:{port}"


@pytest.fixture
def producer(namesrv: str) -> Iterator[SyncProducer]:
    with SyncProducer(namesrv=namesrv) as producer:
        yield producer


@pytest.fixture
def source(spark_session: Any, namesrv: str) -> Callable[..., Any]:
    """Return a reader or stream reader of a topic: ``source(topic, stream=True, option=...)``."""

    def configured(topic: str, *, stream: bool = False, **options: str) -> Any:
        reader = spark_session.readStream if stream else spark_session.read
        reader = reader.format("motelog").option("namesrv", namesrv).option("topic", topic)
        return reader.options(**options)

    return configured


class Subscriber:
    """What one MQTT client has got, by topic name."""

    def __init__(self, address: tuple[str, int], topic_filter: str) -> None:
        self.got: list[tuple[str, bytes, int]] = []
        self._changed = threading.Condition()
        subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *_: subscribed.set()
        connected = threading.Event()
        self._client.on_connect = lambda *_: connected.set()
        self._client.connect(*address)
        self._client.loop_start()
        assert connected.wait(30)
        self._client.subscribe(topic_filter, qos=2)
        assert subscribed.wait(30)

    def _take(self, client: Any, data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.got.append((message.topic, bytes(message.payload), message.qos))
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[tuple[str, bytes, int]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, timeout=200), self.got
        return self.got

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def subscribe(motelog_stack: MotelogProcess) -> Iterator[Callable[[str], Subscriber]]:
    opened: list[Subscriber] = []

    def subscriber(topic_filter: str) -> Subscriber:
        opened.append(Subscriber(motelog_stack.mqtt, topic_filter))
        return opened[-1]

    yield subscriber
    for one in opened:
        one.close()


def send(producer: SyncProducer, topic: str, begin: int, end: int, *, devices: int = 5) -> set[str]:
    """Send messages with keys k<begin> to k<end - 1>, spread over queues; return the keys."""
    for at in range(begin, end, 20):
        messages = [
            Message(
                topic,
                b'{"value": %d}' % n,
                tags=f"dev{n % devices}",
                keys=(f"k{n}",),
                properties={MQTT_TOPIC: f"{topic}/dev{n % devices}/temp"},
            )
            for n in range(at, min(at + 20, end))
        ]
        producer.send_batch(messages)
    return {f"k{n}" for n in range(begin, end)}


def finish(query: Any) -> None:
    """Wait for a query that ends by itself; it is stopped when it does not."""
    try:
        assert query.awaitTermination(QUERY_S_MAX), f"still running after {QUERY_S_MAX} s"
    finally:
        query.stop()


def written_keys(session: Any, output: Path) -> list[str]:
    """Return the keys in a Parquet folder that a query has written, as often as they are there."""
    return [row["key"] for row in session.read.parquet(str(output)).select("key").collect()]


def stored(namesrv: str, topic: str) -> list[StoredMessage]:
    """Return everything that a topic has."""
    with SyncPullConsumer(namesrv=namesrv, group="look") as consumer:
        queues = consumer.queues(topic)
        count = sum(consumer.end_offsets(queues).values())
        consumer.assign(queues)
        found: list[StoredMessage] = []
        while len(found) < count:
            found += consumer.poll(timeout_s=30)
        return found


def forget_last_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a crash leaves it after a batch was written, before that was noted."""
    (last,) = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))[-1:]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
