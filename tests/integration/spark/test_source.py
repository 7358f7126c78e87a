"""The source in a real session against a real stack: every message once, over stops and faults."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.message import Message
from motelog.testing import MotelogProcess
from tests.integration.spark.conftest import QUERY_S_MAX, finish, send, written_keys

pytestmark = pytest.mark.spark

Source = Callable[..., Any]


def test_a_batch_query_returns_each_message_once(source: Source, producer: SyncProducer) -> None:
    keys = send(producer, "spark_batch", 0, 230)
    rows = source("spark_batch", columns="all").load().collect()
    assert sorted(row["key"] for row in rows) == sorted(keys)
    assert len({(row["broker"], row["queue_id"], row["queue_offset"]) for row in rows}) == 230
    (row,) = (row for row in rows if row["key"] == "k7")
    assert row["topic"] == "spark_batch/dev2/temp"
    assert row["queue_topic"] == "spark_batch"
    assert row["device"] == "dev2"
    assert bytes(row["payload"]) == b'{"value": 7}'
    assert row["properties"]["mqttRealTopic"] == "spark_batch/dev2/temp"
    assert row["born_time"] <= row["store_time"]

    chosen = source("spark_batch").schema("device string, queue_offset bigint").load()
    assert chosen.columns == ["device", "queue_offset"]
    parts = source("spark_batch", columns="key", minPartitions="9", maxRecordsPerPartition="20")
    frame = parts.load()
    assert frame.rdd.getNumPartitions() >= 12
    assert sorted(row["key"] for row in frame.collect()) == sorted(keys)


def test_what_mqtt_publishers_gave_has_columns(
    source: Source, motelog_stack: MotelogProcess, producer: SyncProducer
) -> None:
    send(producer, "spark_mqtt", 0, 1)
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="c1", protocol=paho.MQTTv5)
    client.connect(*motelog_stack.mqtt)
    client.loop_start()
    given = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    given.ContentType, given.ResponseTopic = "text/plain", "answers/c1"
    for qos, retain, properties in ((0, False, None), (1, True, given), (2, False, None)):
        client.publish(
            "spark_mqtt/dev1/temp", b"%d" % qos, qos, retain, properties
        ).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()
    columns = "payload,client_id,qos,retain,content_type,response_topic"
    rows = source("spark_mqtt", columns=columns).load().collect()
    assert sorted((bytes(payload), *others) for payload, *others in rows) == [
        (b"0", "c1", 0, False, None, None),
        (b"1", "c1", 1, True, "text/plain", "answers/c1"),
        (b"2", "c1", 2, False, None, None),
        (b'{"value": 0}', None, None, None, None, None),
    ]


def test_one_stream_reads_several_topics_and_its_group_shows_the_lag(
    source: Source, producer: SyncProducer, namesrv: str, spark_session: Any, tmp_path: Path
) -> None:
    keys = send(producer, "spark_list_a", 0, 40) | send(producer, "spark_list_b", 40, 60)
    options = {"group": "spark_list", "columns": "key,queue_topic", "maxOffsetsPerTrigger": "30"}
    reader = source("spark_list_a,spark_list_b", stream=True, **options).load()
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    writer = reader.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    finish(writer.trigger(availableNow=True).start(str(out)))
    assert sorted(written_keys(spark_session, out)) == sorted(keys)
    with SyncPullConsumer(namesrv=namesrv, group="spark_list") as consumer:
        for topic, count in (("spark_list_a", 40), ("spark_list_b", 20)):
            assert sum(consumer.committed(q) or 0 for q in consumer.queues(topic)) == count
        assert {"spark_list_a", "spark_list_b"} <= set(consumer.topics())
    send(producer, "spark_list_b", 60, 65)
    # As a batch, from where the group is, over all topics of such a name.
    matching = spark_session.read.format("motelog").option("namesrv", namesrv)
    matching = matching.option("topicPattern", "spark_list_[a-z]").option("group", "spark_list")
    rows = matching.option("startingOffsets", "committed").load().collect()
    assert {(row["key"], row["queue_topic"]) for row in rows} == {
        (f"k{n}", "spark_list_b") for n in range(60, 65)
    }


#: A small query spends its time in compiling.
SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SUBMITTED = """
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
session.sparkContext.setLogLevel("ERROR")
reader = session.read.format("motelog").option("namesrv", "{namesrv}")
print("rows by load:", reader.load("spark_submit").count())
using = "USING motelog OPTIONS (namesrv '{namesrv}', topic 'spark_submit')"
session.sql("CREATE TEMPORARY VIEW v " + using)
print("rows of the view:", session.table("v").count())
session.sql("CREATE TABLE t " + using)
try:
    session.table("t").count()
