"""The compiled payload parser answers like its reference, and takes what other libraries take."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.spark import _payload_columns, _payload_columns_py
from motelog.spark.payload_fields import Field, Kind, Node, numbered
from motelog.spark.sparkplug_fields import SPARKPLUG_FIELDS
from tests.support.msgpack_payloads import (
    MSGPACK_FIELDS,
    MSGPACK_NODES,
    MSGPACK_VALUES,
    random_msgpack,
    text,
)
from tests.support.payloads import FIELDS, VALUES, answer, random_payload, rows_of
from tests.support.sparkplug_payloads import (
    ODD_NODES,
    SPARKPLUG_NODES,
    random_sparkplug,
    sparkplug_messages,
)

payloads = st.integers(0, 2**32).map(lambda seed: random_payload(random.Random(seed)))


msgpacks = st.integers(0, 2**32).map(lambda seed: random_msgpack(random.Random(seed)))
sparkplugs = st.integers(0, 2**32).map(lambda seed: random_sparkplug(random.Random(seed)))


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.one_of(payloads, payloads, st.binary(max_size=20), st.none()), max_size=8),
    limits=st.tuples(st.sampled_from([3, 1 << 20]), st.sampled_from([20, 1 << 24])),
)
def test_compiled_json_is_answered_like_the_reference(
    rows: list[bytes | None], limits: tuple[int, int]
) -> None:
    row_values_max, batch_values_max = limits
    said, meant = (
        answer(kernel, rows, row_values_max=row_values_max, batch_values_max=batch_values_max)
        for kernel in (_payload_columns, _payload_columns_py)
    )
    assert said == meant


def test_every_value_in_every_field_is_answered_alike() -> None:
    rows = [
        f'{{"{field.name}": {value}}}'.encode("utf-8", "surrogatepass")
        for field in FIELDS
        for value in VALUES
    ]
    assert answer(_payload_columns, rows) == answer(_payload_columns_py, rows)


@settings(max_examples=300)
@given(number=st.floats(allow_nan=False, allow_infinity=False), digits=st.integers(1, 25))
def test_numbers_are_rounded_as_python_rounds_them(number: float, digits: int) -> None:
    nodes = numbered([Field("d", Kind.DOUBLE), Field("f", Kind.FLOAT)])
    for shown in (repr(number), f"{number:.{digits}e}", f"{number:.{digits}f}"):
        rows = [f'{{"d":{shown},"f":0}}'.encode(), f'{{"f":{shown}}}'.encode()]
        assert answer(_payload_columns, rows, nodes) == answer(_payload_columns_py, rows, nodes)


def refuse(word: str) -> None:
    raise ValueError(word)


def all_can_be_text(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse lone surrogates, also in a value that a later one of the same name hides."""
    json.dumps(pairs, ensure_ascii=False).encode()
    return dict(pairs)


@settings(max_examples=300)
@given(value=st.one_of(payloads, st.binary(max_size=12)))
def test_a_payload_is_json_exactly_where_python_says_so(value: bytes) -> None:
    """With no fields only the syntax counts; lone surrogates are ours alone to refuse."""
    ((_, _, (_, faults)),) = answer(_payload_columns, [value], numbered([]))
    try:
        read = json.loads(value.decode(), parse_constant=refuse, object_pairs_hook=all_can_be_text)
        is_good = isinstance(read, dict)
    except (ValueError, RecursionError):
        is_good = False
    if faults and "nested deeper" in faults[0][1]:
        return
    assert is_good == (not faults)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.one_of(msgpacks, msgpacks, st.binary(max_size=20), st.none()), max_size=8),
    limits=st.tuples(st.sampled_from([3, 1 << 20]), st.sampled_from([20, 1 << 24])),
)
def test_compiled_msgpack_is_answered_like_the_reference(
    rows: list[bytes | None], limits: tuple[int, int]
) -> None:
    said, meant = (
        answer(
            kernel,
            rows,
            MSGPACK_NODES,
            payload_format="msgpack",
            row_values_max=limits[0],
            batch_values_max=limits[1],
        )
        for kernel in (_payload_columns, _payload_columns_py)
    )
    assert said == meant


