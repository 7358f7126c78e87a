"""The compiled JSON parser answers like its reference, and takes what Python's own parser takes."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.spark import _json_columns_py
from motelog.spark.payload_fields import Field, Kind, numbered
from tests.support.json_payloads import FIELDS, VALUES, answer, random_payload

_json_columns = pytest.importorskip(
    "motelog.spark._json_columns", reason="kernel not built (MOTELOG_PURE)"
)

payloads = st.integers(0, 2**32).map(lambda seed: random_payload(random.Random(seed)))


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.one_of(payloads, payloads, st.binary(max_size=20), st.none()), max_size=8),
    limits=st.tuples(st.sampled_from([3, 1 << 20]), st.sampled_from([20, 1 << 24])),
)
def test_compiled_parser_answers_like_the_reference(
    rows: list[bytes | None], limits: tuple[int, int]
) -> None:
    row_values_max, batch_values_max = limits
    said, meant = (
        answer(kernel, rows, row_values_max=row_values_max, batch_values_max=batch_values_max)
        for kernel in (_json_columns, _json_columns_py)
    )
    assert said == meant


def test_every_value_in_every_field_is_answered_alike() -> None:
    rows = [
        f'{{"{field.name}": {value}}}'.encode("utf-8", "surrogatepass")
        for field in FIELDS
        for value in VALUES
    ]
    assert answer(_json_columns, rows) == answer(_json_columns_py, rows)


@settings(max_examples=300)
@given(number=st.floats(allow_nan=False, allow_infinity=False), digits=st.integers(1, 25))
def test_numbers_are_rounded_as_python_rounds_them(number: float, digits: int) -> None:
    nodes = numbered([Field("d", Kind.DOUBLE), Field("f", Kind.FLOAT)])
    for text in (repr(number), f"{number:.{digits}e}", f"{number:.{digits}f}"):
        rows = [f'{{"d":{text},"f":0}}'.encode(), f'{{"f":{text}}}'.encode()]
        assert answer(_json_columns, rows, nodes) == answer(_json_columns_py, rows, nodes)


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
    ((_, _, (_, faults)),) = answer(_json_columns, [value], numbered([]))
    try:
        read = json.loads(value.decode(), parse_constant=refuse, object_pairs_hook=all_can_be_text)
        is_good = isinstance(read, dict)
    except (ValueError, RecursionError):
        is_good = False
    if faults and "nested deeper" in faults[0][1]:
        return
    assert is_good == (not faults)
