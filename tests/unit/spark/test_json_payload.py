"""What a JSON payload becomes: values by type, and a reason for each that is malformed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from motelog.spark import _payload_columns_py, batches, payload_columns
from motelog.spark.columns import Column
from motelog.spark.layout import Beside
from motelog.spark.payload_fields import Field, Kind, PayloadFormat, numbered
from tests.support.payloads import FIELDS, answer, payload_column
from tests.support.payloads import rows_of as payload_rows

parsers = pytest.mark.parametrize(
    "parser",
    [payload_columns.PayloadColumns, _payload_columns_py.PayloadColumns],
    ids=["chosen", "reference"],
)
EMPTY = {field.name: None for field in FIELDS}


@pytest.fixture
def rows_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function: payloads -> rows as Spark would get them."""
    parser = request.getfixturevalue("parser")
    monkeypatch.setattr(batches, "PayloadColumns", parser)

    def rows(payloads: list[bytes | None]) -> list[dict[str, Any]]:
        made = batches.Batches((*FIELDS, *Beside), payload_format="json")
        assert made.columns == (Column.PAYLOAD,)
        return payload_rows(payloads, FIELDS, "json")

    return rows


@parsers
def test_each_type_takes_its_value(parser: Any, rows_of: Any) -> None:
    payload = (
        '{"s": "a\\u00e9\\ud83d\\ude00", "b": true, "i8": -128, "i16": 32767, "i32": -1, "i64": 9,'
        ' "f": 0.5, "d": -1.25e-3, "m": 12.5, "w": 99999999999999999999999999999999999999,'
        ' "t": "2026-11-21T03:00:00.25+01:00", "day": "2026-11-21",'
        ' "pos": {"lat": 1, "\u00e9": ""},'
        ' "list": [1, null, 3], "deep": [{"x": ["p", null], "y": 1}, null, {}],'
        ' "of no field": [{"s": 1e999}]}'
    ).encode()
    (row,) = rows_of([payload])
    assert row == {
        "s": "a\u00e9\U0001f600",
        "b": True,
        "i8": -128,
        "i16": 32767,
        "i32": -1,
        "i64": 9,
        "f": 0.5,
        "d": -0.00125,
        "m": Decimal("12.500"),
        "w": Decimal("9" * 38),
        "t": dt.datetime(2026, 11, 21, 2, 0, 0, 250_000, tzinfo=dt.UTC),
        "day": dt.date(2026, 11, 21),
        "pos": {"lat": 1.0, "\u00e9": ""},
        "list": [1, None, 3],
        "deep": [{"x": ["p", None], "y": 1}, None, {"x": None, "y": None}],
        "_malformed": None,
        "_payload": None,
    }


@parsers
def test_what_is_missing_or_null_is_null(parser: Any, rows_of: Any) -> None:
    good = {"_malformed": None, "_payload": None}
    rows = rows_of([b"{}", b'{"pos": null, "list": null}', b'{"pos": {}, "t": 1500}'])
    assert rows[:2] == [EMPTY | good] * 2
    time = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)
    assert rows[2] == EMPTY | good | {"pos": {"lat": None, "\u00e9": None}, "t": time}