def test_every_msgpack_value_in_every_field_is_answered_alike() -> None:
    rows = [
        b"\x81" + text(field.name) + value for field in MSGPACK_FIELDS for value in MSGPACK_VALUES
    ]
    said, meant = (
        answer(kernel, rows, MSGPACK_NODES, payload_format="msgpack")
        for kernel in (_payload_columns, _payload_columns_py)
    )
    assert said == meant


@settings(max_examples=300)
@given(value=st.one_of(msgpacks, st.binary(max_size=12)))
def test_a_payload_is_msgpack_exactly_where_its_own_library_says_so(value: bytes) -> None:
    msgpack = pytest.importorskip("msgpack", reason="needs msgpack, which [loadtest] brings")
    ((_, _, (_, faults)),) = answer(
        _payload_columns, [value], numbered([]), payload_format="msgpack"
    )
    unpacker = msgpack.Unpacker()
    unpacker.feed(value)
    try:
        unpacker.skip()
        is_map = 0x80 <= value[0] < 0x90 or value[0] in (0xDE, 0xDF)
        is_good = is_map and unpacker.tell() == len(value)
    except ValueError:  # its errors are ValueErrors, but for the one of an early end
        is_good = False
    except msgpack.OutOfData:
        is_good = False
    if faults and "nested deeper" in faults[0][1]:
        return
    assert is_good == (not faults)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.one_of(sparkplugs, sparkplugs, st.binary(max_size=20), st.none()), max_size=8),
    nodes=st.sampled_from([SPARKPLUG_NODES] * 10 + ODD_NODES),
    limits=st.tuples(st.sampled_from([3, 1 << 20]), st.sampled_from([20, 1 << 24])),
)
def test_compiled_sparkplug_is_answered_like_the_reference(
    rows: list[bytes | None], nodes: list[Node], limits: tuple[int, int]
) -> None:
    said, meant = (
        answer(
            kernel,
            rows,
            nodes,
            payload_format="sparkplug",
            row_values_max=limits[0],
            batch_values_max=limits[1],
        )
        for kernel in (_payload_columns, _payload_columns_py)
    )
    assert said == meant


uint64 = st.integers(0, (1 << 64) - 1)
time_ms = st.integers(0, 253402300799999)
metrics = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=5),
        "alias": uint64,
        "timestamp": time_ms,
        "is_historical": st.booleans(),
        "is_transient": st.booleans(),
    },
).flatmap(
    lambda given: st.sampled_from(
        [
            ("long_value", uint64),
            ("double_value", st.floats(allow_nan=False)),
            ("boolean_value", st.booleans()),
            ("string_value", st.text(max_size=5)),
            ("bytes_value", st.binary(max_size=5)),
        ]
    ).flatmap(lambda kind: kind[1].map(lambda value: given | {kind[0]: value}))
)


@settings(max_examples=200, deadline=None)
@given(
    given=st.fixed_dictionaries(
        {"metrics": st.lists(metrics, max_size=5)},
        optional={
            "timestamp": time_ms,
            "seq": st.integers(0, 255),
            "uuid": st.text(max_size=5),
            "body": st.binary(max_size=5),
        },
    )
)
def test_what_googles_encoder_writes_is_read_as_it_was_meant(given: dict[str, Any]) -> None:
    pytest.importorskip("google.protobuf", reason="needs the [spark] extra")
    pytest.importorskip("pyarrow", reason="needs the [spark] extra")
    payload = sparkplug_messages()[0](**given).SerializeToString()
    (row,) = rows_of([payload], SPARKPLUG_FIELDS, "sparkplug")
    assert row["_malformed"] is None
    meant = given | {"metrics": [without_transient(metric) for metric in given["metrics"]]}
    assert without_nulls(row) == meant


def without_transient(metric: dict[str, Any]) -> dict[str, Any]:
    """Return a metric as columns have it."""
    return {
        name: value - (1 << 64) if name in ("alias", "long_value") and value >> 63 else value
        for name, value in metric.items()
        if name != "is_transient"
    }


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if value is not None}
    if "timestamp" in found:
        found["timestamp"] = round(found["timestamp"].timestamp() * 1000)
    if found.get("metrics"):
        found["metrics"] = [without_nulls(metric) for metric in found["metrics"]]
    return found
