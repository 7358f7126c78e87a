"""MessageStore as the broker uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from motelog.core.clock import ManualClock
from motelog.core.errors import RecordError, StoreError
from motelog.core.message import tags_code
from motelog.core.records.decode import decode, decode_messages
from motelog.core.store.message_store import MessageStore
from motelog.core.store.state.checkpoint import StoreCheckpoint
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import make_store, message, opened, read_bodies


def append(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0) -> None:
    tail = store.queue_tail(topic, queue_id)
    store.append([message(tail, b"%d" % i) for i in range(count)])


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a" * 128, "\u00fc", "a b"])
def test_a_name_that_is_no_topics_is_refused(tmp_path: Path, topic: str) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(StoreError, match="topic"):
            store.queue_tail(topic, 0)
        assert list((tmp_path / "consumequeue").iterdir()) == []


@pytest.mark.parametrize("queue_id", [-1, 65_536])
def test_a_queue_id_out_of_range_is_refused(tmp_path: Path, queue_id: int) -> None:
    with opened(tmp_path) as store, pytest.raises(StoreError, match="queue id"):
        store.queue_tail("T", queue_id)


def test_an_empty_queue_costs_no_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.queue_tail("T", 0) is store.queue_tail("T", 0)
        assert list(store.queues()) == [("T", 0)]
        assert list((tmp_path / "consumequeue").iterdir()) == []


def test_each_status_of_a_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.reader.read("none", 0, 0).status is ReadStatus.NO_QUEUE
        store.queue_tail("T", 0)
        assert store.reader.read("T", 0, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
        append(store, 5)
        small = store.reader.read("T", 0, -1)
        assert (small.status, small.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, 0)
        one = store.reader.read("T", 0, 5)
        assert (one.status, one.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 5)
        far = store.reader.read("T", 0, 6)
        assert (far.status, far.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 5)
        found = store.reader.read("T", 0, 1, count_max=3)
        assert (found.status, found.count, found.next_offset) == (ReadStatus.FOUND, 3, 4)
        assert (found.min_offset, found.max_offset) == (0, 5)
        assert [m.body for m in decode_messages(found.records)] == [b"1", b"2", b"3"]


def test_the_first_message_is_returned_whatever_its_size(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, 3)
        result = store.reader.read("T", 0, 0, bytes_max=1)
        assert (result.count, result.next_offset) == (1, 1)


def test_a_tag_filter_looks_at_eight_hundred_units_at_most(tmp_path: Path) -> None:
    with opened(tmp_path, commitlog_file_bytes=1 << 20, consume_queue_file_units=300) as store:
        tail = store.queue_tail("T", 0)
        code = tags_code("wanted")
        store.append([message(tail, tags_code=code if i == 900 else 1) for i in range(1000)])
        first = store.reader.read("T", 0, 0, tag_codes=frozenset({code}))
        assert (first.status, first.next_offset) == (ReadStatus.NO_MATCH, 800)
        second = store.reader.read("T", 0, 800, tag_codes=frozenset({code}))
        assert (second.status, second.count, second.next_offset) == (ReadStatus.FOUND, 1, 1000)
        assert decode(second.records)[0][2] == 900


def test_listeners_get_the_queues_that_grew_when_the_records_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        seen: list[tuple[bytes, int, int]] = []

        def look() -> None:
            for tail in growth.take():
                topic = tail.topic.decode()
                offset = tail.next_offset - 1
                found = store.reader.read(topic, tail.queue_id, offset)
                seen.append((tail.topic, offset, found.count))

        growth = store.readable.follow(wake=look)
        one, two = store.queue_tail("A", 0), store.queue_tail("B", 0)
        store.append([message(one), message(two), message(one)])
        assert seen == [(b"A", 1, 1), (b"B", 0, 1)]


def test_offsets_by_time(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    with opened(tmp_path, clock=clock) as store:
        for _ in range(4):
            append(store, 2)
            clock.advance(10)
        assert store.reader.store_timestamp("T", 0, 3) == 1_010
        for wanted, expected in (
            (0, 0),
            (1_000, 0),
            (1_001, 2),
            (1_010, 2),
            (1_030, 6),
            (1_031, 8),
        ):
            assert store.reader.offset_by_time("T", 0, wanted) == expected
        assert store.reader.offset_by_time("none", 0, 5) == 0
        assert [store.reader.store_timestamp("T", 0, i) for i in (-1, 8)] == [-1, -1]
        assert (store.reader.min_offset("T", 0), store.reader.max_offset("T", 0)) == (0, 8)
        assert (store.reader.min_offset("none", 0), store.reader.max_offset("none", 0)) == (0, 0)


def test_a_record_is_found_by_its_physical_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        placed: list[tuple[int, int]] = []
        store.append([message(store.queue_tail("T", 0), b"me")], placed)
        assert decode(store.reader.record_at(placed[0][0]))[0][13] == b"me"
        with pytest.raises(RecordError):
            store.reader.record_at(1)


async def test_run_leaves_a_clean_folder_when_it_is_cancelled(tmp_path: Path) -> None:
    store = make_store(tmp_path, flush="sync")
    store.open()
    assert (tmp_path / "abort").exists()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        append(store, 3)
        with trio.fail_after(10):
            await store.wait_durable(store.end_offset)
        assert store.durable_offset == store.end_offset
        append(store, 1)
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "abort").exists()
    again = make_store(tmp_path)
    report = again.open()
    assert report.was_clean
    assert read_bodies(again) == {("T", 0): [b"0", b"1", b"2", b"0"]}
    again.close()


def test_closing_twice_is_no_fault(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.open()
    store.close()
    store.close()


@pytest.mark.parametrize("by", ["offset", "time"])
def test_a_start_after_a_checkpoint_begins_where_it_says(tmp_path: Path, by: str) -> None:
    clock = ManualClock(1_000_000)
    with opened(tmp_path, clock=clock) as store:
        for _ in range(6):
            append(store, 80)
            clock.advance(2_000)
    (tmp_path / "abort").touch()
    if by == "time":
        # As RocketMQ writes it.
        page = (tmp_path / "checkpoint").read_bytes()
        (tmp_path / "checkpoint").write_bytes(page[:24].ljust(4096, b"\0"))
    with_hint = make_store(tmp_path)
    report = with_hint.open()
    if by == "time":
        assert 0 < report.scanned_from < report.end_offset
        assert 0 < report.records < 480
    else:
        assert report.scanned_from == report.end_offset > 0
        assert report.records == 0
    assert len(read_bodies(with_hint)[("T", 0)]) == 480
    with_hint.close()


def test_a_store_that_is_opened_again_does_not_read_its_last_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, 100)
        end = store.end_offset
    again = make_store(tmp_path)
    report = again.open(trusts_stop=True)
    assert (report.was_clean, report.scanned_from, report.records) == (True, end, 0)
    append(again, 1)
    assert len(read_bodies(again)[("T", 0)]) == 101
    again.close()


def test_a_checkpoint_of_another_log_is_not_believed(tmp_path: Path) -> None:
    """A folder put together by hand: the checkpoint's offset is no record's."""
    with opened(tmp_path) as store:
        append(store, 100)
        end = store.end_offset
    (tmp_path / "abort").touch()
    page = StoreCheckpoint(1, 1, 0, end // 2 + 1).encode()
    (tmp_path / "checkpoint").write_bytes(page)
    again = make_store(tmp_path)
    report = again.open()
    assert (report.scanned_from, report.records, report.damage) == (0, 100, [])
    again.close()
