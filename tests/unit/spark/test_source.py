"""The source's readers against a broker in memory: planning, freezing, new and lost queues."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the [spark] extra")
pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from motelog.bridge.errors import NoNameServerError
from motelog.core.errors import BrokerError, RemotingConnectionError
from motelog.spark import connections
from motelog.spark.batches import arrow_schema
from motelog.spark.columns import Column, schema_ddl
from motelog.spark.errors import DataLossError, OffsetFormatError, OptionError, OutageError
from motelog.spark.offsets import decode_offsets, encode_offsets
from motelog.spark.options import parse_options
from motelog.spark.source import MotelogDataSource, MotelogStreamReader, QueuePartition
from motelog.spark.topic_view import TopicView
from motelog.spark.topics import Topics
from pyspark_motelog import DefaultSource
from tests.support.spark_broker import FakeConsumer
from tests.support.spark_records import telemetry


@pytest.fixture
def broker() -> Iterator[FakeConsumer]:
    """Three queues of 10, 4 and 0 messages, reached through the process's cache."""
    consumer = FakeConsumer(queue_count=3)
    for queue, count in zip(consumer.broker, (10, 4, 0), strict=True):
        consumer.broker[queue].put(*(telemetry(n) for n in range(count)))
    key = (os.getpid(), ("127.0.0.1:9876", "motelog-spark", None, None))
    connections._consumers[key] = consumer
    yield consumer
    connections._consumers.pop(key, None)


# The schema of all columns, without a session to parse DDL with.
SCHEMA = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {
                "name": column.label,
                "type": {
                    "type": "map",
                    "keyType": "string",
                    "valueType": "string",
                    "valueContainsNull": True,
                }
                if column is Column.PROPERTIES
                else {"int": "integer", "bigint": "long"}.get(kind, kind),
                "nullable": True,
                "metadata": {},
            }
            for column, kind in (
                (Column.TOPIC, "string"),
                (Column.QUEUE_TOPIC, "string"),
                (Column.DEVICE, "string"),
                (Column.KEY, "string"),
                (Column.PAYLOAD, "binary"),
                (Column.STORE_TIME, "timestamp"),
                (Column.BORN_TIME, "timestamp"),
                (Column.BROKER, "string"),
                (Column.QUEUE_ID, "int"),
                (Column.QUEUE_OFFSET, "bigint"),
                (Column.PROPERTIES, ""),
                (Column.QOS, "int"),
                (Column.RETAIN, "boolean"),
                (Column.CLIENT_ID, "string"),
                (Column.MQTT_PROPERTIES, "string"),
                (Column.CONTENT_TYPE, "string"),
                (Column.RESPONSE_TOPIC, "string"),
            )
        ],
    }
)


def source(**options: str) -> MotelogDataSource:
    return DefaultSource({"topic": "telemetry", "outageSecondsMax": "0"} | options)


def stream(**options: str) -> MotelogStreamReader:
    reader = source(**options).streamReader(SCHEMA)
    assert isinstance(reader, MotelogStreamReader)
    return reader


def rows_of(reader: Any, partitions: Any) -> list[tuple[int, int]]:
    """Return (queue id, queue offset) of each row, read as Spark does: by a copy of the reader."""
    worker = pickle.loads(pickle.dumps(reader))
    return [
        (row["queue_id"], row["queue_offset"])
        for partition in pickle.loads(pickle.dumps(partitions))
        for batch in worker.read(partition)
        for row in batch.to_pylist()
    ]


def run(reader: MotelogStreamReader, start: dict[str, Any], limit: ReadLimit) -> list[list[Any]]:
    """Run batches until there is nothing more, as AvailableNow does."""
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(rows_of(reader, reader.partitions(start, end)))
        start = end
    return batches


def test_the_arrow_schema_is_the_one_that_spark_derives() -> None:
    assert arrow_schema(tuple(Column)) == to_arrow_schema(SCHEMA, timezone="UTC")
    assert source(columns="all").schema() == schema_ddl(tuple(Column))
    assert source(columns="payload,device").schema() == "payload binary, device string"


def test_a_schema_chooses_columns_and_is_checked() -> None:
    assert DefaultSource.name() == "motelog"
    wrong = StructType.fromJson(
        {
            "type": "struct",
            "fields": [{"name": "payload", "type": "string", "nullable": True, "metadata": {}}],
        }
    )
    with pytest.raises(OptionError, match="'schema' is 'payload string', expected payload binary"):
        source().reader(wrong)


