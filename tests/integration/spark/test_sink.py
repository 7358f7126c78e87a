"""The sink in a real session against a real stack: each row once, and MQTT subscribers hear it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
from tests.integration.spark.conftest import Subscriber, finish, forget_last_commit, send, stored

pytestmark = pytest.mark.spark

Source = Callable[..., Any]


def test_a_batch_becomes_messages_that_subscribers_hear(
    spark_session: Any, namesrv: str, subscribe: Callable[[str], Subscriber]
) -> None:
    subscriber = subscribe("sink_batch/#")
    frame = spark_session.range(40).selectExpr(
        "concat('sink_batch/dev', id % 4, '/set') AS topic",
        "concat('k', id) AS key",
        "struct(id, 1.5 AS value, null AS nothing) AS payload",
        "CAST(id % 3 AS int) AS qos",
        "map('site', 'north') AS properties",
        "map('from', 'spark') AS user_properties",
        "'application/json' AS content_type",
    )
    writer = frame.write.format("motelog").option("namesrv", namesrv).mode("append")
    writer.option("writeId", "job 7").save()
    writer.option("writeId", "job 7").save()  # nothing is added

    messages = stored(namesrv, "sink_batch")
    assert Counter(message.keys for message in messages) == Counter((f"k{n}",) for n in range(40))
    assert len({message.message_id for message in messages}) == 40
    (one,) = (message for message in messages if message.keys == ("k7",))
    assert one.json() == {"id": 7, "value": 1.5}
    assert (one.mqtt_topic, one.device) == ("sink_batch/dev3/set", "dev3")
    assert one.properties["site"] == "north"
    assert json.loads(one.properties["mqttProperties"])["user"] == [["from", "spark"]]

    heard = subscriber.wait_for(40)
    assert Counter(heard) == Counter(
        (f"sink_batch/dev{n % 4}/set", b'{"id":%d,"value":1.5}' % n, n % 3) for n in range(40)
    )


def test_what_cannot_be_written_is_said_when_spark_plans(spark_session: Any, namesrv: str) -> None:
    def refuse(why: str, *columns: str, mode: str = "append", **options: str) -> None:
        frame = spark_session.range(1).selectExpr(*columns)
        writer = frame.write.format("motelog").mode(mode).options(namesrv=namesrv, **options)
        with pytest.raises(Exception, match=why):
            writer.save()

    refuse("there is no column 'payload'", "'a/b' AS topic")
    refuse("use 'device'", "'x' AS payload", "'d' AS tag", topic="t")
    refuse("the rows have no topic", "'x' AS payload")
    refuse("cannot be overwritten", "'x' AS payload", mode="overwrite", topic="t")
    refuse("no such option for writing", "'x' AS payload", topic="t", columns="all")
    refuse("row 0 of the partition: qos is 7", "'x' AS payload", "7 AS qos", topic="t")


def test_a_stream_that_failed_and_restarted_writes_each_row_once(
    spark_session: Any,
    source: Source,
    producer: SyncProducer,
    namesrv: str,
    subscribe: Callable[[str], Subscriber],
    tmp_path: Path,
) -> None:
    subscriber = subscribe("sink_alerts/#")
    keys = send(producer, "sink_input", 0, 60)

    def run() -> None:
        frame = source("sink_input", stream=True, columns="device,key,payload",
                       maxOffsetsPerTrigger="25").load()  # fmt: skip
        alerts = frame.selectExpr("concat('sink_alerts/', device) AS topic", "key", "payload")
        # A shuffle gives the rows another order each time.
        writer = alerts.repartition(2, "key").writeStream.format("motelog")
        writer = writer.option("namesrv", namesrv).option("leaseSeconds", "3")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())

    run()
    # Spark writes the third batch again.
    forget_last_commit(tmp_path / "checkpoint")
    keys |= send(producer, "sink_input", 60, 80)
    run()
    assert Counter(one.keys for one in stored(namesrv, "sink_alerts")) == Counter(
        (key,) for key in keys
    )
    assert Counter(topic for topic, _, _ in subscriber.wait_for(80)) == Counter(
        {f"sink_alerts/dev{n}": 16 for n in range(5)}
    )
