"""The compiled decode kernel answers like the reference, whatever it is given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.records import _decode, _decode_py
from motelog.core.records.append import QueueTail
from tests.support.record_kernels import decode
from tests.support.record_strategies import damaged_logs
from tests.support.stores import encoded, message

names = st.sampled_from([b"name", b"T\x01"])


@given(log=damaged_logs(), name=names)
def test_compiled_decoders_answer_like_the_reference(
    log: tuple[bytearray, int], name: bytes
) -> None:
    data, _ = log
    for view in (data, data[3:]):
        arguments = (view, 0, len(view), name)
        assert decode(_decode, *arguments) == decode(_decode_py, *arguments)


@given(data=st.binary(max_size=400), begin=st.integers(-2, 400), end=st.integers(-2, 401))
def test_compiled_decoders_answer_like_the_reference_on_garbage(
    data: bytes, begin: int, end: int
) -> None:
    arguments = (data, begin, end, b"name")
    assert decode(_decode, *arguments) == decode(_decode_py, *arguments)


@given(bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=8))
def test_records_are_those_of_their_queue_alone(bodies: list[bytes]) -> None:
    tail = QueueTail(b"T", 0, 7)
    records = encoded(*(message(tail, body) for body in bodies))
    behind = 7 + len(bodies)
    for kernel in (_decode, _decode_py):
        assert kernel.in_queue(records, b"T", 0, 7, behind)
        assert not kernel.in_queue(records, b"T", 1, 7, behind)
        assert not kernel.in_queue(records, b"U", 0, 7, behind)
        assert not kernel.in_queue(records, b"T", 0, 8, behind)
        assert not kernel.in_queue(records, b"T", 0, 7, behind - 1)
        assert not kernel.in_queue(records[:-1], b"T", 0, 7, behind)
        assert not kernel.in_queue(records + records, b"T", 0, 7, behind)
