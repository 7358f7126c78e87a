"""The compiled append kernel answers like the reference, whatever it is given."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.records import _append, _append_py
from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.records.decode import decode
from motelog.core.records.layout import ScanStop
from motelog.core.records.scan import find_record, scan
from tests.support.record_kernels import answer, copy_in, encode, hold
from tests.support.record_strategies import hosts, int32s, int64s, property_texts, units
from tests.support.stores import STORE_HOST, message

queues = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([b"T", b"timed", b"t" * 127, b"t" * 128]), st.binary(max_size=9)),
        st.integers(-1, 5),
        st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=4,
)


def messages_for(count: int) -> st.SearchStrategy[list[Any]]:
    one = st.tuples(
        st.integers(0, count - 1), st.binary(max_size=60), property_texts, int64s, int64s, hosts,
        int32s, int32s, int32s, int64s,
    )  # fmt: skip
    odd = st.tuples(
        st.sampled_from([None, b"no tail"]), *[st.sampled_from([None, 1 << 64, b"x", 1.0, "t"])] * 9
    )
    return st.lists(st.one_of(one, one, one, odd), max_size=8)


@given(data=st.data(), queues=queues, limit=st.integers(0, 700), base=st.integers(0, 1 << 50))
def test_compiled_encode_answers_like_the_reference(
    data: st.DataObject, queues: list[tuple[bytes, int, int]], limit: int, base: int
) -> None:
    messages = data.draw(messages_for(len(queues)))
    arguments = (queues, messages, limit, base)
    assert encode(_append, *arguments) == encode(_append_py, *arguments)


offsets = st.integers(0, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), units),
        st.tuples(st.just("extend"), st.binary(max_size=41)),
        st.tuples(st.just("drop"), st.one_of(offsets, int64s)),
        st.tuples(st.just("take_back"), st.one_of(st.integers(0, 900), int64s)),
        st.tuples(st.just("reset"), offsets),
        st.tuples(st.just("units"), st.tuples(offsets, st.integers(-1, 40))),
    ),
    max_size=12,
)


@given(begin=st.integers(0, 30), steps=steps)
def test_compiled_tail_holds_what_the_reference_holds(
    begin: int, steps: list[tuple[str, Any]]
) -> None:
    assert hold(_append, begin, steps) == hold(_append_py, begin, steps)


@given(data=st.binary(max_size=400), position=st.integers(-2, 401))
def test_compiled_copy_and_crc_answer_like_the_reference(data: bytes, position: int) -> None:
    assert copy_in(_append, data, position) == copy_in(_append_py, data, position)
    assert answer(_append.crc32_31, data) == answer(_append_py.crc32_31, data)


@given(
    bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=8),
    base=st.integers(0, 1 << 60),
    garbage=st.binary(max_size=80),
)
def test_what_is_encoded_is_scanned_decoded_and_found_again(
    bodies: list[bytes], base: int, garbage: bytes
) -> None:
    tail = QueueTail(b"T", 0, 7)
    target = bytearray(len(garbage)) + bytearray(200 * len(bodies))
    target[: len(garbage)] = garbage
    messages = [message(tail, body) for body in bodies]
    begin = len(garbage)
    count, end = encode_batch(
        target, begin, len(target), base, messages, 0, 5, STORE_HOST, [], None
    )
    assert count == len(bodies)
    found, position, stop = scan(target, begin, end, base, 99)
    assert (len(found), position, stop) == (len(bodies), end, ScanStop.END)
    assert [f[13] for f in decode(target[begin:end], verify=True)] == bodies
    assert find_record(target, 0, end, end, base) == begin
