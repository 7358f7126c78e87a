"""A follower's copy of any log: equal to it, however the bytes were cut and whenever it crashed."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.errors import ReceivedRecordError
from motelog.core.records.layout import RECORD_BYTES_MIN
from motelog.core.records.scan import scan
from tests.support.followers import answers, feed, fill, log_bytes, log_files, make_follower, pieces
from tests.support.stores import abandon, opened

FILE_BYTES = 8_192
#: Of a record with IPv4 hosts: size, magic, CRC; its own place; the size of its body.
COVERED = [*range(12), *range(28, 36), *range(84, 88)]
BODY_AT = 88


@contextmanager
def folder() -> Iterator[Path]:
    shared = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 40_000), max_size=30),
    every=st.sampled_from([0, 1_000, 3_333]),
    crashes=st.sets(st.integers(0, 30), max_size=3),
    is_buffered=st.booleans(),
    units=st.sampled_from([4, 16]),
)
def test_any_cut_of_any_log_gives_an_equal_folder(
    seed: int,
    count: int,
    cuts: list[int],
    every: int,
    crashes: set[int],
    is_buffered: bool,
    units: int,
) -> None:
    config = {"commitlog_file_bytes": FILE_BYTES, "consume_queue_file_units": units}
    with folder() as path:
        with opened(path / "leader", lmq=True, **config) as leader:
            fill(leader, random.Random(seed), count)
            begin, data = log_bytes(leader)
            expected = answers(leader)
        cuts += range(0, len(data), every) if every else ()
        store = make_follower(path / "follower", write_buffer=is_buffered, **config)
        store.open()
        for number, (offset, piece) in enumerate(pieces(begin, data, cuts)):
            end_offset = store.append_raw(offset, piece)
            assert end_offset == store.end_offset
            assert store.received_offset == offset + len(piece)
            store._raw._check()
            if number in crashes:
                store._log.commit()
                abandon(store)
                store = make_follower(path / "follower", write_buffer=is_buffered, **config)
                report = store.open()
                assert report.damage == []
                assert report.end_offset == store.received_offset == end_offset
                store.append_raw(end_offset, data[end_offset : offset + len(piece)])
        store.unit_flusher._check()
        assert answers(store) == expected
        store.close()
        assert log_files(path / "follower") == log_files(path / "leader")
        with opened(path / "follower", is_follower=True, **config) as store:
            assert answers(store) == expected


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    chosen=st.integers(0, 19),
    at=st.one_of(st.sampled_from(COVERED), st.integers(BODY_AT, 4_000)),
    bit=st.integers(0, 7),
    every=st.sampled_from([100, 1_000, FILE_BYTES]),
)
def test_no_damaged_record_gets_into_the_copy(
    seed: int, chosen: int, at: int, bit: int, every: int
) -> None:
    with folder() as path:
        with opened(path / "leader", lmq=True, commitlog_file_bytes=FILE_BYTES * 16) as leader:
            fill(leader, random.Random(seed), 20)
            begin, data = log_bytes(leader)
            file = leader._log.queue.files[0]
            records, _, _ = scan(file.view, 0, file.size, 0, 20)
        _, _, _, physical_offset, size, *_ = records[chosen]
        body_bytes = int.from_bytes(data[physical_offset + 84 : physical_offset + 88], "big")
        if at >= BODY_AT:
            at = BODY_AT + (at - BODY_AT) % body_bytes if body_bytes else 0
        assert size >= RECORD_BYTES_MIN
        if body_bytes == 0 and 8 <= at < 12:
            at = 0  # nothing is compared with the CRC of no body
        damaged = bytearray(data.ljust(FILE_BYTES * 16, b"\0"))
        damaged[physical_offset + at] ^= 1 << bit
        with opened(
            path / "follower", is_follower=True, commitlog_file_bytes=FILE_BYTES * 16
        ) as store:
            with pytest.raises(ReceivedRecordError) as caught:
                feed(store, begin, bytes(damaged), every)
            assert caught.value.physical_offset == physical_offset
            assert store.end_offset == store.received_offset == physical_offset
            store.append_raw(physical_offset, data[physical_offset:])
            assert log_bytes(store) == (begin, data)
