"""The compiled read kernel answers like the reference, whatever it is given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.records import _read, _read_py
from motelog.core.records.scan import collect
from tests.support.record_kernels import choose, copy_out, gather
from tests.support.record_strategies import damaged_logs, int32s, units


@given(
    units=units,
    limits=st.tuples(st.integers(0, 9), st.integers(0, 900), st.integers(0, 900)),
    codes=st.one_of(st.none(), st.frozensets(int32s)),
)
def test_compiled_selection_answers_like_the_reference(
    units: bytes, limits: tuple[int, int, int], codes: frozenset[int] | None
) -> None:
    assert choose(_read, units, limits, codes) == choose(_read_py, units, limits, codes)


@given(log=damaged_logs(), units=units, begin=st.integers(-1, 9), end=st.integers(-1, 9))
def test_compiled_gather_answers_like_the_reference(
    log: tuple[bytearray, int], units: bytes, begin: int, end: int
) -> None:
    data, base = log
    runs = collect(data, min(3, len(data)), len(data), base, 9, (), lambda *_: 0)[0]
    real = b"".join(run.units for run in runs)
    for chosen in (units, real):
        arguments = (data, base, chosen, begin, end)
        assert gather(_read, *arguments) == gather(_read_py, *arguments)
    arguments = (data, base, real, 0, len(real) // 20)
    assert gather(_read, *arguments) == gather(_read_py, *arguments)


@given(data=st.binary(max_size=400), begin=st.integers(-2, 400), end=st.integers(-2, 401))
def test_compiled_copy_answers_like_the_reference(data: bytes, begin: int, end: int) -> None:
    assert copy_out(_read, data, begin, end) == copy_out(_read_py, data, begin, end)
