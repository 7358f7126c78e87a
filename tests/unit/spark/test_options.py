"""Options of the source: what is accepted, and complaints that name option, value, expectation."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from motelog.core.remoting.credentials import Credentials
from motelog.spark.columns import Column
from motelog.spark.errors import OptionError
from motelog.spark.options import AtOffsets, AtTime, SourceOptions, parse_options


def test_only_the_topic_is_needed() -> None:
    assert parse_options({"topic": "telemetry"}) == SourceOptions(topic=("telemetry",))


def test_every_option_is_read_whatever_the_case_of_its_name() -> None:
    offsets = '{"t": {"b/0": 3}}'
    assert parse_options(
        {
            "TOPIC": "t",
            "namesrv": " a:1 ; [::1]:2;",
            "group": "g",
            "columns": "payload, device",
            "startingoffsets": offsets,
            "endingOffsets": "LATEST",
            "maxoffsetspertrigger": "10",
            "minPartitions": "3",
            "maxRecordsPerPartition": "100",
            "failOnDataLoss": "False",
            "failOnMissingTopic": "false",
            "badPayload": "null",
            "payloadBytesMax": "5",
            "outageSecondsMax": "0",
            "batchRows": "7",
            "pullRecords": "8",
            "pullBytes": "2048",
            "prefetch": "4",
        }
    ) == SourceOptions(
        topic=("t",),
        namesrv="a:1;[::1]:2",
        group="g",
        columns=(Column.PAYLOAD, Column.DEVICE),
        starting_offsets=AtOffsets(offsets),
        ending_offsets="latest",
        max_offsets_per_trigger=10,
        min_partitions=3,
        max_records_per_partition=100,
        fail_on_data_loss=False,
        fail_on_missing_topic=False,
        bad_payload="null",
        payload_bytes_max=5,
        outage_seconds_max=0,
        batch_rows=7,
        pull_records=8,
        pull_bytes=2048,
        prefetch=4,
    )


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
        ("2023-11-14", 1_699_920_000_000),
        ("0", 0),
        ("-1h", 1_699_996_400_000),
        ("2d ago", 1_699_827_200_000),
    ],
)
def test_a_start_may_be_a_time(
    text: str, timestamp_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    options = parse_options({"topic": "t", "startingOffsets": text})
    assert options.starting_offsets == AtTime(timestamp_ms)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "option 'topic' is '', expected the queue topic to read.*CREATE TEMPORARY VIEW"),
        ({"group": "g", "topic": ""}, "option 'topic' is '', expected queue topics, separated"),
        ({"topic": "t,,u"}, "option 'topic' is 't,,u', expected queue topics, separated by ','"),
        ({"topic": "t, a/b"}, "option 'topic' is 'a/b', expected queue topics.* each of 1 to 127"),
        (
            {"paths": '["t", "u"]'},
            r"give several topics as one text, such as load\('alerts,telemetry",
        ),
        ({"startingOffsets": "committed"}, "expected option 'group' with it"),
        ({"group": "g", "endingOffsets": "committed"}, "'endingOffsets' is 'committed'"),
        ({"namesrv": "host"}, "option 'namesrv' is 'host', expected HOST:PORT"),
        ({"namesrv": ";"}, "option 'namesrv' is ';', expected HOST:PORT"),
        ({"columns": "payload,devise"}, "option 'columns' is 'devise', expected columns among top"),
        ({"columns": "key,key"}, "option 'columns' is 'key', expected each column once"),
        ({"credentials": "/no/such.yml"}, r"tools.yml \(/no/such.yml: cannot read: No such file"),
        ({"columns": ","}, "option 'columns' is '', expected at least one column"),
        ({"startingOffsets": "soon"}, "option 'startingOffsets' is 'soon', expected 'earliest'"),
        ({"startingOffsets": "2026-11-21T03:00:00"}, "a time with its offset such as"),
        (
            {"startingOffsets": '{"u": {}}'},
            r"expected offsets by queue \(the offsets are also of \['u'\]",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "option 'maxOffsetsPerTrigger' is '0', expected a whole"),
        ({"maxOffsetsPerTrigger": "9" * 9999}, "expected a whole number from 1 to"),
        ({"maxOffsetsPerTriger": "1"}, "did you mean 'maxOffsetsPerTrigger'?"),
        ({"path": "/x"}, "option 'topic' is '/x', expected one value; 't' is also given"),
        ({"startingOffsets": "1700000000"}, "since 1970; as seconds it would be '1700000000000'"),
        ({"startingOffsets": "17"}, "milliseconds since 1970; 'earliest' is the start"),
        ({"startingOffsets": "2026-13-01"}, "a date .UTC."),
        ({"subscribe": "t"}, "no option of Spark's Kafka source: use 'topic' here"),
        ({"kafka.bootstrap.servers": "a:1"}, "Kafka source: use 'namesrv' here"),
        (
            {"topicPattern": "t.*"},
            "'topicPattern' is 't.*', expected only one of this and option 'topic'",
        ),
        ({"subscribePattern": "t.*"}, "Kafka source: use 'topicPattern' here"),
        ({"failOnDataLoss": "no"}, "option 'failOnDataLoss' is 'no', expected 'true' or 'false'"),
        (
            {"payloadFormat": "avro"},
            "option 'payloadFormat' is 'avro', expected 'json' or 'msgpack' or 'sparkplug'",
        ),
        (
            {"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"},
            "option 'maxBytesPerTrigger' is '1', expected only one limit",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(
    given: dict[str, str], complaint: str
) -> None:
    options = given if not given or "topic" in given else {"topic": "t"} | given
    with pytest.raises(OptionError, match=complaint):
        parse_options(options)


def test_a_table_and_a_path_name_the_topic() -> None:
    assert parse_options({"path": "telemetry"}).topic == ("telemetry",)
    table = {"provider": "motelog", "owner": "", "option.topic": "t"}
    assert parse_options(table).topic == ("t",)
    assert parse_options({"path": "t", "topic": "t"}).topic == ("t",)


def test_topics_are_named_or_match() -> None:
    named = parse_options({"topic": " b, a,b"}).topics
    assert (str(named), "a" in named, "c" in named) == ("topics 'b', 'a'", True, False)
    matching = parse_options({"topicPattern": "site-[0-9]+"}).topics
    assert ("site-7" in matching, "my-site-7" in matching, "site-" in matching) == (
        True,
        False,
        False,
    )
    assert str(matching) == "topics that match 'site-[0-9]+'"
    with pytest.raises(OptionError, match="a Python regular expression"):
        parse_options({"topicPattern": "site-("})


@pytest.mark.parametrize(
    ("mqtt_filter", "read", "not_read"),
    [
        ("telemetry/+/temp", {"telemetry", "MQTT_DEFAULT"}, {"telemetry2", "alerts"}),
        ("a.b/#", {"MQTT_DEFAULT"}, {"a.b", "aXb"}),
        ("+/temp", {"telemetry", "alerts", "MQTT_DEFAULT"}, set()),
        ("#", {"telemetry", "alerts", "MQTT_DEFAULT"}, set()),
    ],
)
def test_an_mqtt_filter_alone_chooses_the_topics(
    mqtt_filter: str, read: set[str], not_read: set[str]
) -> None:
    topics = parse_options({"mqttFilter": mqtt_filter}).topics
    assert set(topics.among([*read, *not_read])) == read
    assert str(topics) == f"topics of the MQTT filter {mqtt_filter!r}"
    named = parse_options({"mqttFilter": mqtt_filter, "topic": "t"}).topics
    assert str(named) == "topic 't'"


def test_properties_are_read_when_they_are_named() -> None:
    by_default = parse_options({"topic": "t"}).columns
    assert Column.PROPERTIES not in by_default
    assert parse_options({"topic": "t", "columns": "All"}).columns == tuple(Column)
    assert by_default == tuple(column for column in Column if column < Column.PROPERTIES)


def test_credentials_are_read_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: spark-reader\nsecretKey: planted-secret\n")
    options = parse_options({"topic": "t", "credentials": str(file)})
    assert options.credentials == Credentials("spark-reader", "planted-secret")
    assert options.endpoint[2] == options.credentials
    assert "planted" not in f"{options!r} {options.endpoint!r}"
    # The tasks get them with the options.
    assert pickle.loads(pickle.dumps(options)) == options
