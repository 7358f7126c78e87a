"""Offset documents: what is accepted, and what is said about what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.message import MessageQueue
from motelog.spark.errors import OffsetFormatError
from motelog.spark.offsets import (
    OffsetRange,
    decode_offsets,
    encode_offsets,
    limit_rows,
    parse_offsets,
    ranges_between,
    share_tasks,
    split_ranges,
)
from motelog.spark.topics import Topics

T = Topics(("t",))
A0, A1, A2 = (MessageQueue("t", "a", i) for i in range(3))


def test_queues_stand_in_order_of_broker_and_number() -> None:
    queues = [MessageQueue("t", "b", 0), MessageQueue("t", "a", 10), MessageQueue("t", "a", 9)]
    document = encode_offsets(T, dict.fromkeys(queues, 1))
    assert list(document["t"]) == ["a/9", "a/10", "b/0"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"other": {}}, r"are also of \['other'\], but the query reads topic 't': name these"),
        ({"t": {}, "u": {}}, r"are also of \['u'\]"),
        ([], "offsets are \\[\\], expected an object of topic 't'"),
        ({"t": [1]}, "expected an object"),
        ({"t": {"a": 1}}, "queue 'a', expected 'broker name/queue id'"),
        ({"t": {"/0": 1}}, "queue '/0'"),
        ({"t": {"a/x": 1}}, "queue 'a/x'"),
        ({"t": {"a/0": -1}}, "'a/0' is -1, expected an offset"),
        ({"t": {"a/0": True}}, "'a/0' is True"),
        ({"t": {"a/0": 1.5}}, "'a/0' is 1.5"),
        ({"t": {"a/0": 1 << 63}}, "expected an offset"),
    ],
)
def test_a_wrong_document_is_refused_with_the_place(document: object, expected: str) -> None:
    with pytest.raises(OffsetFormatError, match=expected):
        decode_offsets(T, document)


def test_topics_of_a_list_may_come_and_those_of_a_pattern_are_found() -> None:
    more = Topics(("t", "u"))
    document = encode_offsets(T, {A0: 7})
    assert decode_offsets(more, document) == {A0: 7}
    assert encode_offsets(more, {A0: 7}) == {"t": {"a/0": 7}, "u": {}}
    with pytest.raises(OffsetFormatError, match=r"are also of \['u'\]"):
        decode_offsets(T, encode_offsets(more, {A0: 7}))
    pattern = Topics(pattern="t|u")
    assert encode_offsets(pattern, {A0: 7}) == document
    assert decode_offsets(pattern, document) == {A0: 7}
    with pytest.raises(OffsetFormatError, match="the query reads topics that match 'u'"):
        decode_offsets(Topics(pattern="u"), document)


def test_an_options_offsets_may_name_the_edges() -> None:
    assert parse_offsets(T, '{"t": {"a/0": "earliest", "a/1": 7, "a/2": "latest"}}') == {
        A0: "earliest",
        A1: 7,
        A2: "latest",
    }
    with pytest.raises(OffsetFormatError, match="expected an offset, 'earliest' or 'latest'"):
        parse_offsets(T, '{"t": {"a/0": "newest"}}')
    with pytest.raises(OffsetFormatError, match="not JSON"):
        parse_offsets(T, "{" * 100_000)


def test_a_new_queue_and_one_begun_anew_have_open_ranges() -> None:
    assert ranges_between({A0: 5, A1: 9}, {A0: 8, A1: 3, A2: 2}) == [
        OffsetRange(A0, 5, 8),
        OffsetRange(A1, 0, 3, is_open=True),
        OffsetRange(A2, 0, 2, is_open=True),
    ]


def test_single_rows_go_to_the_queues_in_turn() -> None:
    begin = {A0: 0, A1: 0, A2: 0}
    latest = {A0: 5, A1: 5, A2: 5}
    for _ in range(3):
        begin = limit_rows(begin, latest, 1, first=sum(begin.values()))
    assert begin == {A0: 1, A1: 1, A2: 1}


def test_larger_ranges_are_cut_first() -> None:
    ranges = [OffsetRange(A0, 0, 10), OffsetRange(A1, 0, 1000)]
    pieces = split_ranges(ranges, partitions_min=4)
    assert [piece.rows for piece in pieces] == [10, 333, 333, 334]


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    sizes = [5, 5, 20, 3, 3, 3]
    pieces = [OffsetRange(MessageQueue("t", "a", i), 7, 7 + size) for i, size in enumerate(sizes)]

    def shared(**limits: int) -> list[list[int]]:
        tasks = share_tasks(pieces, **limits)
        assert [piece for task in tasks for piece in task] == pieces
        return [[piece.rows for piece in task] for task in tasks]

    assert shared(rows_max=100) == [sizes]
    assert shared(rows_max=10) == [[5, 5], [20], [3, 3, 3]]
    assert shared(rows_max=7) == [[5], [5], [20], [3, 3], [3]]
    assert shared(rows_max=1) == [[size] for size in sizes]
    assert len(shared(rows_max=100, tasks_min=3)) >= 3
    assert shared(rows_max=100, tasks_min=50) == [[size] for size in sizes]
    assert share_tasks([], rows_max=10) == []


@given(
    sizes=st.lists(st.integers(1, 50), max_size=12),
    tasks_min=st.integers(1, 20),
    rows_max=st.integers(1, 60),
)
def test_there_are_as_many_tasks_as_asked_for(
    sizes: list[int], tasks_min: int, rows_max: int
) -> None:
    ranges = [OffsetRange(MessageQueue("t", "a", i), 0, size) for i, size in enumerate(sizes)]
    pieces = split_ranges(ranges, partitions_min=tasks_min, rows_max=rows_max)
    tasks = share_tasks(pieces, tasks_min=tasks_min, rows_max=rows_max)
    assert len(tasks) >= min(tasks_min, sum(sizes))
    assert all(sum(piece.rows for piece in task) <= rows_max for task in tasks)
