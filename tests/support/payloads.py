"""Payload columns and field trees for tests of the payload parser; payloads that are nearly right.

Owns: payloads as the Arrow decoder hands them over, kinds of fields, what a parser says, JSON.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from typing import Any

from motelog.spark._arrow_py import ColumnBuffers
from motelog.spark._payload_nodes_py import NodeBuffers
from motelog.spark.payload_fields import Field, Kind, PayloadFormat, numbered

#: What a parser hands over: columns, and (row, reason) of malformed payloads.
Taken = tuple[list[NodeBuffers], list[tuple[int, str]]]

FIELDS = (
    Field("s", Kind.STRING),
    Field("b", Kind.BOOLEAN),
    Field("i8", Kind.BYTE),
    Field("i16", Kind.SHORT),
    Field("i32", Kind.INT),
    Field("i64", Kind.LONG),
    Field("f", Kind.FLOAT),
    Field("d", Kind.DOUBLE),
    Field("m", Kind.DECIMAL, (), 12, 3),
    Field("w", Kind.DECIMAL, (), 38, 0),
    Field("t", Kind.TIMESTAMP),
    Field("day", Kind.DATE),
    Field("pos", Kind.STRUCT, (Field("lat", Kind.DOUBLE), Field("\u00e9", Kind.STRING))),
    Field("list", Kind.LIST, (Field("element", Kind.INT),)),
    Field(
        "deep",
        Kind.LIST,
        (
            Field(
                "element",
                Kind.STRUCT,
                (Field("x", Kind.LIST, (Field("element", Kind.STRING),)), Field("y", Kind.BYTE)),
            ),
        ),
    ),
)
NODES = numbered(FIELDS)

#: Values as a payload has them, of every kind, at limits and beyond.
VALUES = (
    "null", "true", "false", "0", "-0", "1", "-1", "127", "128", "-128", "-129", "32767", "-32769",
    "2147483647", "2147483648", "9223372036854775807", "-9223372036854775808",
    "9223372036854775808", "99999999999999999999", "18446744073709551616", "1.0", "1e3", "1E-3",
    "0.1", "3.4028235e38", "3.4028236e38", "1.7976931348623157e308", "1e309", "-1e309", "5e-324",
    "2.2250738585072011e-308", "9007199254740993",
    "0.000000000000000000000000000123456789012345678",
    "123456789.123", "123456789.1230", "999999999.9995", "1e8", "1e9", "12345678901234567890e-10",
    "99999999999999999999999999999999999999", "100000000000000000000000000000000000000",
    "1e37", "1e38", "0e99999999999", "1e-99999999999", "1700000000000", "-62135596800001",
    "253402300799999", "253402300800000", "01", "1.", ".5", "+1", "1e", "-", "NaN", "Infinity",
    '""', '"a"', '"\u00e9\U0001f600"', '"\\u00e9\\n\\"\\/\\\\"', '"\\ud83d\\ude00"', '"\\ud83d"',
    '"\\ude00"', '"\\u12"', '"\\x"', '"\n"', '"', '"\x7f"',
    '"2026-11-21"', '"2024-02-29"', '"2023-02-29"', '"1900-02-29"', '"0000-01-01"', '"0001-01-01"',
    '"9999-12-31T23:59:59.999999999Z"', '"2026-11-21T03:00:00Z"', '"2026-11-21t03:00:00.5+01:30"',
    '"2026-11-21 03:00:00-23:59"', '"2026-11-21T24:00:00Z"', '"2026-11-21T03:00:60Z"',
    '"2026-11-21T03:00:00"', '"2026-11-21T03:00:00.Z"', '"2026-11-21T03:00:00+24:00"',
    '"2026-11-21T03:00:00.1234567890Z"', "[]", "[1]", "[1, null ,2]", "[1,]", "[,1]", "[", "]",
    "{}", '{"lat":1}', '{"lat":1,"lat":2}', '{"\\u00e9":"x","lat":null}', '{"x":["a",null]}',
    '[{"x":["a",null,"b"],"y":5},null,{"y":1}]', '[{"x":null},{"z":[{"q":[]}]}]', "{", "}", "{,}",
    "tru", "nul", "[" * 62 + "]" * 62, "[" * 70 + "]" * 70, "",
)  # fmt: skip
_SPACES = ("", "", "", " ", "\t\r\n")


def payload_column(payloads: Sequence[bytes | None]) -> ColumnBuffers:
    """Return payloads as ``RecordColumns.take`` gives them."""
    ends = array("i", [0])
    for payload in payloads:
        ends.append(ends[-1] + len(payload or b""))
    bits = bytearray((len(payloads) + 7) // 8)
    for i, payload in enumerate(payloads):
        bits[i >> 3] |= (payload is not None) << (i & 7)
    nulls = sum(payload is None for payload in payloads)
    data = b"".join(payload or b"" for payload in payloads)
    return nulls, [bytes(bits) if nulls else None, ends.tobytes(), data]


def answer(
    kernel: Any,
    payloads: Sequence[bytes | None],
    nodes: Any = NODES,
    *,
    payload_format: PayloadFormat = "json",
    row_values_max: int = 1 << 20,
    batch_values_max: int = 1 << 24,
) -> list[tuple[int, int, Taken]]:
    """Return everything that a parser says about the payloads, batch by batch."""
    parser = kernel.PayloadColumns(
        payload_format, nodes, row_values_max=row_values_max, batch_values_max=batch_values_max
    )
    column = payload_column(payloads)
    said: list[tuple[int, int, Taken]] = []
    at = 0
    while at < len(payloads):
        at = parser.parse(column, at, len(payloads))
        said.append((at, parser.rows, parser.take()))
    return said


def rows_of(
    payloads: Sequence[bytes | None], fields: Sequence[Field], payload_format: PayloadFormat
) -> list[dict[str, Any]]:
    """Return rows as Spark would get them."""
    from motelog.spark.batches import Batches
    from motelog.spark.layout import Beside

    made = Batches((*fields, *Beside), payload_format=payload_format)
    found: list[dict[str, Any]] = []
    for batch in made.made_of(len(payloads), [payload_column(payloads)]):
        batch.validate(full=True)
        found += batch.to_pylist()
    assert made.malformed == sum(row["_malformed"] is not None for row in found)
    return found


def random_payload(chance: random.Random) -> bytes:
    """Return an object with fields of the tree, mostly right, sometimes damaged."""
    items = []
    for _ in range(chance.randrange(6)):
        name = json.dumps(chance.choice([*(f.name for f in FIELDS), "other", "pos"]))
        if chance.random() < 0.1:
            name = name.replace("s", "\\u0073")
        items.append(f"{name}{chance.choice(_SPACES)}:{chance.choice(_SPACES)}")
        items[-1] += chance.choice(VALUES) + chance.choice(_SPACES)
    data = bytearray(f"{{{chance.choice(_SPACES)}{','.join(items)}}}".encode())
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.choice(b'"\\{}[],:-0e.tfn \x00\x1f\x7f\x80\xc3\xed\xf0\xff')
            case 1:
                del data[at:]
            case 2:
                del data[at : at + chance.randrange(1, 4)]
            case _:
                data[at:at] = chance.choice(VALUES).encode()
        if not data:
            break
    return bytes(data)
