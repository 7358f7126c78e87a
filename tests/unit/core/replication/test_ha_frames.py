"""RocketMQ's HA protocol: what a master and a slave read from cut streams."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.replication.ha_frames import (
    HEADER,
    PIECE_BYTES_MAX,
    REPORT,
    HaError,
    Pieces,
    Reports,
    first_offset,
)

FILE_BYTES = 1 << 20


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[begin:end] for begin, end in pairwise(at)]


PLACES = st.lists(st.integers(0, 1 << 20))


@given(st.lists(st.integers(0, (1 << 63) - 1)), PLACES)
def test_a_master_hears_each_report_once_however_it_is_cut(
    offsets: list[int], places: list[int]
) -> None:
    reports = Reports()
    data = b"".join(map(REPORT.pack, offsets))
    assert [offset for piece in cut(data, places) for offset in reports.feed(piece)] == offsets


def test_a_master_refuses_a_negative_report() -> None:
    with pytest.raises(HaError, match="offset -1"):
        Reports().feed(REPORT.pack(-1))


@given(st.lists(st.binary(max_size=100)), PLACES, st.integers(0, 1 << 40))
def test_a_slave_gets_the_bytes_of_all_frames_at_their_places(
    bodies: list[bytes], places: list[int], begin: int
) -> None:
    data, at, log = b"", begin, b"".join(bodies)
    for body in bodies:
        data += HEADER.pack(at, len(body)) + body
        at += len(body)
    pieces, copied, heartbeats = Pieces(), b"", 0
    for part in cut(data, places):
        for offset, piece in pieces.feed(memoryview(part)):
            assert offset == begin + len(copied)
            copied += piece
            heartbeats += not piece
    assert copied == log
    assert heartbeats == bodies.count(b"")


@pytest.mark.parametrize("header", [(0, -1), (0, PIECE_BYTES_MAX + 1), (-1, 1)])
def test_a_slave_refuses_a_frame_that_no_master_sends(header: tuple[int, int]) -> None:
    with pytest.raises(HaError, match="a frame has"):
        list(Pieces().feed(memoryview(HEADER.pack(*header))))


@pytest.mark.parametrize(
    ("report", "begin", "end", "first"),
    [
        (0, 0, 10, 0),
        (0, 0, FILE_BYTES + 10, FILE_BYTES),
        (0, FILE_BYTES, FILE_BYTES, FILE_BYTES),
        (1, 0, 10, 1),
        (10, 0, 10, 10),
    ],
)
def test_a_slave_gets_what_it_asks_for_or_the_last_file(
    report: int, begin: int, end: int, first: int
) -> None:
    assert first_offset(report, begin=begin, end=end, file_bytes=FILE_BYTES) == first


@pytest.mark.parametrize(("report", "reason"), [(11, "never had"), (1, "was removed here")])
def test_a_slave_whose_log_does_not_meet_this_one_gets_nothing(report: int, reason: str) -> None:
    with pytest.raises(HaError, match=reason):
        first_offset(report, begin=5, end=10, file_bytes=FILE_BYTES)
