"""A follower's store: bytes of a leader's log become records, units and keys."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from motelog.core.errors import (
    NextFileError,
    ReceivedOffsetError,
    ReceivedRecordError,
    RecordError,
    StoreFullError,
    StoreRoleError,
)
from motelog.core.records.append import QueueTail
from motelog.core.threads import Workers
from tests.support.followers import answers, feed, fill, log_bytes, log_files, make_follower
from tests.support.stores import (
    RecordingStorage,
    abandon,
    encoded,
    make_store,
    message,
    opened,
    read_bodies,
)


def leader_log(directory: Path, count: int = 60) -> tuple[int, bytes]:
    """Return the bytes of a log over several files, with records of all kinds."""
    with opened(directory, lmq=True) as store:
        fill(store, random.Random(1), count)
        return log_bytes(store)


@pytest.mark.parametrize("piece_bytes", [1, 700, 1 << 20])
def test_a_log_in_pieces_of_any_size_is_copied(tmp_path: Path, piece_bytes: int) -> None:
    with opened(tmp_path / "leader", lmq=True) as leader:
        fill(leader, random.Random(1), 60)
        begin, data = log_bytes(leader)
        with opened(tmp_path / "follower", is_follower=True) as follower:
            feed(follower, begin, data, piece_bytes)
            assert follower.end_offset == follower.received_offset == leader.end_offset
            assert follower.now_ms() == leader.now_ms()
            expected = answers(leader)
            assert len(expected["keys"]["a"]) > 1
            assert {key[0] for key in expected["units"]} >= {"%LMQ%x", "SCHEDULE_TOPIC_XXXX"}
            assert answers(follower) == expected
            follower._check_open()
            follower.unit_flusher._check()
    assert log_files(tmp_path / "follower") == log_files(tmp_path / "leader")
    assert len(log_files(tmp_path / "leader")) > 2
    with opened(tmp_path / "follower", is_follower=True) as follower:
        assert answers(follower) == expected


def test_a_record_is_held_back_until_it_is_complete(tmp_path: Path) -> None:
    record = encoded(message(QueueTail(b"T", 0, 0), b"one"))
    with opened(tmp_path, is_follower=True) as store:
        growth = store.readable.follow()
        for at in range(len(record) - 1):
            assert store.append_raw(at, record[at : at + 1]) == 0
            assert store.received_offset == at + 1
        assert (growth.take(), read_bodies(store)) == ([], {})
        assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes().strip(b"\0") == b""
        assert store.append_raw(len(record) - 1, record[-1:]) == len(record)
        assert [tail.topic for tail in growth.take()] == [b"T"]
        assert read_bodies(store) == {("T", 0): [b"one"]}


def test_what_is_held_back_can_be_dropped(tmp_path: Path) -> None:
    record = encoded(message(QueueTail(b"T", 0, 0), b"one"))
    with opened(tmp_path, is_follower=True) as store:
        store.append_raw(0, record[:50])
        store.drop_received()
        assert store.received_offset == 0
        store.append_raw(0, record)
        assert read_bodies(store) == {("T", 0): [b"one"]}


@pytest.mark.parametrize("offset", [0, 49, 51, 16_384])
def test_bytes_that_leave_a_gap_or_come_again_are_refused(tmp_path: Path, offset: int) -> None:
    record = encoded(message(QueueTail(b"T", 0, 0), b"one"))
    with opened(tmp_path, is_follower=True) as store:
        store.append_raw(0, record[:50])
        with pytest.raises(ReceivedOffsetError) as caught:
            store.append_raw(offset, record[50:])
        assert (caught.value.offset, caught.value.expected) == (offset, 50)
        store.append_raw(50, record[50:])
        assert read_bodies(store) == {("T", 0): [b"one"]}


def test_each_role_appends_in_its_own_way(tmp_path: Path) -> None:
    with opened(tmp_path / "leader") as store:
        with pytest.raises(StoreRoleError):
            store.append_raw(0, b"")
        store.append([message(store.queue_tail("T", 0))])
    with opened(tmp_path / "follower", is_follower=True) as store:
        with pytest.raises(StoreRoleError):
            store.append([message(store.queue_tail("T", 0))])
        with pytest.raises(StoreRoleError):
            store.append([message(store.queue_tail("T", 0))], even_if_full=True)
        assert store.end_offset == 0


DAMAGE = {
    "size": (0, 4),
    "magic": (4, 5),
    "crc": (8, 9),
    "physical offset": (28, 36),
    "body size": (84, 88),
    "body": (88, 91),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_refused_and_those_before_it_are_kept(
    tmp_path: Path, name: str
) -> None:
    tail = QueueTail(b"T", 0, 0)
    good = encoded(*(message(tail, b"%d" % n) for n in range(3)))
    bad = encoded(message(tail, b"bad"), base=len(good))
    end = len(good) + len(bad)
    after = encoded(message(tail, b"after"), base=end)
    for at in range(*DAMAGE[name]):
        flip = len(good) + at
        wrong = good + bad + after
        wrong = wrong[:flip] + bytes([wrong[flip] ^ 1]) + wrong[flip + 1 :]
        with opened(tmp_path / str(at), is_follower=True) as store:
            with pytest.raises(ReceivedRecordError) as caught:
                feed(store, 0, wrong.ljust(16_384, b"\0"))  # a larger size is waited for
            assert caught.value.physical_offset == len(good)
            assert store.end_offset == store.received_offset == len(good)
            assert read_bodies(store) == {("T", 0): [b"0", b"1", b"2"]}
            with pytest.raises(RecordError):
                store.reader.record_at(len(good))
            store.append_raw(len(good), bad + after)
            assert read_bodies(store)["T", 0][-2:] == [b"bad", b"after"]


def test_a_record_that_leaves_a_gap_in_its_queue_is_refused(tmp_path: Path) -> None:
    first = encoded(message(QueueTail(b"T", 0, 0), b"first"))
    other = encoded(message(QueueTail(b"U", 0, 0), b"other"), base=len(first))
    begin = len(first + other)
    later = encoded(message(QueueTail(b"T", 0, 2), b"later"), base=begin)
    with opened(tmp_path, is_follower=True) as store:
        with pytest.raises(ReceivedRecordError, match="queue offset 2 in T, queue 0, not 1"):
            store.append_raw(0, first + other + later)
        assert store.end_offset == store.received_offset == begin
        assert read_bodies(store) == {("T", 0): [b"first"], ("U", 0): [b"other"]}


def test_zeros_are_no_record(tmp_path: Path) -> None:
    with (
        opened(tmp_path, is_follower=True) as store,
        pytest.raises(ReceivedRecordError, match="zeros"),
    ):
        store.append_raw(0, bytes(100))


@pytest.mark.parametrize("topic", [b"a/b", b"..", b"a b"])
def test_a_topic_that_could_be_no_folder_is_refused(tmp_path: Path, topic: bytes) -> None:
    record = encoded(message(QueueTail(topic, 0, 0)))
    with opened(tmp_path, is_follower=True) as store:
        with pytest.raises(ReceivedRecordError, match="cannot be a queue"):
            store.append_raw(0, record)
        assert list(store.queues()) == []


def test_a_queue_id_out_of_range_is_refused(tmp_path: Path) -> None:
    record = encoded(message(QueueTail(b"T", 65_536, 0)))
    with (
        opened(tmp_path, is_follower=True) as store,
        pytest.raises(ReceivedRecordError, match="65536"),
    ):
        store.append_raw(0, record)


def test_a_record_longer_than_a_message_may_be_is_not_waited_for(tmp_path: Path) -> None:
    record = encoded(message(QueueTail(b"T", 0, 0), bytes(100_000)))
    config = {"commitlog_file_bytes": 1 << 18, "message_bytes_max": 50_000}
    with (
        opened(tmp_path, is_follower=True, **config) as store,
        pytest.raises(ReceivedRecordError, match="message_bytes_max"),
    ):
        store.append_raw(0, record[:100])


def test_a_blank_record_ends_the_file_and_nothing_else(tmp_path: Path) -> None:
    """Its size has to lead to the file's end: here to the end of a piece alone."""
    record = encoded(message(QueueTail(b"T", 0, 0)))
    blank = (20).to_bytes(4, "big") + bytes.fromhex("CBD43194") + bytes(12)
    with opened(tmp_path, is_follower=True) as store:
        with pytest.raises(ReceivedRecordError) as caught:
            store.append_raw(0, record + blank)
        assert caught.value.physical_offset == store.end_offset == len(record)