@pytest.mark.usefixtures("broker")
def test_a_batch_reads_everything_once() -> None:
    reader = source().reader(SCHEMA)
    partitions = reader.partitions()
    assert isinstance(partitions, list)
    queues = [
        r.queue.queue_id for p in partitions if isinstance(p, QueuePartition) for r in p.ranges
    ]
    assert queues == [0, 1]
    assert rows_of(reader, partitions) == [(0, n) for n in range(10)] + [(1, n) for n in range(4)]


@pytest.mark.usefixtures("broker")
def test_a_batch_between_two_positions_reads_what_lies_between() -> None:
    start = '{"telemetry": {"broker-a/0": 8, "broker-a/1": "latest", "broker-a/2": "earliest"}}'
    reader = source(startingOffsets=start).reader(SCHEMA)
    assert rows_of(reader, reader.partitions()) == [(0, 8), (0, 9)]
    reader = source(startingOffsets="latest", endingOffsets="earliest").reader(SCHEMA)
    assert list(reader.partitions()) == []


@pytest.mark.usefixtures("broker")
def test_queues_that_positions_do_not_name_are_read_whole() -> None:
    start, end = '{"telemetry": {"broker-a/0": 8}}', '{"telemetry": {"broker-a/1": 3}}'
    reader = source(startingOffsets=start, endingOffsets=end).reader(SCHEMA)
    rows = rows_of(reader, reader.partitions())
    assert rows == [(0, 8), (0, 9), (1, 0), (1, 1), (1, 2)]


@pytest.mark.usefixtures("broker")
def test_positions_that_cannot_be_are_refused() -> None:
    other = '{"telemetry": {"broker-a/0": 8, "broker-b/0": 1}}'
    with pytest.raises(OptionError, match=r"queues \['broker-a/0', .*, not of \['broker-b/0'\]"):
        source(startingOffsets=other).reader(SCHEMA).partitions()
    beyond = '{"telemetry": {"broker-a/0": 11, "broker-a/1": 0, "broker-a/2": 0}}'
    with pytest.raises(OptionError, match="offsets up to 10 in queue 'broker-a/0'"):
        source(endingOffsets=beyond).reader(SCHEMA).partitions()
    with pytest.raises(OptionError, match="option 'topic' is 'other', expected a topic that exi"):
        source(topic="other").reader(SCHEMA).partitions()
    assert source(topic="other", failOnMissingTopic="false").reader(SCHEMA).partitions() == []


@pytest.mark.usefixtures("broker")
def test_limited_batches_share_rows_and_reach_the_end() -> None:
    reader = stream(maxOffsetsPerTrigger="5")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(5)
    batches = run(reader, {"telemetry": {}}, limit)
    assert [len(batch) for batch in batches] == [5, 5, 4]
    rows = sorted(row for batch in batches for row in batch)
    assert rows == [(0, n) for n in range(10)] + [(1, n) for n in range(4)]


@pytest.mark.usefixtures("broker")
def test_batches_limited_by_bytes_are_as_large_as_the_sample_says() -> None:
    size = len(telemetry(0).encode())
    reader = stream(maxBytesPerTrigger=str(4 * size))
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(4 * size)
    batches = run(reader, reader.initialOffset(), limit)
    assert max(len(batch) for batch in batches) == 4
    assert sum(len(batch) for batch in batches) == 14


def test_available_now_ends_at_the_frozen_target(broker: FakeConsumer) -> None:
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    for queue in broker.broker:
        broker.broker[queue].put(telemetry(0))
    broker.add_queue(3, telemetry(0))
    batches = run(reader, start, ReadAllAvailable())
    assert [len(batch) for batch in batches] == [14]
    assert reader.reportLatestOffset() == {
        "telemetry": {"broker-a/0": 10, "broker-a/1": 4, "broker-a/2": 0}
    }


def test_the_initial_offset_stays_what_it_was(broker: FakeConsumer) -> None:
    reader = stream(startingOffsets="latest")
    first = reader.initialOffset()
    broker.broker[next(iter(broker.broker))].put(telemetry(0))
    assert reader.initialOffset() == first
    assert run(reader, first, ReadAllAvailable()) == [[(0, 10)]]


