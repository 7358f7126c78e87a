"""The compiled index kernel answers like the reference, whatever it is given."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.store.index import _index, _index_py
from motelog.core.store.index.index import HEADER, HEADER_BYTES
from tests.support.index_kernels import KERNELS, any_keyed, build, log, read, walk

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
# Sound characters, surrogates, too long forms, and what is left of characters that are cut.
characters = st.lists(
    st.sampled_from(
        [b"a", b"#", b"eight888", b"\x80", b"\xbf", b"\xc1", b"\xc2", b"\xdf", b"\xe0", b"\x9f",
         b"\xa0", b"\xed", b"\xef", b"\xf0", b"\x8f", b"\x90", b"\xf4", b"\xf5", b"\xff"]
    ),
    max_size=12,
).map(b"".join)  # fmt: skip
topics = st.sampled_from([b"T", b"telemetry", b"\xc3\xbc", b"polygenelubricants"])
items = st.lists(st.tuples(int64s, times, topics, texts), max_size=8)
shapes = st.tuples(st.integers(1, 7), st.integers(1, 12))


@given(messages=st.lists(st.tuples(texts, st.integers(0, 15)), max_size=8))
def test_compiled_kernel_sees_the_same_keys_in_messages(
    messages: list[tuple[bytes, int]],
) -> None:
    assert any_keyed(_index, messages) == any_keyed(_index_py, messages)


@given(topic=characters, key=characters)
def test_compiled_hash_of_any_bytes_is_java_s(topic: bytes, key: bytes) -> None:
    items = [(1, 2, topic, b"UNIQ_KEY\x01%b\x02" % key)]
    assert build(_index, (1, 3), items, 0, 0) == build(_index_py, (1, 3), items, 0, 0)


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
    shape=shapes,
    records=st.lists(st.tuples(texts, st.integers(0, 15), st.booleans()), max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=3),
    begin=st.integers(0, 4),
    end=st.integers(0, 2000),
    key=st.integers(-1, 4),
    count_max=st.integers(0, 7),
)
def test_compiled_walk_of_the_log_answers_like_the_reference(
    shape: tuple[int, int],
    records: list[tuple[bytes, int, bool]],
    changes: list[tuple[int, int]],
    begin: int,
    end: int,
    key: int,
    count_max: int,
) -> None:
    data = log(records, changes)
    arguments = (shape, data, begin, min(end, len(data)), key, count_max)
    assert walk(_index, *arguments) == walk(_index_py, *arguments)


@given(
    counts=st.lists(st.integers(0, 300), max_size=4),
    entries=st.integers(1, 700),
    key=st.integers(0, 200),
)
def test_more_keys_than_the_kernel_takes_at_once_are_put_alike(
    counts: list[int], entries: int, key: int
) -> None:
    texts = [b"KEYS\x01%b\x02" % b" ".join(b"%d" % n for n in range(c)) for c in counts]
    items = [(number, 0, b"T", text) for number, text in enumerate(texts)]
    shape = (40, entries)
    assert build(_index, shape, items, 0, key) == build(_index_py, shape, items, 0, key)
    data = log([(text, 0, False) for text in texts], [])
    arguments = (shape, data, 0, len(data), key, 9)
    assert walk(_index, *arguments) == walk(_index_py, *arguments)


def test_records_are_put_as_their_items_are() -> None:
    texts = [b"KEYS\x01a b\x02", b"", b"UNIQ_KEY\x01u\x02KEYS\x01c\x02"]
    data = log([(text, 0, False) for text in texts], [])
    size = struct.unpack_from(">i", data)[0]
    places = [0, size, size + struct.unpack_from(">i", data, size)[0]]
    items = [(1_000 + at, 5_000, b"ttt", text) for at, text in zip(places, texts, strict=True)]
    for entries in range(1, 7):
        at, file = walk(_index, (3, entries), data, 0, len(data), 0, 9)
        (item, key), expected = build(_index, (3, entries), items, 0, 0)
        assert file == expected
        if item < len(items):
            assert at == (places[item], key, None)


def test_a_record_cut_anywhere_is_not_read_beyond_its_end() -> None:
    data = log([(b"KEYS\x01a\x02", 0, False)], [])
    for size in range(min(140, len(data))):
        arguments: tuple[Any, ...] = ((3, 9), data[:size], 0, size, 0, 9)
        assert walk(_index, *arguments) == walk(_index_py, *arguments)


def test_header_is_where_rocketmq_has_it() -> None:
    items = [(5, 1_000, b"T", b"KEYS\x01a b\x02"), (9, 3_500, b"T", b"UNIQ_KEY\x01u\x02")]
    at, data = build(_index, (3, 10), items, 0, 0)
    assert at == (2, 0)
    assert HEADER.unpack_from(data) == (1_000, 3_500, 5, 9, data[32:36][3], 4)
    third = HEADER_BYTES + 3 * 4 + 3 * 20
    assert struct.unpack_from(">qi", data, third + 4) == (9, 2)
