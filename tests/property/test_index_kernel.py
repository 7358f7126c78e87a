"""The compiled index kernel answers like the reference, whatever it is given."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.store import _index, _index_py
from core.store.index import HEADER, HEADER_BYTES
from tests.support.index_kernels import KERNELS, build, keyed, read, walk

int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
times = st.one_of(st.integers(0, 9_000), int64s)
texts = st.one_of(
    st.binary(max_size=30),
    st.lists(
        st.sampled_from(
            [b"KEYS\x01", b"UNIQ_KEY\x01", b"TAGS\x01", b"\x01", b"\x02", b" ", b"a", b"Aa", b"BB",
             b"\xc3\xa9", b"\xff", b"\xf0\x9f\x98\x80", b"long-key-word"]
        ),
        max_size=14,
    ).map(b"".join),
)  # fmt: skip
topics = st.sampled_from([b"T", b"telemetry", b"\xc3\xbc", b"polygenelubricants"])
items = st.lists(st.tuples(int64s, times, topics, texts), max_size=8)
shapes = st.tuples(st.integers(1, 7), st.integers(1, 12))


@given(messages=st.lists(st.tuples(texts, st.integers(0, 15)), max_size=8))
def test_compiled_kernel_finds_the_same_messages_with_keys(
    messages: list[tuple[bytes, int]],
) -> None:
    assert keyed(_index, messages) == keyed(_index_py, messages)


@given(shape=shapes, items=items, begin=st.tuples(st.integers(0, 9), st.integers(0, 3)))
def test_compiled_put_writes_the_same_bytes(
    shape: tuple[int, int], items: list[Any], begin: tuple[int, int]
) -> None:
    assert build(_index, shape, items, *begin) == build(_index_py, shape, items, *begin)


@given(
    shape=shapes,
    items=items,
    changes=st.lists(st.tuples(st.integers(0, 320), int32s), max_size=4),
    hashed=st.one_of(st.integers(0, 40), st.integers(-1, 1 << 31)),
    number=st.integers(-1, 13),
    begin_ms=times,
    end_ms=times,
    cut=st.integers(-1, 13),
)
def test_compiled_walk_of_a_damaged_file_answers_like_the_reference(
    shape: tuple[int, int],
    items: list[Any],
    changes: list[tuple[int, int]],
    hashed: int,
    number: int,
    begin_ms: int,
    end_ms: int,
    cut: int,
) -> None:
    _, data = build(_index_py, shape, items, 0, 0)
    changed = bytearray(data)
    for at, value in changes:
        struct.pack_into(">i", changed, at % (len(changed) - 3), value)
    arguments = (bytes(changed), shape, hashed, number, begin_ms, end_ms, cut)
    kernel, reference = (read(k, *arguments) for k in KERNELS)
    assert kernel == reference


@given(
    records=st.lists(st.tuples(texts, st.integers(0, 15), st.booleans()), max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=3),
    begin=st.integers(0, 4),
    end=st.integers(0, 2000),
    count_max=st.integers(0, 7),
)
def test_compiled_walk_of_the_log_answers_like_the_reference(
    records: list[tuple[bytes, int, bool]],
    changes: list[tuple[int, int]],
    begin: int,
    end: int,
    count_max: int,
) -> None:
    kernel, reference = (walk(k, records, changes, begin, end, count_max) for k in KERNELS)
    assert kernel == reference


def test_a_record_cut_anywhere_is_not_read_beyond_its_end() -> None:
    for size in range(140):
        arguments: tuple[Any, ...] = ([(b"KEYS\x01a\x02", 0, False)], [], 0, size, 9)
        assert walk(_index, *arguments) == walk(_index_py, *arguments)


def test_header_is_where_rocketmq_has_it() -> None:
    items = [(5, 1_000, b"T", b"KEYS\x01a b\x02"), (9, 3_500, b"T", b"UNIQ_KEY\x01u\x02")]
    at, data = build(_index, (3, 10), items, 0, 0)
    assert at == (2, 0)
    assert HEADER.unpack_from(data) == (1_000, 3_500, 5, 9, data[32:36][3], 4)
    third = HEADER_BYTES + 3 * 4 + 3 * 20
    assert struct.unpack_from(">qi", data, third + 4) == (9, 2)