MALFORMED = [
    (b"", "not JSON: it ends too early, after 0 bytes"),
    (b'{"i32": 1', "not JSON: it ends too early, after 9 bytes"),
    (b'{"i32": 1}}', "not JSON at byte 10"),
    (b'{"i32": 1,}', "not JSON at byte 10"),
    (b"\x00\x01", "not JSON at byte 0"),
    (b'{"s": "\xff"}', "text is not UTF-8 at byte 7"),
    (b'{"s": "\\ud800"}', "not JSON at byte 7"),
    (b"[1]", "expected an object at byte 0"),
    (b"null", "expected an object at byte 0"),
    (b'{"d": "1"}', "d: expected a number at byte 6"),
    (b'{"s": 1}', "s: expected a string at byte 6"),
    (b'{"i32": 1.0}', "i32: expected a whole number at byte 8"),
    (b'{"i32": 2147483648}', "i32: does not fit int at byte 8"),
    (b'{"d": 1e309}', "d: does not fit double at byte 6"),
    (b'{"m": 1.2345}', "m: does not fit decimal(12,3) at byte 6"),
    (b'{"pos": {"lat": "x"}}', "pos.lat: expected a number at byte 16"),
    (b'{"deep": [{"x": [1]}]}', "deep[].x[]: expected a string at byte 17"),
    (b'{"s": "a", "s": "b"}', "s: occurs twice, again at byte 11"),
    (b'{"day": "2026-02-30"}', "day: expected a date such as 2026-11-21 at byte 8"),
    (
        b'{"t": "2026-11-21T03:00:00"}',
        "t: expected a time with its offset such as 2026-11-21T03:00:00Z, or milliseconds"
        " at byte 6",
    ),
    (b'{"u": ' + b"[" * 70, "nested deeper than 64 at byte 69"),
    (None, "the message has no payload that can be read"),
]


@parsers
def test_a_malformed_payload_keeps_its_row_and_says_why(parser: Any, rows_of: Any) -> None:
    good = b'{"i32": 7, "list": [7], "deep": [{"x": ["7"]}], "s": "seven"}'
    wrong = b'{"deep": [{"x": ["lost"], "y": 1}], "list": [1, 2], "s": "lost", "i32": "?"}'
    payloads = [good, wrong, *(payload for payload, _ in MALFORMED), good]
    rows = rows_of(payloads)
    assert len(rows) == len(payloads)
    for row, (payload, reason) in zip(rows[2:-1], MALFORMED, strict=True):
        assert row == EMPTY | {"_malformed": reason, "_payload": payload}
    assert rows[1] == EMPTY | {
        "_malformed": f"i32: expected a whole number at byte {wrong.index(b'?') - 1}",
        "_payload": wrong,
    }
    for row in (rows[0], rows[-1]):
        assert (row["i32"], row["list"], row["s"]) == (7, [7], "seven")
        assert row["deep"] == [{"x": ["7"], "y": None}]


@parsers
def test_an_array_of_empty_objects_cannot_fill_memory(
    parser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        PayloadColumns = parser

    payload = b'{"deep": [' + b",".join([b"{}"] * 50) + b"]}"
    ((_, _, (_, faults)),) = answer(Kernel, [payload], row_values_max=100)
    assert faults == [(0, "too many values, the rest from byte 111 on")]
    rows = [payload] * 7
    said = answer(Kernel, rows, batch_values_max=300)
    assert [stopped for stopped, _, _ in said] == [2, 4, 6, 7]


def test_batches_are_cut_where_payloads_have_very_many_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def small(payload_format: PayloadFormat, nodes: Any) -> Any:
        return payload_columns.PayloadColumns(payload_format, nodes, batch_values_max=4)

    monkeypatch.setattr(batches, "PayloadColumns", small)
    layout = (Column.PAYLOAD, Field("n", Kind.INT), *Beside)
    payloads: list[bytes | None] = [b'{"n": %d}' % n for n in range(9)]
    payloads[5] = b"?"
    found = list(
        batches.Batches(layout, payload_format="json").made_of(9, [payload_column(payloads)])
    )
    assert [batch.num_rows for batch in found] == [2, 2, 2, 2, 1]
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4, None, 6, 7, 8]
    assert [row["payload"] for row in rows] == payloads
    assert [row["_payload"] for row in rows] == [None] * 5 + [b"?"] + [None] * 3


def test_offsets_that_lead_out_of_the_payloads_are_refused() -> None:
    parser = payload_columns.PayloadColumns("json", [numbered([])[0]])
    with pytest.raises(ValueError, match="rows"):
        parser.parse((0, [None, bytes(8), b""]), 0, 2)
    with pytest.raises(ValueError, match="offsets"):
        parser.parse((0, [None, bytes(4) + b"\x09\0\0\0", b"{}"]), 0, 1)
