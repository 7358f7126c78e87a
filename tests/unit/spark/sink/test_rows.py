"""What the columns of a row become in a message."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

import pyarrow as pa

from motelog.spark.errors import RowError
from motelog.spark.sink.options import SinkOptions
from motelog.spark.sink.rows import OutgoingRow, outgoing_rows


def one(options: SinkOptions = SinkOptions(), **columns: Any) -> OutgoingRow:  # noqa: B008 - frozen
    values = {"payload": b"x"} | columns
    maps = {"user_properties": pa.map_(pa.string(), pa.string())}
    arrays = [pa.array([value], maps.get(name)) for name, value in values.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(values))
    (row,) = outgoing_rows(batch, options)
    return row


def test_an_mqtt_topic_name_goes_where_the_gateway_puts_it() -> None:
    row = one(topic="alerts/dev7/high", key="a b")
    assert row == OutgoingRow(
        "alerts", b"x", "dev7", ("a", "b"), {"mqttRealTopic": "alerts/dev7/high"}, "dev7"
    )
    assert one(topic="alerts")[:3] == ("alerts", b"x", None)
    assert one(topic="alerts").selector == "alerts"
    assert one(topic="my home/dev7").topic == "MQTT_DEFAULT"
    assert one(topic="MQTT_SESSION/dev7").topic == "MQTT_DEFAULT"
    # The gateway may have rules of its own, which the user knows.
    assert one(SinkOptions(topic="meters"), topic="site/a/meter").topic == "meters"
    assert one(queue_topic="meters", topic="site/a/meter", device="m1")[:3] == (
        "meters",
        b"x",
        "m1",
    )


def test_a_native_row_needs_no_mqtt_name() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"x"]),
            pa.array(["d"]),
            pa.array([2]),
            pa.array(
                [[("site", "n"), ("TAGS", "z"), ("UNIQ_KEY", "7"), ("none", None)]],
                pa.map_(pa.string(), pa.string()),
            ),
        ],
        names=["payload", "device", "qos", "properties"],
    )
    # What a row of the source says of the message that was read is not said of the new one.
    assert list(outgoing_rows(batch, SinkOptions(topic="jobs"))) == [
        OutgoingRow("jobs", b"x", "d", (), {"site": "n", "qosLevel": "2"}, "d")
    ]


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        ("text", b"text"),
        (b"\xff", b"\xff"),
        ({"a": 1, "b": None, "c": [{"d": None}]}, b'{"a":1,"c":[{}]}'),
        ({"d": Decimal("1.50")}, b'{"d":1.50}'),
        ({"f": float("nan")}, b'{"f":"NaN"}'),
        ([1, 2], b"[1,2]"),
    ],
)
def test_a_payload_is_bytes_text_or_json(payload: Any, body: bytes) -> None:
    assert one(topic="a", payload=payload).body == body


def test_times_in_json_say_their_zone() -> None:
    when = datetime(2026, 11, 21, 3, tzinfo=UTC)
    assert json.loads(one(topic="a", payload={"t": when}).body) == {"t": "2026-11-21T03:00:00Z"}


def test_mqtt_5_properties_are_as_gateways_store_them() -> None:
    row = one(
        topic="a",
        content_type="text/plain",
        response_topic="answers/1",
        expiry_s=60,
        user_properties=[("k", "v")],
    )
    assert json.loads(row.properties["mqttProperties"]) == {
        "contentType": "text/plain",
        "responseTopic": "answers/1",
        "expiryS": 60,
        "user": [["k", "v"]],
    }


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"topic": "a/+"}, "expected an MQTT topic name"),
        ({"topic": "$SYS/x"}, "expected an MQTT topic name"),
        ({"topic": ""}, "expected an MQTT topic name"),
        ({"queue_topic": "a/b"}, "characters other than"),
        ({"topic": None}, "topic and queue_topic are null"),
        ({"topic": "a", "payload": None}, "payload is null"),
        ({"topic": "a", "qos": 3}, "qos is 3"),
        ({"topic": "a", "expiry_s": -1}, "expiry_s is -1"),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=f"row 0 of the partition: .*{why}"):
        one(**columns)