def test_bytes_behind_a_blank_record_are_copied(tmp_path: Path) -> None:
    begin, data = leader_log(tmp_path / "leader")
    at = data.index(bytes.fromhex("CBD43194")) + 4
    end = -(-at // 16_384) * 16_384
    data = data[:at] + b"garbage "[: end - at].ljust(end - at, b"g") + data[end:]
    with opened(tmp_path / "follower", is_follower=True, write_buffer=True) as store:
        feed(store, begin, data)
    assert (tmp_path / "follower/commitlog" / f"{end - 16_384:020d}").read_bytes() == data[
        end - 16_384 : end
    ]
    with opened(tmp_path / "follower", is_follower=True) as store:
        assert store.end_offset == len(data)


def test_queue_offsets_that_are_taken_get_no_second_unit(tmp_path: Path) -> None:
    """RocketMQ begins again at 0 when a topic was deleted; its slave keeps the old units, too."""
    old, new = QueueTail(b"T", 0, 0), QueueTail(b"T", 0, 0)
    data = encoded(*(message(old, b"old%d" % n) for n in range(2)))
    data += encoded(*(message(new, b"new%d" % n) for n in range(3)), base=len(data))
    with opened(tmp_path, is_follower=True) as store:
        feed(store, 0, data)
        assert store.end_offset == len(data)
        assert read_bodies(store) == {("T", 0): [b"old0", b"old1", b"new2"]}
        abandon(store)
    with opened(tmp_path) as store:
        assert store.end_offset == len(data)
        assert read_bodies(store) == {("T", 0): [b"old0", b"old1", b"new2"]}


async def test_copied_records_become_durable(tmp_path: Path) -> None:
    begin, data = leader_log(tmp_path / "leader")
    store = make_follower(tmp_path / "follower", flush_interval_ms=1_000)
    store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        feed(store, begin, data)
        with trio.fail_after(10):
            await store.wait_durable(store.end_offset)
        assert store.durable_offset == len(data)
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "follower/abort").exists()


