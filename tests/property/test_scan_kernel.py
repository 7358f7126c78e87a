"""The compiled scan kernel answers like the reference, whatever it is given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.records import _scan, _scan_py
from tests.support.record_kernels import scan
from tests.support.record_strategies import damaged_logs


@given(log=damaged_logs(), begin=st.sampled_from([0, 3]), name=st.sampled_from([b"name", b"T\x01"]))
def test_compiled_scans_answer_like_the_reference(
    log: tuple[bytearray, int], begin: int, name: bytes
) -> None:
    data, base = log
    for view in (data, data[3:]):
        arguments = (view, begin, len(view), base, name)
        assert scan(_scan, *arguments) == scan(_scan_py, *arguments)


@given(data=st.binary(max_size=400), begin=st.integers(-2, 400), end=st.integers(-2, 401))
def test_compiled_scans_answer_like_the_reference_on_garbage(
    data: bytes, begin: int, end: int
) -> None:
    arguments = (data, begin, end, 0, b"name")
    assert scan(_scan, *arguments) == scan(_scan_py, *arguments)
