"""The Arrow decoder's rows, through pyarrow; run on the kernel and on its reference."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from motelog.core.errors import RecordError
from motelog.core.message import SYS_FLAG_COMPRESSED
from motelog.spark import _arrow_py, arrow
from motelog.spark.columns import DECODED, Column
from tests.support.spark_records import MAGIC_V2, Record, property_text, telemetry

pytest.importorskip("pyarrow", reason="needs the [spark] extra")
from motelog.spark.batches import Batches, arrow_schema

ALL = tuple(Column)
# Both are tried; they are the same class where the kernel was left out at build.
kernels = pytest.mark.parametrize("kernel", [arrow.RecordColumns, _arrow_py.RecordColumns])


def rows(kernel: Any, *records: Record, columns: tuple[Column, ...] = ALL, **options: Any) -> Any:
    arguments = {"broker": "b", "offset_begin": 0, "offset_end": 100, "payload_bytes_max": 1000}
    batches = Batches(columns)
    decoder = kernel(batches.columns, **(arguments | options))
    data = b"".join(record.encode() for record in records)
    assert decoder.append(data, 0, rows_max=1000, bytes_max=1 << 20) == len(data)
    count = decoder.rows
    (batch,) = batches.made_of(count, decoder.take())
    batch.validate(full=True)
    assert batch.schema == arrow_schema(columns)
    return batch.to_pylist()


@kernels
def test_a_telemetry_message_becomes_one_row(kernel: Any) -> None:
    born = datetime(2026, 11, 21, 3, 0, 0, 123_000, tzinfo=UTC)
    stored = born + timedelta(milliseconds=3)
    record = telemetry(7, "dev42", 21.5, store_ms=round(stored.timestamp() * 1000))
    assert rows(kernel, record) == [
        {
            "topic": "telemetry/dev42/temp",
            "queue_topic": "telemetry",
            "device": "dev42",
            "key": "k7",
            "payload": b'{"value": 21.5}',
            "store_time": stored,
            "born_time": born,
            "broker": "b",
            "queue_id": 0,
            "queue_offset": 7,
            "properties": [
                ("TAGS", "dev42"),
                ("KEYS", "k7"),
                ("mqttRealTopic", "telemetry/dev42/temp"),
            ],
            "qos": None,
            "retain": None,
            "client_id": None,
            "mqtt_properties": None,
            "content_type": None,
            "response_topic": None,
        }
    ]


MQTT_COLUMNS = (
    Column.CONTENT_TYPE,
    Column.CLIENT_ID,
    Column.QOS,
    Column.RETAIN,
    Column.RESPONSE_TOPIC,
)


@kernels
def test_what_an_mqtt_publisher_gave_has_columns(kernel: Any) -> None:
    text = json.dumps({"contentType": "text/\u00e9", "responseTopic": "r/1", "user": [["a", "b"]]})
    published = [
        {"qosLevel": "1", "clientId": "c1", "mqttRetain": "1", "mqttProperties": text},
        {"TAGS": "native"},
        {"qosLevel": "0", "clientId": "c2", "mqttProperties": '{"responseTopic":"r/2"}'},
        {"qosLevel": "2"},
    ]
    records = [
        Record(queue_offset=at, properties=property_text(properties))
        for at, properties in enumerate(published)
    ]
    got = rows(kernel, *records, columns=MQTT_COLUMNS)
    assert [tuple(row.values()) for row in got] == [
        ("text/\u00e9", "c1", 1, True, "r/1"),
        (None, None, None, None, None),
        (None, "c2", 0, False, "r/2"),
        (None, None, 2, False, None),
    ]
    assert [row["content_type"] for row in rows(kernel, *records, columns=MQTT_COLUMNS[:1])] == [
        "text/\u00e9",
        None,
        None,
        None,
    ]
    (row, *_) = rows(kernel, *records, columns=(Column.MQTT_PROPERTIES, Column.RETAIN))
    assert row == {"mqtt_properties": text, "retain": True}


@kernels
@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", '{"contentType":1}', '{"contentType":"a","contentType":"b"}']
)
def test_what_a_native_producer_wrote_there_is_null(kernel: Any, text: str) -> None:
    properties = {"qosLevel": "3", "mqttRetain": "1", "mqttProperties": text}
    record = Record(properties=property_text(properties))
    assert rows(kernel, record, columns=MQTT_COLUMNS) == [
        dict.fromkeys(column.label for column in MQTT_COLUMNS)
    ]


@kernels
@pytest.mark.parametrize("column", [Column.CONTENT_TYPE, Column.RESPONSE_TOPIC, 17, -1])
def test_decoder_refuses_columns_that_are_not_its_own(kernel: Any, column: int) -> None:
    with pytest.raises(ValueError, match=f"{int(column)} is not a column that is decoded"):
        kernel([column], broker="b", offset_begin=0, offset_end=1, payload_bytes_max=1)


@kernels
def test_topic_without_an_mqtt_name_is_queue_topic_and_tag(kernel: Any) -> None:
    tagged = Record(queue_offset=1, properties=property_text({"TAGS": "t"}))
    bare = Record(queue_offset=2)
    got = rows(kernel, tagged, bare, columns=(Column.TOPIC, Column.DEVICE))
    assert got == [
        {"topic": "telemetry/t", "device": "t"},
        {"topic": "telemetry", "device": None},
    ]


@kernels
def test_rows_outside_the_range_and_repeated_rows_are_skipped(kernel: Any) -> None:
    records = [Record(queue_offset=n) for n in (3, 4, 5, 5, 4, 6, 7, 8)]
    got = rows(kernel, *records, columns=(Column.QUEUE_OFFSET,), offset_begin=4, offset_end=7)
    assert [row["queue_offset"] for row in got] == [4, 5, 6]


@kernels
def test_append_stops_at_the_row_limit_and_goes_on(kernel: Any) -> None:
    data = b"".join(Record(queue_offset=n).encode() for n in range(5))
    decoder = kernel(
        (Column.QUEUE_OFFSET,), broker="b", offset_begin=0, offset_end=9, payload_bytes_max=9
    )
    taken = []
    position = 0
    while position < len(data):
        position = decoder.append(data, position, rows_max=2, bytes_max=1 << 20)
        taken.append(decoder.rows)
        decoder.take()
    assert taken == [2, 2, 1]
    assert decoder.next_offset == 5


@kernels
def test_append_stops_when_enough_bytes_are_held(kernel: Any) -> None:
    data = b"".join(Record(queue_offset=n, body=bytes(100)).encode() for n in range(5))
    decoder = kernel(
        (Column.PAYLOAD,), broker="b", offset_begin=0, offset_end=9, payload_bytes_max=9
    )
    decoder.append(data, 0, rows_max=100, bytes_max=150)
    assert (decoder.rows, decoder.data_bytes) == (2, 200)


@kernels
def test_a_compressed_payload_is_inflated(kernel: Any) -> None:
    body = b"x" * 500
    record = Record(body=zlib.compress(body), sys_flag=SYS_FLAG_COMPRESSED)
    assert rows(kernel, record, columns=(Column.PAYLOAD,)) == [{"payload": body}]


@kernels
@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            Record(body=zlib.compress(bytes(1001)), sys_flag=SYS_FLAG_COMPRESSED),
            "inflates to more than 1000 bytes",
        ),
        (Record(body=zlib.compress(b"abc")[:-1], sys_flag=SYS_FLAG_COMPRESSED), "it is cut short"),
        (Record(body=b"abc", sys_flag=SYS_FLAG_COMPRESSED), "cannot be inflated"),
        (Record(body=b"abc", sys_flag=SYS_FLAG_COMPRESSED | 0x200), "compressed with ZSTD"),
    ],
)
def test_a_payload_that_cannot_be_inflated_is_an_error_or_null(
    kernel: Any, record: Record, expected: str
) -> None:
    record = replace(record, queue_offset=11)
    with pytest.raises(RecordError, match=f"payload at queue offset 11 .*{expected}"):
        rows(kernel, record)
    assert rows(kernel, record, columns=(Column.PAYLOAD,), bad_payload_null=True) == [
        {"payload": None}
    ]
    assert rows(kernel, record, columns=(Column.QUEUE_OFFSET,)) == [{"queue_offset": 11}]


@kernels
def test_times_that_spark_cannot_show_are_null(kernel: Any) -> None:
    record = Record(store_ms=-1, born_ms=1 << 62)
    assert rows(kernel, record, columns=(Column.STORE_TIME, Column.BORN_TIME)) == [
        {"store_time": None, "born_time": None}
    ]


@kernels
@pytest.mark.parametrize("count", [3, 16, 17, 300])
def test_a_property_given_twice_keeps_its_place_and_its_last_value(kernel: Any, count: int) -> None:
    text = "".join(f"n{i % (count - 1)}\x01v{i}\x02" for i in range(count))
    (row,) = rows(kernel, Record(properties=text.encode()), columns=(Column.PROPERTIES,))
    expected = {f"n{i % (count - 1)}": f"v{i}" for i in range(count)}
    assert row["properties"] == list(expected.items())


@kernels
def test_text_that_is_not_utf8_gets_replacement_characters(kernel: Any) -> None:
    text = b"TAGS\x01a\xe2\x82\x02b\xff\x01\xed\xa0\x80\x02"
    columns = (Column.DEVICE, Column.PROPERTIES, Column.QUEUE_TOPIC)
    (row,) = rows(kernel, Record(properties=text, topic=b"t\xf0\x9f"), columns=columns)
    assert row == {
        "device": "a\ufffd",
        "properties": [("TAGS", "a\ufffd"), ("b\ufffd", "\ufffd\ufffd\ufffd")],
        "queue_topic": "t\ufffd",
    }


@kernels
def test_long_topics_and_ipv6_hosts_are_read(kernel: Any) -> None:
    record = Record(magic=MAGIC_V2, topic=b"t" * 255, sys_flag=0x30)
    columns = (Column.QUEUE_TOPIC, Column.STORE_TIME, Column.PAYLOAD)
    (row,) = rows(kernel, record, columns=columns)
    assert row["queue_topic"] == "t" * 255
    assert row["payload"] == b"{}"
    assert row["store_time"] == datetime.fromtimestamp(1_700_000_000.5, UTC)


@kernels
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:-1], "size of a record is impossible"),
        (lambda data: data[:90], "size of a record is impossible"),
        (lambda data: data[:4] + b"\xcb\xd4\x31\x94" + data[8:], "magic number is wrong"),
        (lambda data: b"\x00\x00\x00\x5c" + data[4:], "do not add up"),
        (lambda data: data[:84] + b"\x7f\xff\xff\xff" + data[88:], "do not add up"),
        (lambda data: data[:84] + b"\x80\x00\x00\x00" + data[88:], "do not add up"),
        (lambda data: data[:87] + b"\x01" + data[88:], "do not add up"),
        (
            lambda data: (len(data) + 1).to_bytes(4, "big") + data[4:] + b"\0",
            "do not add up",
        ),
    ],
)
def test_damaged_records_are_named_and_the_rows_before_them_stay(
    kernel: Any, change: Any, expected: str
) -> None:
    good = Record(queue_offset=0).encode()
    bad = change(Record(queue_offset=1).encode())
    decoder = kernel(DECODED, broker="b", offset_begin=0, offset_end=9, payload_bytes_max=9)
    with pytest.raises(RecordError, match=expected) as caught:
        decoder.append(good + bad, 0, rows_max=10, bytes_max=1 << 20)
    assert caught.value.offset_bytes == len(good)
    assert decoder.rows == 1


@kernels
def test_arguments_out_of_range_are_refused(kernel: Any) -> None:
    arguments: dict[str, Any] = {"broker": "b", "offset_begin": 0, "offset_end": 9}
    with pytest.raises(ValueError, match="payload_bytes_max 0"):
        kernel(DECODED, payload_bytes_max=0, **arguments)
    with pytest.raises(ValueError, match="not a column that is decoded"):
        kernel((len(DECODED),), payload_bytes_max=9, **arguments)
    with pytest.raises(ValueError, match="asked for twice"):
        kernel((1, 1), payload_bytes_max=9, **arguments)
    decoder = kernel(DECODED, payload_bytes_max=9, **arguments)
    with pytest.raises(ValueError, match="begin 1 not in"):
        decoder.append(b"", 1, rows_max=1, bytes_max=1)
    with pytest.raises(ValueError, match="bytes_max above"):
        decoder.append(b"", 0, rows_max=1, bytes_max=1 << 30)


def test_a_batch_outlives_its_decoder() -> None:
    decoder = arrow.RecordColumns(
        DECODED, broker="b", offset_begin=0, offset_end=9, payload_bytes_max=9
    )
    decoder.append(telemetry(0).encode(), 0, rows_max=1, bytes_max=1 << 20)
    (batch,) = Batches(DECODED).made_of(1, decoder.take())
    decoder.append(telemetry(1).encode() * 1, 0, rows_max=1, bytes_max=1 << 20)
    del decoder
    assert batch.to_pylist()[0]["key"] == "k0"