def test_a_limit_hides_copied_records_and_their_growth(tmp_path: Path) -> None:
    tail = QueueTail(b"T", 0, 0)
    first = encoded(message(tail, b"first"))
    second = encoded(message(tail, b"second"), base=len(first))
    with opened(tmp_path, is_follower=True) as store:
        store.readable.set_limit(len(first))
        growth = store.readable.follow()
        store.append_raw(0, first + second)
        growth.take()
        assert read_bodies(store) == {("T", 0): [b"first"]}
        store.readable.set_limit(store.end_offset)
        assert [tail.topic for tail in growth.take()] == [b"T"]
        assert read_bodies(store) == {("T", 0): [b"first", b"second"]}
        store.readable._check()


def test_bytes_refused_by_a_full_disk_are_taken_later(tmp_path: Path) -> None:
    storage = RecordingStorage()
    record = encoded(message(QueueTail(b"T", 0, 0), b"one"))
    limits = {"disk_used_percent_max": 90, "disk_free_bytes_min": 1}
    with opened(tmp_path, storage=storage, is_follower=True, **limits) as store:
        store.append_raw(0, record[:50])
        storage.used_percent, storage.free_bytes = 99.0, 1 << 20
        store.disk_watch.check()
        with pytest.raises(StoreFullError):
            store.append_raw(50, record[50:])
        assert store.received_offset == 50
        storage.used_percent, storage.free_bytes = 10.0, 1 << 30
        store.disk_watch.check()
        store.append_raw(50, record[50:])
        assert read_bodies(store) == {("T", 0): [b"one"]}


