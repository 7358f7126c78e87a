"""What a Sparkplug B payload of Google's encoder becomes, and a reason for each malformed one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the [spark] extra")
pytest.importorskip("google.protobuf", reason="needs the [spark] extra")

from motelog.spark.payload_fields import FieldTypeError, fields_of
from motelog.spark.sparkplug_fields import SPARKPLUG_FIELDS, check_sparkplug_fields
from tests.support.payloads import rows_of
from tests.support.sparkplug_payloads import sparkplug_messages, tagged

EMPTY: dict[str, Any] = {field.name: None for field in SPARKPLUG_FIELDS}
NO_METRICS = EMPTY | {"metrics": [], "_malformed": None, "_payload": None}
NO_VALUE: dict[str, Any] = {child.name: None for child in SPARKPLUG_FIELDS[-1].children[0].children}
TIME = dt.datetime(2026, 11, 21, 3, 0, 0, 5000, tzinfo=dt.UTC)
TIME_MS = 1_795_230_000_005


def encoded(**fields: Any) -> bytes:
    payload = sparkplug_messages()[0](**fields)
    return bytes(payload.SerializeToString())


def rows(*payloads: bytes | None) -> list[dict[str, Any]]:
    return rows_of(payloads, SPARKPLUG_FIELDS, "sparkplug")


def metric(**fields: Any) -> dict[str, Any]:
    """Return the one metric of a payload, without what is null in it."""
    (row,) = rows(encoded(metrics=[fields]))
    assert row["_malformed"] is None
    (found,) = row["metrics"]
    return {name: value for name, value in found.items() if value is not None}


def test_a_birth_is_one_row_with_its_metrics() -> None:
    level = {"name": "Tank/Level", "alias": 7, "datatype": 10, "double_value": 0.1}
    payload = encoded(
        timestamp=TIME_MS,
        seq=0,
        uuid="u",
        body=b"\xff",
        metrics=[
            level | {"timestamp": TIME_MS},
            {"name": "bdSeq", "datatype": 8, "long_value": 3},
        ],
    )
    assert rows(payload, encoded(timestamp=TIME_MS), b"") == [
        {
            "timestamp": TIME,
            "seq": 0,
            "uuid": "u",
            "body": b"\xff",
            "metrics": [
                NO_VALUE | level | {"timestamp": TIME},
                NO_VALUE | {"name": "bdSeq", "datatype": 8, "long_value": 3},
            ],
            "_malformed": None,
            "_payload": None,
        },
        NO_METRICS | {"timestamp": TIME},
        NO_METRICS,
    ]


@pytest.mark.parametrize(
    ("given", "column", "value"),
    [
        ({"datatype": 1, "int_value": 0xFFFFFF80}, "long_value", -128),
        ({"datatype": 1, "int_value": 0x80}, "long_value", -128),
        ({"datatype": 2, "int_value": 0xFFFFFFFF}, "long_value", -1),
        ({"datatype": 3, "int_value": 0x80000000}, "long_value", -(1 << 31)),
        ({"datatype": 7, "int_value": 0x80000000}, "long_value", 1 << 31),
        ({"int_value": 0xFFFFFFFF}, "long_value", 0xFFFFFFFF),
        ({"datatype": 4, "long_value": (1 << 64) - 5}, "long_value", -5),
        ({"datatype": 13, "long_value": TIME_MS}, "long_value", TIME_MS),
        ({"datatype": 9, "float_value": 0.5}, "double_value", 0.5),
        ({"datatype": 10, "double_value": float("-inf")}, "double_value", float("-inf")),
        ({"datatype": 11, "boolean_value": False}, "boolean_value", False),
        ({"datatype": 12, "string_value": "\u00e9"}, "string_value", "\u00e9"),
        ({"datatype": 17, "bytes_value": b"\xff\x00"}, "bytes_value", b"\xff\x00"),
        ({"is_historical": True}, "is_historical", True),
        ({"alias": (1 << 64) - 1}, "alias", -1),
    ],
)
def test_a_value_is_in_the_column_of_its_kind(
    given: dict[str, Any], column: str, value: Any
) -> None:
    expected = {column: value}
    if "datatype" in given:
        expected["datatype"] = given["datatype"]
    assert metric(**given) == expected


def test_a_data_set_is_kept_as_it_is_encoded() -> None:
    found = metric(datatype=16, dataset_value={"num_of_columns": 3})
    assert found == {"datatype": 16, "bytes_value": b"\x08\x03"}
    assert sparkplug_messages()[1].FromString(found["bytes_value"]).num_of_columns == 3


def test_a_null_has_no_value_whatever_is_sent_beside_it() -> None:
    assert metric(name="n", is_null=True, int_value=5, properties={"odd": 1}) == {"name": "n"}


def test_the_datatype_counts_wherever_it_stands() -> None:
    (row,) = rows(tagged(2, 2, tagged(10, 0, 0xFFFFFFFF) + tagged(4, 0, 3)))
    assert row["metrics"][0]["long_value"] == -1


def test_what_later_versions_may_add_is_left_out() -> None:
    extra = tagged(200, 0, 5) + tagged(201, 2, b"x") + tagged(202, 1, bytes(8))
    payload = extra + tagged(2, 2, extra + tagged(1, 2, b"n") + tagged(203, 5, bytes(4)))
    assert rows(payload) == [NO_METRICS | {"metrics": [NO_VALUE | {"name": "n"}]}]


GOOD = tagged(2, 2, tagged(1, 2, b"lost"))
MALFORMED = [
    (b'{"online":true}', "not Sparkplug B at byte 0"),
    (b"\x08", "not Sparkplug B: it ends too early, after 1 bytes"),
    (b"\x12\x05\x0a", "not Sparkplug B: it ends too early, after 3 bytes"),
    (GOOD + b"\x00", "not Sparkplug B at byte 8"),
    (GOOD + b"\x0d\x00\x00\x00\x00", "not Sparkplug B at byte 8"),
    (GOOD + b"\x08" + b"\xff" * 11, "not Sparkplug B at byte 9"),
    (tagged(2, 2, b"\x0a\x05abc") + b"\x18\x01", "not Sparkplug B at byte 7"),
    (tagged(2, 2, tagged(10, 0, 1) + tagged(11, 0, 1)), "not Sparkplug B at byte 4"),
    (tagged(2, 2, tagged(1, 2, b"\xff")), "text is not UTF-8 at byte 2"),
    (tagged(4, 2, b"\xff"), "text is not UTF-8 at byte 0"),
    (tagged(3, 0, 1) * 2, "seq: occurs twice, again at byte 2"),
    (tagged(2, 2, tagged(1, 2, b"a") * 2), "metrics[].name: occurs twice, again at byte 5"),
    (tagged(3, 0, 1 << 31), "seq: does not fit int at byte 0"),
    (tagged(1, 0, 1 << 60), "timestamp: does not fit timestamp at byte 0"),
    (None, "the message has no payload that can be read"),
]


def test_a_malformed_payload_keeps_its_row_and_says_why() -> None:
    good = encoded(timestamp=TIME_MS, metrics=[{"name": "n", "double_value": 2.5}])
    found = rows(good, *(payload for payload, _ in MALFORMED), good)
    for row, (payload, reason) in zip(found[1:-1], MALFORMED, strict=True):
        assert row == EMPTY | {"_malformed": reason, "_payload": payload}
    for row in (found[0], found[-1]):
        assert row == NO_METRICS | {
            "timestamp": TIME,
            "metrics": [NO_VALUE | {"name": "n", "double_value": 2.5}],
        }


def test_a_payload_of_empty_metrics_cannot_fill_memory() -> None:
    (row,) = rows(b"\x12\x00" * 200_000)
    assert row["_malformed"].startswith("too many values, the rest from byte ")


def test_a_schema_may_have_fewer_fields_and_other_order() -> None:
    names = {"type": "struct", "fields": [
        {"name": "double_value", "type": "double", "nullable": True},
        {"name": "name", "type": "string", "nullable": True},
    ]}  # fmt: skip
    schema = {"fields": [
        {"name": "metrics", "type": {"type": "array", "elementType": names, "containsNull": True},
         "nullable": True},
        {"name": "seq", "type": "integer", "nullable": True},
    ]}  # fmt: skip
    fields = fields_of(schema, "sparkplug")
    check_sparkplug_fields(fields)
    payload = encoded(seq=4, uuid="u", metrics=[{"name": "n", "alias": 3, "float_value": 0.5}])
    assert rows_of([payload], fields, "sparkplug") == [
        {
            "metrics": [{"double_value": 0.5, "name": "n"}],
            "seq": 4,
            "_malformed": None,
            "_payload": None,
        }
    ]
    only = fields_of({"fields": [schema["fields"][1]]}, "sparkplug")
    (row,) = rows_of([payload], only, "sparkplug")
    assert row["seq"] == 4


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("string", "seq is string; in Sparkplug B it is int"),
        ({"type": "array", "elementType": "string", "containsNull": True}, "seq is array<string>"),
    ],
)
def test_types_are_those_of_sparkplug(kind: Any, words: str) -> None:
    with pytest.raises(FieldTypeError, match=words):
        check_sparkplug_fields(
            fields_of({"fields": [{"name": "seq", "type": kind, "nullable": True}]}, "sparkplug")
        )
