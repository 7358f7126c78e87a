"""Hypothesis strategies for the kernels of records: texts, units, logs that were changed.

Owns: what several of their property tests draw. Must not touch: the kernels under test.
"""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from motelog.core.records.append import QueueTail, encode_batch
from tests.support.stores import BORN_HOST, STORE_HOST

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
    # In light queues, perhaps.
    st.tuples(
        st.sampled_from([b"%LMQ%a", b"%LMQ%a,%LMQ%b", b"%LMQ%b,,%LMQ%\xff", b"x,%LMQ%a"]),
        st.sampled_from([b"0", b"3,4", b"1,2,3", b",7", b"99999999999999999999"]),
        st.sampled_from([b"", b"KEYS\x01k\x02", b"TAGS\x01\xc3\xa9\x02"]),
    ).map(
        lambda parts: (
            b"INNER_MULTI_DISPATCH\x01%b\x02INNER_MULTI_QUEUE_OFFSET\x01%b\x02%b" % parts
        )
    ),
)  # fmt: skip
whole_texts = property_texts.filter(lambda text: b"\0" not in text)
units = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 900), st.integers(0, 200), int64s),
        st.tuples(st.integers(0, 900), st.just(0x7FFFFFFF), int64s),
        st.tuples(int64s, int32s, int64s),
    ),
    max_size=9,
).map(lambda items: b"".join(struct.pack(">qiq", *item) for item in items))


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
