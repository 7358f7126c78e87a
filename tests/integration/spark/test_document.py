"""The programs in docs/spark do what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.core.message import MQTT_TOPIC, Message
from tests.integration.spark.conftest import send
from tests.support.sparkplug_payloads import sparkplug_messages

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).resolve().parents[3] / "docs/spark"


def programs(page: str) -> list[str]:
    text = (FOLDER / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


READING = programs("reading.md")
(WRITING,) = programs("writing.md")
TYPED, SPARKPLUG = programs("payloads.md")


def test_the_examples_read_what_was_sent(
    spark_session: Any,
    namesrv: str,
    producer: SyncProducer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = send(producer, "spark_document", 0, 100)
    for text in (*READING, TYPED, WRITING):
        text = text.replace('"telemetry"', '"spark_document"').replace("127.0.0.1:9876", namesrv)
        text = re.sub('"(readings|alerts)(?=[-"])', rf'"{tmp_path}/\1', text)
        exec(compile(text, "docs/spark", "exec"), {})
    shown = capsys.readouterr().out
    assert "|  dev1|   20|" in shown
    assert "|  dev1|      48.5|" in shown
    assert re.search(r"\|( *NULL\|){4} *100\|", shown), "a native producer's"
    with SyncPullConsumer(namesrv=namesrv, group="document") as consumer:
        consumer.assign(consumer.queues("alerts"))
        alerts = consumer.poll(timeout_s=30, count_max=1000)
        while len(alerts) < len(keys) - 31:
            alerts += consumer.poll(timeout_s=30)
    assert {one.mqtt_topic for one in alerts} == {f"alerts/dev{n}/high" for n in range(5)}
    assert sorted(one.json()["value"] for one in alerts) == [float(n) for n in range(31, 100)]
    written = spark_session.read.parquet(f"{tmp_path}/readings").collect()
    assert sorted(row["value"] for row in written) == [float(n) for n in range(len(keys))]


def test_the_sparkplug_example_joins_values_to_the_names_of_their_births(
    spark_session: Any, namesrv: str, producer: SyncProducer
) -> None:
    def message(name: str, *metrics: dict[str, Any]) -> Message:
        payload = sparkplug_messages()[0](timestamp=5000, seq=1, metrics=metrics)
        properties = {MQTT_TOPIC: f"spBv1.0/plant/{name}"}
        return Message("sparkplug", payload.SerializeToString(), "edge1", properties=properties)

    level = {"alias": 1, "timestamp": 7000, "double_value": 2.5}
    births = [{"name": "Level", "datatype": 10, **level}, {"name": "T", "alias": 2, "datatype": 3}]
    producer.send_batch(
        [
            message("NBIRTH/edge1", {"name": "bdSeq", "datatype": 8, "long_value": 0}),
            message("DBIRTH/edge1/pump", *births),
            message("DDATA/edge1/pump", level, {"alias": 2, "int_value": 0xFFFFFFFF}),
            message("NDATA/edge1", {"name": "Up", "datatype": 7, "int_value": 0xFFFFFFFF}),
            Message("sparkplug", b'{"online": true}'),
        ]
    )
    found: dict[str, Any] = {}
    text = SPARKPLUG.replace("127.0.0.1:9876", namesrv)
    exec(compile(text, "docs/spark/payloads.md", "exec"), found)
    rows = found["values"].select("name", "device", "long_value", "double_value").collect()
    assert sorted(map(tuple, rows)) == [
        ("Level", "pump", None, 2.5),
        ("T", "pump", -1, None),
        ("Up", None, 0xFFFFFFFF, None),
    ]
    source = spark_session.read.format("motelog").option("namesrv", namesrv)
    payloads = source.option("payloadFormat", "sparkplug").load("sparkplug")
    (bad,) = payloads.where("_malformed is not null").collect()
    assert bad["_malformed"] == "not Sparkplug B at byte 0"
    assert bytes(bad["_payload"]) == b'{"online": true}'