def test_the_next_file_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, data = leader_log(tmp_path / "leader")
    with opened(tmp_path / "follower", is_follower=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store._log.queue, "make_ahead", lambda count=1: None)
            last = 16_384 - 1
            store.append_raw(begin, data[:last])
            with pytest.raises(NextFileError):
                store.append_raw(last, data[last : last + 1], may_wait=False)
        assert store.received_offset == last
        store.append_raw(last, data[last:])
        assert store.end_offset == len(data)


def test_a_batch_that_lacks_memory_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, data = leader_log(tmp_path / "leader")
    with opened(tmp_path / "leader", lmq=True) as leader:
        expected = answers(leader)
    with opened(tmp_path / "follower", is_follower=True) as store:

        def lack(*_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(store.unit_flusher, "note", lack)
            with pytest.raises(StoreFullError):
                store.append_raw(begin, data)
        assert (store.end_offset, store.received_offset, read_bodies(store)) == (0, 0, {})
        assert log_files(tmp_path / "follower") == {}
        feed(store, begin, data)
        assert answers(store) == expected
    assert log_files(tmp_path / "follower") == log_files(tmp_path / "leader")


@pytest.mark.parametrize("taken", [1, 5_000, 16_384, 30_000])
def test_a_killed_follower_goes_on_from_its_last_whole_record(tmp_path: Path, taken: int) -> None:
    begin, data = leader_log(tmp_path / "leader")
    store = make_follower(tmp_path / "follower")
    store.open()
    feed(store, begin, data[:taken])
    end_offset = store.end_offset
    abandon(store)
    with opened(tmp_path / "leader", lmq=True) as leader:
        expected = answers(leader)
    with opened(tmp_path / "follower", is_follower=True) as store:
        assert store.received_offset == store.end_offset == end_offset
        feed(store, end_offset, data[end_offset:])
        assert answers(store) == expected
    assert log_files(tmp_path / "follower") == log_files(tmp_path / "leader")


def test_a_follower_that_becomes_the_leader_appends_where_the_copy_ends(tmp_path: Path) -> None:
    begin, data = leader_log(tmp_path / "leader")
    with opened(tmp_path / "follower", is_follower=True) as store:
        feed(store, begin, data[:-10])
        end_offset = store.end_offset
    store = make_store(tmp_path / "follower")
    report = store.open()
    assert (report.was_clean, report.end_offset, report.cut_bytes) == (True, end_offset, 0)
    before = store.reader.max_offset("a", 0)
    placed: list[tuple[int, int]] = []
    store.append([message(store.queue_tail("a", 0), b"own")], placed)
    assert placed == [(end_offset, before)]
    store.close()


def test_workers_are_not_needed_for_a_copy(tmp_path: Path) -> None:
    """A file that no thread could make ahead is made in place."""
    begin, data = leader_log(tmp_path / "leader")

    class NoWorkers(Workers):
        def __init__(self) -> None:
            pass

        def submit(self, *_: object) -> None:  # type: ignore[override]  # raises
            raise OSError(11, "no thread")

        def shut_down(self) -> None:
            pass

    store = make_follower(tmp_path / "follower")
    store.open()
    store._log.queue._ahead._workers.shut_down()  # type: ignore[union-attr]  # it is open
    store._log.queue._ahead._workers = NoWorkers()
    feed(store, begin, data)
    store.close()
    assert log_files(tmp_path / "follower") == log_files(tmp_path / "leader")