except Exception as exc:
    print("the table:", exc)
"""


@pytest.mark.usefixtures("spark_session")
def test_any_session_finds_the_source_by_its_name(
    namesrv: str, producer: SyncProducer, tmp_path: Path
) -> None:
    import pyspark

    send(producer, "spark_submit", 0, 30)
    (tmp_path / "job.py").write_text(SUBMITTED.replace("{namesrv}", namesrv))
    home = Path(pyspark.__file__).parent
    options = ["--master", "local[1]", "--driver-java-options", SOON, "--conf"]
    options += ["spark.ui.enabled=false", "--conf", "spark.sql.codegen.wholeStage=false"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": "",
    }
    done = subprocess.run(
        [home / "bin" / "spark-submit", *options, "job.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=QUERY_S_MAX,
        check=False,
    )
    assert "rows by load: 30" in done.stdout, done.stderr[-3000:]
    assert "rows of the view: 30" in done.stdout, done.stderr[-3000:]
    assert "CREATE TEMPORARY VIEW ... USING motelog" in done.stdout.partition("the table:")[2]


def test_wrong_options_and_topics_are_explained(source: Source) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        source("spark_batch", startingOffset="latest").load()
    with pytest.raises(Exception, match="option 'topic' is 'spark_no_such', expected a topic that"):
        source("spark_no_such").load().collect()


def test_available_now_restarts_where_it_ended(
    spark_session: Any, source: Source, producer: SyncProducer, tmp_path: Path
) -> None:
    def run() -> Any:
        frame = source("spark_now", stream=True, columns="key", maxOffsetsPerTrigger="50").load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "output"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        finish(query)
        return query

    keys = send(producer, "spark_now", 0, 120)
    rows = [progress["numInputRows"] for progress in run().recentProgress]
    assert [count for count in rows if count] == [50, 50, 20]
    assert sorted(written_keys(spark_session, tmp_path / "output")) == sorted(keys)

    keys |= send(producer, "spark_now", 120, 150)
    query = run()
    assert sorted(written_keys(spark_session, tmp_path / "output")) == sorted(keys)
    (progress,) = (entry for entry in query.recentProgress if entry["numInputRows"])
    assert progress["sources"][0]["latestOffset"] == progress["sources"][0]["endOffset"]


def test_a_query_stopped_in_the_middle_writes_each_message_once(
    spark_session: Any, source: Source, producer: SyncProducer, tmp_path: Path
) -> None:
    def start(**trigger: Any) -> Any:
        frame = source("spark_stop", stream=True, columns="key", maxOffsetsPerTrigger="15").load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "output"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(**trigger).start()

    keys = send(producer, "spark_stop", 0, 90)
    query = start(processingTime="0 seconds")
    try:
        for _ in range(20 * QUERY_S_MAX):
            if query.lastProgress or query.awaitTermination(0.05):
                break
    finally:
        query.stop()
    keys |= send(producer, "spark_stop", 90, 120)
    finish(start(availableNow=True))
    assert sorted(written_keys(spark_session, tmp_path / "output")) == sorted(keys)


def test_a_batch_that_failed_comes_again_with_the_same_rows(
    source: Source, producer: SyncProducer, tmp_path: Path
) -> None:
    attempts: dict[int, list[list[str]]] = {}

    def write(frame: Any, batch: int) -> None:
        attempts.setdefault(batch, []).append(sorted(row["key"] for row in frame.collect()))
        if batch == 1 and len(attempts[1]) == 1:
            raise RuntimeError("the sink failed after its rows were read")

    def start() -> Any:
        frame = source("spark_fail", stream=True, columns="key", maxOffsetsPerTrigger="40").load()
        writer = frame.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    keys = send(producer, "spark_fail", 0, 100)
    with pytest.raises(Exception, match="the sink failed after its rows were read"):
        finish(start())
    keys |= send(producer, "spark_fail", 100, 110)
    finish(start())
    first, again = attempts[1]
    assert first == again
    got = [key for tries in attempts.values() for key in tries[-1]]
    assert sorted(got) == sorted(keys)


def test_typed_payloads_are_rows_with_fields_and_malformed_ones_stay(
    source: Source, spark_session: Any, producer: SyncProducer, tmp_path: Path
) -> None:
    from pyspark.sql.functions import col, count, from_json, lit

    schema = "value double, pos struct<lat: double, at: timestamp>, tags array<string>"
    good = [
        b'{"value": %d.5, "tags": ["%d", null], ' % (n, n)
        + b'"pos": {"lat": -%d, "at": "2026-11-21T03:00:%02dZ"}}' % (n, n)
        for n in range(60)
    ]
    bad = [b'{"value": "x"}', b"", b"\xff\x00", b'{"value": 1}{"value": 2}']
    producer.send_batch([Message("spark_typed", body) for body in good + bad])
    options = {"columns": "queue_offset", "payloadFormat": "json", "payloadSchema": schema}
    typed = source("spark_typed", **options).load()
    assert typed.columns == ["queue_offset", "value", "pos", "tags", "_malformed", "_payload"]

    plain = source("spark_typed", columns="payload").load()
    parsed = plain.select(from_json(col("payload").cast("string"), schema).alias("v"))
    expected = parsed.where("v.pos is not null").select("v.*").collect()
    found = typed.where("_malformed is null").select("value", "pos", "tags").collect()
    assert sorted(found) == sorted(expected)
    assert len(found) == len(good)
    kept = typed.where("_malformed is not null").collect()
    assert sorted(bytes(row["_payload"]) for row in kept) == sorted(bad)
    assert all(row["value"] is None and row["pos"] is None for row in kept)

    frame = source("spark_typed", stream=True, payloadFormat="json").schema(
        "value double, _malformed string, device string"
    )
    counted = frame.load().observe("payloads", count(lit(1)).alias("n"), count("_malformed"))
    query = (
        counted.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    (seen,) = (p["observedMetrics"]["payloads"] for p in query.recentProgress if p["numInputRows"])
    assert (seen["n"], seen["count(_malformed)"]) == (64, 4)


def test_payloads_in_messagepack_are_rows_with_fields(
    source: Source, producer: SyncProducer
) -> None:
    schema = "value double, at timestamp, raw binary, tags array<string>"
    at = dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC)
    readings = [{"value": n / 4, "at": at, "raw": b"\xff", "tags": [str(n)]} for n in range(20)]
    bodies = [msgspec.msgpack.encode(reading) for reading in readings]
    producer.send_batch([Message("spark_msgpack", body) for body in (*bodies, b'{"value": 1}')])
    options = {"columns": "key", "payloadFormat": "msgpack", "payloadSchema": schema}
    typed = source("spark_msgpack", **options).load()
    found = typed.where("_malformed is null").selectExpr(
        "value", "unix_millis(at) AS at", "raw", "tags"
    )
    assert sorted(tuple(row) for row in found.collect()) == [
        (n / 4, round(at.timestamp() * 1000), b"\xff", [str(n)]) for n in range(20)
    ]
    (bad,) = typed.where("_malformed is not null").collect()
    assert bad["_malformed"] == "expected a map at byte 0"
    assert bytes(bad["_payload"]) == b'{"value": 1}'


def test_filters_leave_out_what_is_not_wanted(
    source: Source, spark_session: Any, producer: SyncProducer, namesrv: str
) -> None:
    send(producer, "spark_filters", 0, 200, devices=10)

    def keys(frame: Any) -> list[str]:
        return sorted(row["key"] for row in frame.select("key").collect())

    thirds = sorted(f"k{n}" for n in range(3, 200, 10))
    columns = "key,device,queue_topic"
    assert keys(source("spark_filters", columns=columns, tags="dev3").load()) == thirds
    by_sql = source("spark_filters", columns=columns, sqlFilter="TAGS = 'dev3'").load()
    assert keys(by_sql) == thirds
    by_topic = source("spark_filters", columns=columns, mqttFilter="spark_filters/dev3/+").load()
    assert keys(by_topic) == thirds
    # Without a topic, over all that are there.
    reader = spark_session.read.format("motelog").option("columns", columns)
    reader = reader.option("namesrv", namesrv).option("mqttFilter", "+/dev3/+")
    of_any_topic = reader.load().where("queue_topic = 'spark_filters'")
    assert keys(of_any_topic) == thirds
    setting = "spark.sql.python.filterPushdown.enabled"
    spark_session.conf.set(setting, "true")
    try:
        pushed = source("spark_filters", columns=columns, pushFilters="true").load()
        assert keys(pushed.where("device = 'dev3'")) == thirds
    finally:
        spark_session.conf.unset(setting)
