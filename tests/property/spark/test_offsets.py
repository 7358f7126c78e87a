"""Planning of batches: limits hold, shares are fair, pieces cover their ranges exactly."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.message import MessageQueue
from motelog.spark.offsets import (
    OffsetRange,
    QueueOffsets,
    decode_offsets,
    encode_offsets,
    fair_shares,
    limit_bytes,
    limit_rows,
    parse_offsets,
    ranges_between,
    split_ranges,
)
from motelog.spark.topics import Topics

T = Topics(("t",))
queues = st.builds(
    MessageQueue,
    st.just("t"),
    st.sampled_from(["broker-a", "broker-b", "a/b"]),
    st.integers(0, 12),
)
offsets = st.dictionaries(queues, st.integers(0, 5000), max_size=6)


@st.composite
def growth(draw: st.DrawFn) -> tuple[QueueOffsets, QueueOffsets]:
    """Draw a start and the offsets some time later: queues may have come, none is shorter."""
    start = draw(offsets)
    latest = {queue: offset + draw(st.integers(0, 500)) for queue, offset in start.items()}
    return start, draw(offsets) | latest


@given(offsets)
def test_offsets_survive_their_document(original: QueueOffsets) -> None:
    document = encode_offsets(T, original)
    text = json.dumps(document)
    assert decode_offsets(T, json.loads(text)) == original
    assert parse_offsets(T, text) == original
    assert json.dumps(encode_offsets(T, dict(reversed(original.items())))) == text


@given(growth(), st.integers(1, 400), st.integers(0, 50))
def test_row_limited_batches_reach_the_target_and_cover_it_once(
    change: tuple[QueueOffsets, QueueOffsets], rows_max: int, first: int
) -> None:
    start, latest = change
    covered: dict[MessageQueue, list[int]] = {}
    position = start
    while (end := limit_rows(position, latest, rows_max, first=first)) != position:
        ranges = ranges_between(position, end)
        if not ranges:  # only queues without messages were new
            break
        rows = sum(piece.rows for piece in ranges)
        left = sum(latest[queue] - position.get(queue, 0) for queue in latest)
        assert rows == min(rows_max, left)
        for piece in ranges:
            covered.setdefault(piece.queue, []).extend(range(piece.begin, piece.end))
        position = end
        first += rows
    assert covered == {
        queue: list(range(start.get(queue, 0), end))
        for queue, end in latest.items()
        if end > start.get(queue, 0)
    }


@given(growth(), st.integers(1, 20_000), st.integers(1, 300), st.integers(0, 9))
def test_byte_limited_batches_keep_the_limit_or_have_one_row(
    change: tuple[QueueOffsets, QueueOffsets], bytes_max: int, size: int, first: int
) -> None:
    start, latest = change
    row_bytes = {queue: size + queue.queue_id * 10 for queue in latest}
    end = limit_bytes(start, latest, bytes_max, row_bytes=row_bytes, first=first)
    ranges = ranges_between(start, end)
    rows = sum(piece.rows for piece in ranges)
    assert sum(piece.rows * row_bytes[piece.queue] for piece in ranges) <= bytes_max or rows == 1
    assert rows > 0 or not ranges_between(start, latest)
    assert all(end[queue] <= latest[queue] for queue in latest)


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(0, 400), st.integers(0, 20))
def test_shares_are_max_min_fair(wanted: list[int], total: int, first: int) -> None:
    shares = fair_shares(wanted, total, first=first)
    assert sum(shares) == min(total, sum(wanted))
    short = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    # Who wants more has as much as anybody, but for the remainder of one.
    assert all(share >= max(shares) - 1 for share in short)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 300)), max_size=6),
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_pieces_cover_their_ranges_and_keep_both_limits(
    spans: list[tuple[int, int]], partitions_min: int, rows_max: int | None
) -> None:
    ranges = [
        OffsetRange(MessageQueue("t", "b", i), begin, begin + rows, is_open=i % 2 == 0)
        for i, (begin, rows) in enumerate(spans)
    ]
    pieces = split_ranges(ranges, partitions_min=partitions_min, rows_max=rows_max)
    total = sum(whole.rows for whole in ranges)
    assert len(pieces) >= min(partitions_min, total)
    assert all(0 < piece.rows <= (rows_max or piece.rows) for piece in pieces)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.queue == whole.queue]
        assert mine[0].begin == whole.begin
        assert mine[-1].end == whole.end
        assert all(a.end == b.begin for a, b in pairwise(mine))
        assert {piece.is_open for piece in mine} == {whole.is_open}
        assert max(piece.rows for piece in mine) - min(piece.rows for piece in mine) <= 1
