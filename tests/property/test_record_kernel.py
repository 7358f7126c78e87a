"""The compiled record kernel answers like the reference, whatever it is given."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.records import _record, _record_py
from motelog.core.records.record import QueueTail, ScanStop, decode, encode_batch, find_record, scan
from tests.support.record_kernels import choose, encode, gather, hold, read
from tests.support.stores import BORN_HOST, STORE_HOST, message

int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.sampled_from([BORN_HOST, bytes(20), bytes(range(20))])
property_texts = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.sampled_from(
            [b"TAGS", b"KEYS", b"UNIQ_KEY", b"name", b"\x01", b"\x02", b"", b"v", b"\xc3\xa9",
             b"\xff"]
        ),
        max_size=12,
    ).map(b"".join),
)  # fmt: skip
whole_texts = property_texts.filter(lambda text: b"\0" not in text)
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
    assert encode(_record, *arguments) == encode(_record_py, *arguments)


def log_bytes(draw: st.DrawFn, base: int) -> bytearray:
    """Records as the kernel writes them, from position 3 on, then perhaps changed."""
    tails = [QueueTail(t, i, i * 5) for i, t in enumerate((b"T", b"timed", b"t" * 130))]
    batch = draw(
        st.lists(
            st.tuples(
                st.sampled_from(tails), st.binary(max_size=30), whole_texts, int64s, int64s,
                hosts, int32s, int32s, int32s, int64s,
            ),
            max_size=6,
        )
    )  # fmt: skip
    target = bytearray(3 + len(batch) * 400)
    _, end = encode_batch(target, 3, len(target), base, list(batch), 0, 1_000, STORE_HOST, [], None)
    del target[end:]
    target += draw(st.sampled_from([b"", bytes(9), b"\x00\x00\x00\x09\xcb\xd4\x31\x94\x00"]))
    for at, value in draw(st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)))):
        if target:
            target[at % len(target)] = value
    cut = draw(st.integers(0, len(target)))
    return target[: draw(st.sampled_from([len(target), cut]))]


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[bytearray, int]:
    base = draw(st.integers(0, 1 << 50))
    return log_bytes(draw, base), base


@given(log=damaged_logs(), begin=st.sampled_from([0, 3]), name=st.sampled_from([b"name", b"T\x01"]))
def test_compiled_readers_answer_like_the_reference(
    log: tuple[bytearray, int], begin: int, name: bytes
) -> None:
    data, base = log
    for view in (data, data[3:]):
        arguments = (view, begin, len(view), base, name)
        assert read(_record, *arguments) == read(_record_py, *arguments)


@given(data=st.binary(max_size=400), begin=st.integers(-2, 400), end=st.integers(-2, 401))
def test_compiled_readers_answer_like_the_reference_on_garbage(
    data: bytes, begin: int, end: int
) -> None:
    arguments = (data, begin, end, 0, b"name")
    assert read(_record, *arguments) == read(_record_py, *arguments)


units = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 900), st.integers(0, 200), int64s),
        st.tuples(st.integers(0, 900), st.just(0x7FFFFFFF), int64s),
        st.tuples(int64s, int32s, int64s),
    ),
    max_size=9,
).map(lambda items: b"".join(struct.pack(">qiq", *item) for item in items))


@given(
    units=units,
    limits=st.tuples(st.integers(0, 9), st.integers(0, 900), st.integers(0, 900)),
    codes=st.one_of(st.none(), st.frozensets(int32s)),
)
def test_compiled_selection_answers_like_the_reference(
    units: bytes, limits: tuple[int, int, int], codes: frozenset[int] | None
) -> None:
    assert choose(_record, units, limits, codes) == choose(_record_py, units, limits, codes)


@given(log=damaged_logs(), units=units, begin=st.integers(-1, 9), end=st.integers(-1, 9))
def test_compiled_gather_answers_like_the_reference(
    log: tuple[bytearray, int], units: bytes, begin: int, end: int
) -> None:
    data, base = log
    runs = _record_py.collect(data, min(3, len(data)), len(data), base, 9, (), lambda *_: 0)[0]
    real = b"".join(run.units for run in runs)
    for chosen in (units, real):
        arguments = (data, base, chosen, begin, end)
        assert gather(_record, *arguments) == gather(_record_py, *arguments)
    arguments = (data, base, real, 0, len(real) // 20)
    assert gather(_record, *arguments) == gather(_record_py, *arguments)


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
    assert hold(_record, begin, steps) == hold(_record_py, begin, steps)


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
    records = bytes(target[begin:end])
    behind = 7 + len(bodies)
    for kernel in (_record, _record_py):
        assert kernel.in_queue(records, b"T", 0, 7, behind)
        assert not kernel.in_queue(records, b"T", 1, 7, behind)
        assert not kernel.in_queue(records, b"U", 0, 7, behind)
        assert not kernel.in_queue(records, b"T", 0, 8, behind)
        assert not kernel.in_queue(records, b"T", 0, 7, behind - 1)
        assert not kernel.in_queue(records[:-1], b"T", 0, 7, behind)
        assert not kernel.in_queue(records + records, b"T", 0, 7, behind)
