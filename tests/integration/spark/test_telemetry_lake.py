"""The job telemetry-lake on a running stack: ids equal the set that was sent, once each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import paho.mqtt.publish as publish
import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import UNIQ_KEY, Message
from motelog.testing import MotelogProcess
from tests.integration.spark.conftest import forget_last_commit, stored

pytestmark = pytest.mark.spark

TOPIC = "spark_lake"


def message(n: int) -> Message:
    properties = {UNIQ_KEY: f"{n:032X}"} if n % 2 else None
    return Message(TOPIC, b"%d" % n, tags=f"dev{n % 5}", properties=properties)


def test_each_message_is_in_the_lake_once_over_a_crash(
    spark_session: Any,
    motelog_stack: MotelogProcess,
    producer: SyncProducer,
    namesrv: str,
    tmp_path: Path,
) -> None:
    from motelog.spark.report import read_report
    from motelog.spark.run import run

    conf = tmp_path / "lake.toml"
    conf.write_text(
        f'namesrv = "{namesrv}"\ntopic = "{TOPIC}"\noutput = "{tmp_path}/lake"\n'
        f'checkpoint = "{tmp_path}/checkpoint"\nonce = true\n'
    )
    producer.send_batch([message(n) for n in range(100)])
    # Sent again, since nobody had acknowledged them.
    producer.send_batch([message(n) for n in range(51, 100, 2)])
    assert run("telemetry-lake", [f"--conf={conf}"]) == 0
    forget_last_commit(tmp_path / "checkpoint")
    producer.send_batch([message(n) for n in range(99, 151)])
    host, port = motelog_stack.mqtt
    for n in range(151, 155):
        publish.single(f"{TOPIC}/dev9/temp", b"%d" % n, qos=1, hostname=host, port=port)
    assert run("telemetry-lake", [f"--conf={conf}"]) == 0

    rows = spark_session.read.parquet(str(tmp_path / "lake")).collect()
    ids = Counter(row["message_id"] for row in rows)
    assert set(ids.values()) == {1}
    messages = stored(namesrv, TOPIC)
    given = {one.message_id for one in messages if UNIQ_KEY in one.properties}
    places = {f"{one.queue_id}/{one.queue_offset}" for one in messages if one.device == "dev9"}
    assert given < set(ids)
    assert {one.split("/", 2)[2] for one in set(ids) - given} == places
    assert Counter(bytes(row["payload"]) for row in rows) == Counter(b"%d" % n for n in range(155))
    assert all(row["day"] == row["store_time"].date() for row in rows)
    days = {path.name for path in (tmp_path / "lake").glob("day=*")}
    assert days == {f"day={row['day']}" for row in rows}

    found = read_report(tmp_path / "checkpoint").as_json()
    assert (found["job"], found["topics"], found["runs"]) == ("telemetry-lake", [TOPIC], 2)
    # The batch that was repeated after the crash counts once.
    assert found["messages"] == len(messages)
    counted = Counter(one.device for one in messages)
    assert {one["device"]: one["messages"] for one in found["busiest"]} == counted
    assert found["devices"] >= 5
    assert 0 < found["delay_s"]["max"] < 300
