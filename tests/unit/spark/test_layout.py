"""Which columns a query has, from its options and its schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the [spark] extra")

from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from motelog.spark.batches import arrow_schema
from motelog.spark.columns import Column
from motelog.spark.errors import OptionError
from motelog.spark.layout import Beside, layout_of, schema_of
from motelog.spark.options import SourceOptions, parse_options
from motelog.spark.payload_fields import Field, Kind

VALUE = t.StructField("value", t.DoubleType())
NESTED = t.StructType(
    [
        VALUE,
        t.StructField("a b", t.ArrayType(t.StructType([t.StructField("x`y", t.ByteType())]))),
        t.StructField("m", t.DecimalType(12, 3)),
        t.StructField("all", t.StructType([
            t.StructField(kind.typeName(), kind) for kind in (
                t.StringType(), t.BooleanType(), t.ShortType(), t.IntegerType(), t.LongType(),
                t.FloatType(), t.TimestampType(), t.DateType(),
            )
        ])),
    ]
)  # fmt: skip
ENDS = [t.StructField("_malformed", t.StringType()), t.StructField("_payload", t.BinaryType())]
DEVICE = t.StructField("device", t.StringType())


def options(**given: str) -> SourceOptions:
    return parse_options({"topic": "telemetry", "payloadFormat": "json", **given})


def layout(fields: list[t.StructField], **given: str) -> Any:
    return layout_of(t.StructType(fields).jsonValue(), options(**given))


def test_the_fields_stand_between_the_messages_columns_and_those_for_malformed_ones() -> None:
    given = options(columns="device", payloadSchema="value double")
    assert schema_of(given) == "device string, value double, _malformed string, _payload binary"
    found = layout([DEVICE, VALUE, *ENDS], columns="device", payloadSchema="value double")
    assert found == (Column.DEVICE, Field("value", Kind.DOUBLE), *Beside)


def test_a_schema_may_be_json() -> None:
    text = NESTED.json()
    ddl = schema_of(options(columns="device", payloadSchema=text))
    assert ddl == (
        "device string, `value` double, `a b` array<struct<`x``y`: tinyint>>, `m` decimal(12,3),"
        " `all` struct<`string`: string, `boolean`: boolean, `short`: smallint, `integer`: int,"
        " `long`: bigint, `float`: float, `timestamp`: timestamp, `date`: date>,"
        " _malformed string, _payload binary"
    )


def test_the_arrow_types_are_those_that_spark_derives() -> None:
    fields = [DEVICE, *NESTED.fields, *ENDS]
    assert arrow_schema(layout(fields)) == to_arrow_schema(t.StructType(fields), timezone="UTC")


def test_with_a_schema_of_ones_own_what_is_no_column_of_the_message_is_a_field() -> None:
    assert layout([VALUE, DEVICE, ENDS[0]]) == (
        Field("value", Kind.DOUBLE),
        Column.DEVICE,
        Beside.MALFORMED,
    )


def test_a_payloads_own_device_needs_the_messages_left_out() -> None:
    schema = "device string"
    key = t.StructField("key", t.StringType())
    found = layout([key, DEVICE, *ENDS], columns="key", payloadSchema=schema)
    assert found == (Column.KEY, Field("device", Kind.STRING), *Beside)
    with pytest.raises(OptionError, match="'device', expected names that do not occur yet"):
        layout([DEVICE, DEVICE, *ENDS], columns="device", payloadSchema=schema)


def test_the_messages_columns_come_without_the_payload_unless_named() -> None:
    given = options(payloadSchema="value double")
    assert Column.PAYLOAD not in given.columns
    assert Column.DEVICE in given.columns
    assert given.bad_payload == "null"
    assert options(columns="payload").columns == (Column.PAYLOAD,)
    assert options(badPayload="fail").bad_payload == "fail"


@pytest.mark.parametrize(
    ("given", "fields", "words"),
    [
        ({}, None, "option 'payloadSchema' is '', expected the fields of a payload"),
        ({"payloadSchema": "{"}, None, "expected DDL, or JSON in the format of StructType.json"),
        (
            {"payloadSchema": '{"fields": [3]}'},
            None,
            "expected DDL, or JSON in the format of StructType.json",
        ),
        (
            {"payloadSchema": json.dumps(t.StructType([ENDS[1]]).jsonValue())},
            None,
            "_payload is binary; a payload can have string",
        ),
        ({}, [t.StructField("v", t.DoubleType(), False)], "v is NOT NULL"),
        (
            {},
            [t.StructField("v", t.MapType(t.StringType(), t.DoubleType()))],
            "v is map; a payload can have string",
        ),
        ({}, [t.StructField("device", t.LongType())], "'device bigint', expected device string"),
        ({"payloadSchema": "v double"}, [VALUE], "only one of this and .schema"),
        ({}, [VALUE, t.StructField("VALUE", t.LongType())], "whatever their case"),
    ],
)
def test_what_cannot_be_used_is_said(
    given: dict[str, str], fields: list[t.StructField] | None, words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        schema_of(options(**given)) if fields is None else layout(fields, **given)


def test_messagepack_has_binary_fields() -> None:
    fields = t.StructType([t.StructField("raw", t.BinaryType())])
    given = options(payloadFormat="msgpack", columns="device", payloadSchema=fields.json())
    assert "`raw` binary" in schema_of(given)
    assert layout_of(fields.jsonValue(), options(payloadFormat="msgpack")) == (
        Field("raw", Kind.BINARY),
    )


def test_sparkplug_brings_its_fields() -> None:
    given = options(payloadFormat="sparkplug", columns="device")
    schema = schema_of(given)
    assert schema.startswith("device string, `timestamp` timestamp, `seq` int, `uuid` string,")
    assert schema.endswith("`bytes_value`: binary>>, _malformed string, _payload binary")
    some = "seq int, metrics array<struct<name: string, double_value: double>>"
    given = options(payloadFormat="sparkplug", columns="device", payloadSchema=some)
    assert schema_of(given) == f"device string, {some}, _malformed string, _payload binary"


def test_sparkplug_has_no_other_fields() -> None:
    given = options(payloadFormat="sparkplug")
    with pytest.raises(
        OptionError, match="value is not a field of Sparkplug B; the fields are timestamp,"
    ):
        layout_of(t.StructType([VALUE]).jsonValue(), given)
    metric = t.StructType([t.StructField("long_value", t.DoubleType())])
    fields = t.StructType([t.StructField("metrics", t.ArrayType(metric))])
    words = "metrics.long_value is double; in Sparkplug B it is bigint"
    with pytest.raises(OptionError, match=words):
        layout_of(fields.jsonValue(), given)


def test_a_schema_of_a_payload_needs_its_format() -> None:
    with pytest.raises(OptionError, match="option 'payloadFormat' with it"):
        parse_options({"topic": "telemetry", "payloadSchema": "value double"})