def test_a_queue_that_appears_later_is_read_from_its_beginning(broker: FakeConsumer) -> None:
    reader = stream(startingOffsets="latest")
    start = reader.initialOffset()
    new = broker.add_queue(3, *(telemetry(n) for n in range(6)))
    broker.broker[new].expire(2)
    assert run(reader, start, ReadMaxRows(3)) == [[(3, 2), (3, 3), (3, 4)], [(3, 5)]]


def test_a_queue_that_is_away_keeps_its_place(broker: FakeConsumer) -> None:
    reader = stream()
    start = reader.latestOffset({"telemetry": {}}, ReadAllAvailable())
    queue = next(iter(broker.broker))
    away = broker.broker.pop(queue)
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    away.put(telemetry(0))
    broker.broker[queue] = away
    assert run(reader, start, ReadAllAvailable()) == [[(0, 10)]]


def test_a_queue_begun_anew_is_lost_data_or_read_from_its_beginning(broker: FakeConsumer) -> None:
    start = stream().latestOffset({"telemetry": {}}, ReadAllAvailable())
    broker.add_queue(0, telemetry(0), telemetry(1))
    with pytest.raises(DataLossError, match="the queue ends at 2, the query had read up to 10"):
        stream().latestOffset(start, ReadAllAvailable())
    reader = stream(failOnDataLoss="false")
    assert run(reader, start, ReadMaxRows(1)) == [[(0, 0)], [(0, 1)]]


def test_offsets_that_retention_took_use_up_no_limit_where_loss_is_allowed(
    broker: FakeConsumer,
) -> None:
    reader = stream(failOnDataLoss="false")
    start = reader.initialOffset()
    broker.broker[next(iter(broker.broker))].expire(8)
    assert run(reader, start, ReadMaxRows(6)) == [[(0, 8), (0, 9), *((1, n) for n in range(4))]]
    with pytest.raises(DataLossError, match=r"\[0, 8\) are lost"):
        run(stream(), start, ReadAllAvailable())


def test_a_stream_waits_for_a_topic_that_does_not_exist_yet(broker: FakeConsumer) -> None:
    queues = dict(broker.broker)
    broker.broker.clear()
    with pytest.raises(OptionError, match="a topic that exists"):
        stream().initialOffset()
    reader = stream(failOnMissingTopic="false", startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {"telemetry": {}}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    broker.broker |= queues
    assert [len(batch) for batch in run(reader, start, ReadAllAvailable())] == [14]


def all_of(**options: str) -> MotelogStreamReader:
    """Return a reader without the option that names a topic."""
    reader = DefaultSource({"outageSecondsMax": "0"} | options).streamReader(SCHEMA)
    assert isinstance(reader, MotelogStreamReader)
    return reader


def test_several_topics_are_read_by_one_query(broker: FakeConsumer) -> None:
    broker.add_queue(0, *(telemetry(n) for n in range(5)), topic="alerts")
    with pytest.raises(OptionError, match="option 'topic' is 'none', expected a topic that exists"):
        stream(topic="telemetry,none").initialOffset()
    reader = stream(topic="telemetry, alerts")
    start = reader.initialOffset()
    assert start == {
        "alerts": {"broker-a/0": 0},
        "telemetry": {"broker-a/0": 0, "broker-a/1": 0, "broker-a/2": 0},
    }
    assert [len(batch) for batch in run(reader, start, ReadMaxRows(10))] == [10, 9]
    batch = source(topic="alerts,telemetry").reader(SCHEMA)
    assert len(rows_of(batch, batch.partitions())) == 19


def test_a_topic_that_a_query_names_later_is_read_from_its_beginning(broker: FakeConsumer) -> None:
    start = stream(startingOffsets="latest").initialOffset()
    broker.add_queue(0, *(telemetry(n) for n in range(5)), topic="alerts")
    (batch,) = run(stream(topic="telemetry,alerts"), start, ReadAllAvailable())
    assert batch == [(0, n) for n in range(5)]
    end = stream(topic="telemetry,alerts").latestOffset(start, ReadAllAvailable())
    with pytest.raises(OffsetFormatError, match=r"also of \['alerts'\].*reads topic 'telemetry'"):
        stream().latestOffset(end, ReadAllAvailable())


def test_topics_that_match_are_read_from_when_they_appear(broker: FakeConsumer) -> None:
    with pytest.raises(
        OptionError, match=r"option 'topicPattern' is 'site-\.\*', expected a topic"
    ):
        all_of(topicPattern="site-.*").initialOffset()
    reader = all_of(topicPattern="tele.*|site-.*")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert list(end) == ["telemetry"]
    broker.add_queue(0, *(telemetry(n) for n in range(3)), topic="site-7")
    assert run(reader, end, ReadAllAvailable()) == [[(0, 0), (0, 1), (0, 2)]]


def test_an_mqtt_filter_finds_topics_as_they_appear(broker: FakeConsumer) -> None:
    with pytest.raises(OptionError, match=r"option 'mqttFilter' is 'site-7/#', expected a topic"):
        all_of(mqttFilter="site-7/#").initialOffset()
    reader = all_of(mqttFilter="+/dev1/#")
    start = reader.initialOffset()
    broker.add_queue(0, *(telemetry(n) for n in range(3)), topic="site-7")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert set(end) == {"telemetry", "site-7"}


def test_a_topic_that_was_seen_and_is_away_is_an_outage(broker: FakeConsumer) -> None:
    reader = all_of(topicPattern="tele.*")
    start = reader.initialOffset()
    broker.broker.clear()
    with pytest.raises(OutageError, match=r"brokers of topics that match 'tele\.\*': no answer"):
        reader.latestOffset(start, ReadAllAvailable())


@pytest.fixture
def group(broker: FakeConsumer) -> FakeConsumer:
    """The same broker, reached as group g."""
    key = (os.getpid(), ("127.0.0.1:9876", "g", None, None))
    connections._consumers[key] = broker
    return broker


def test_a_query_may_start_where_its_group_is(group: FakeConsumer) -> None:
    first, second, _ = group.broker
    group.offsets = {first: 7, second: 4}
    start = stream(group="g", startingOffsets="committed").initialOffset()
    assert start == {"telemetry": {"broker-a/0": 7, "broker-a/1": 4, "broker-a/2": 0}}


def test_a_stream_tells_its_group_how_far_batches_have_got(group: FakeConsumer) -> None:
    reader = stream(group="g")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(5))
    assert set(group.offsets.values()) == {0}, "the batch is not read yet"
    last = reader.latestOffset(end, ReadAllAvailable())
    assert encode_offsets(Topics(("telemetry",)), group.offsets) == end
    group.faults.append(BrokerError(1, "busy"))
    reader._commit(reader._view(), decode_offsets(Topics(("telemetry",)), last))
    assert encode_offsets(Topics(("telemetry",)), group.offsets) == end, "a warning, no more"


