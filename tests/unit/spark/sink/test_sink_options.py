"""Options and columns of the sink: what is wrong is said when Spark plans, in one sentence."""

from __future__ import annotations

import pytest

from motelog.spark.errors import ColumnError, OptionError
from motelog.spark.sink.options import SinkOptions, check_columns, parse_sink_options

PAYLOAD = ("payload", "binary")


def test_options_are_those_of_the_source_and_the_sinks_own() -> None:
    given = {
        "Topic": "alerts",
        "namesrv": "h:1;i:2",
        "leaseseconds": "5",
        "checkpointlocation": "x",
    }
    options = parse_sink_options(given, is_stream=True)
    assert options.topic == "alerts"
    assert options.endpoint == ("h:1;i:2", "motelog-spark-sink", None, None)
    assert options.lease_s == 5
    assert parse_sink_options({"path": "alerts"}, is_stream=True).topic == "alerts"
    assert parse_sink_options({}, is_stream=False) == SinkOptions()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"leaseSecond": "5"}, "did you mean 'leaseSeconds'"),
        ({"columns": "payload"}, "no such option for writing"),
        ({"leaseSeconds": "2"}, "from 3 to 600"),
        ({"ledgerTopic": "a/b"}, "'ledgerTopic' is 'a/b'"),
        ({"defaultTopic": "%x"}, "'defaultTopic' is '%x'"),
        ({"topic": "a/b"}, "a queue topic"),
        ({"topic": "a,b"}, "option 'topic' is 'a,b', expected a queue topic"),
        ({"namesrv": "h"}, "HOST:PORT"),
        ({"writeId": "x"}, "writeId is for batches"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        parse_sink_options(given, is_stream=True)


def test_columns_that_messages_have_are_taken() -> None:
    columns = [
        ("topic", "string"),
        ("payload", "struct<value:double>"),
        ("qos", "int"),
        ("properties", "map<string,string>"),
    ]
    check_columns(columns, SinkOptions())
    check_columns([PAYLOAD], SinkOptions(topic="t"))
    check_columns([PAYLOAD, ("queue_topic", "string")], SinkOptions())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([("topic", "string")], "no column 'payload'"),
        ([PAYLOAD], "the rows have no topic"),
        ([PAYLOAD, ("topic", "int")], "column 'topic' is int, expected string"),
        ([("payload", "double"), ("topic", "string")], "'payload' is double, expected binary"),
        ([PAYLOAD, ("value", "string")], "use 'payload'"),
        ([PAYLOAD, ("retain", "boolean")], "cannot retain messages"),
        ([PAYLOAD, ("queue_offset", "bigint")], "drop it"),
        ([PAYLOAD, ("devcie", "string")], "did you mean 'device'"),
        ([PAYLOAD, PAYLOAD], "two columns 'payload'"),
    ],
)
def test_columns_that_messages_do_not_have_are_named(
    columns: list[tuple[str, str]], why: str
) -> None:
    with pytest.raises(ColumnError, match=why):
        check_columns(columns, SinkOptions())
