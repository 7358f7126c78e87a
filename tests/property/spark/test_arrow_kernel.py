"""The compiled Arrow decoder answers like its reference, on valid and on hostile bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.errors import RecordError
from motelog.spark import _arrow, _arrow_py
from motelog.spark.columns import DECODED, Column
from tests.support.spark_records import pull_bodies

column_choices = st.lists(st.sampled_from(DECODED), unique=True).map(tuple)


def answer(
    kernel: Any,
    data: bytes,
    columns: tuple[Column, ...],
    limits: tuple[int, int, int],
    lenient: bool,
) -> list[object]:
    """Return everything that the kernel says about ``data``, batch by batch."""
    rows_max, bytes_max, payload_bytes_max = limits
    decoder = kernel.RecordColumns(
        columns,
        broker="broker-é",
        offset_begin=0,
        offset_end=25,
        payload_bytes_max=payload_bytes_max,
        bad_payload_null=lenient,
    )
    said: list[object] = []
    position = 0
    for _ in range(20):
        try:
            position = decoder.append(data, position, rows_max=rows_max, bytes_max=bytes_max)
            said.append(position)
        except RecordError as exc:
            said.append((str(exc), exc.offset_bytes))
            position = len(data)
        said.append((decoder.rows, decoder.data_bytes, decoder.next_offset))
        said.append(
            [
                (nulls, [None if part is None else bytes(part) for part in parts])
                for nulls, parts in decoder.take()
            ]
        )
        if position == len(data):
            break
    return said


@settings(max_examples=200)
@given(
    data=pull_bodies(),
    columns=st.one_of(st.just(DECODED), column_choices),
    limits=st.tuples(st.integers(1, 4), st.integers(1, 200), st.integers(1, 120)),
    lenient=st.booleans(),
)
def test_compiled_decoder_answers_like_the_reference(
    data: bytes, columns: tuple[Column, ...], limits: tuple[int, int, int], lenient: bool
) -> None:
    assert answer(_arrow, data, columns, limits, lenient) == answer(
        _arrow_py, data, columns, limits, lenient
    )


@settings(max_examples=200)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_alike(data: bytes) -> None:
    limits = (100, 1000, 1000)
    columns = DECODED
    assert answer(_arrow, data, columns, limits, False) == answer(
        _arrow_py, data, columns, limits, False
    )