def test_a_stream_without_a_group_of_its_own_commits_nothing(broker: FakeConsumer) -> None:
    reader = stream()
    start = reader.initialOffset()
    reader.latestOffset(reader.latestOffset(start, ReadAllAvailable()), ReadAllAvailable())
    assert broker.offsets == {}


def test_a_short_outage_is_waited_out_when_planning(broker: FakeConsumer) -> None:
    broker.faults.append(RemotingConnectionError("refused"))
    reader = stream(outageSecondsMax="5")
    assert reader.initialOffset()["telemetry"] == {
        "broker-a/0": 0,
        "broker-a/1": 0,
        "broker-a/2": 0,
    }


@pytest.mark.parametrize("seconds_a_try", [0.0, 3.0], ids=["refused", "no answer"])
def test_name_servers_that_have_never_answered_are_soon_told(
    broker: FakeConsumer, seconds_a_try: float
) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def open_consumer() -> FakeConsumer:
        sleep(seconds_a_try)
        return broker

    place = f"192.0.2.1:{int(seconds_a_try) + 1}"  # in no other test
    options = parse_options({"topic": "telemetry", "namesrv": place})
    view = TopicView(open_consumer, options, clock_s=lambda: now_s, sleep=sleep)
    broker.faults.extend(NoNameServerError("no name server answered") for _ in range(99))
    with pytest.raises(OutageError, match="option 'namesrv': no answer within 3 s: no name server"):
        view.queues()
    assert now_s < 5
    # Those that have answered once are waited for.
    broker.faults.clear()
    assert view.queues()
    broker.faults.extend(NoNameServerError("no name server answered") for _ in range(6))
    assert view.queues()


def test_the_cached_consumer_is_dropped_when_an_outage_lasts(broker: FakeConsumer) -> None:
    broker.faults.extend(RemotingConnectionError("refused") for _ in range(9))
    with pytest.raises(Exception, match="brokers of topic 'telemetry': no answer for 0 s"):
        stream().initialOffset()
    assert broker.is_closed
