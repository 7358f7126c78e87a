"""Reads that wait for the log: tried again at their own place, only for who still reads."""

from __future__ import annotations

from collections.abc import Callable

from motelog.core.records.append import QueueTail
from motelog.gateway.log.log_port import LogRead, Waiting
from motelog.gateway.log.reads import Reads
from tests.support.fake_log import HOST, FakeLog


class BusyLog(FakeLog):
    """A log that has no room for a read that waits."""

    is_busy = False

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        return not self.is_busy and super().when_at_hand(waiting, then)


class Stage:
    """Reader names and a queue of ten records."""

    def __init__(self) -> None:
        self.log = BusyLog()
        self.log.create_topic("t", 1)
        self.queue: QueueTail = self.log.queue_tail("t", 0)
        for _ in range(10):
            self.log.append([(self.queue, b"body", b"", 0, 0, HOST, 0, 0, 0, 0)])
        self.told: list[str] = []
        self.reads: Reads[str] = Reads(self.log, read_again=self.told.append)

    def read(self, reader: str, queue_offset: int) -> LogRead | None:
        return self.reads.read(reader, self.queue, queue_offset, count_max=1, bytes_max=100)


def test_read_that_waits_is_asked_for_once_and_tried_again() -> None:
    stage = Stage()
    stage.log.cold = {3}
    assert stage.read("a", 3) is None
    assert stage.read("a", 3) is None
    assert len(stage.log.paging_in) == 1
    assert stage.told == []
    stage.log.paged_in()
    assert stage.told == ["a"]
    found = stage.read("a", 3)
    assert found is not None
    assert found.begin_offset == 3
    assert not stage.reads._attempts


def test_what_cannot_be_kept_at_hand_is_read_after_some_tries() -> None:
    stage = Stage()
    stage.log.cold = {3}
    while stage.read("a", 3) is None:
        stage.log.paged_in(is_warm=False)
    assert stage.told == ["a", "a", "a"]
    assert not stage.reads._attempts


def test_tries_at_one_place_do_not_count_at_another() -> None:
    stage = Stage()
    stage.log.cold = {3, 4}
    for _ in range(2):
        assert stage.read("a", 3) is None
        stage.log.paged_in(is_warm=False)
    tries = 0
    while stage.read("a", 4) is None:
        stage.log.paged_in(is_warm=False)
        tries += 1
    assert tries == 3


def test_readers_do_not_wait_for_each_other() -> None:
    stage = Stage()
    stage.log.cold = {3}
    assert stage.read("a", 3) is None
    assert stage.read("b", 5) is not None
    assert stage.read("b", 3) is None
    stage.log.paged_in()
    assert stage.told == ["a", "b"]


def test_where_too_many_wait_the_reader_is_told_at_once() -> None:
    stage = Stage()
    stage.log.cold = {3}
    stage.log.is_busy = True
    assert stage.read("a", 3) is None
    assert stage.told == ["a"]
    stage.log.is_busy = False
    assert stage.read("a", 3) is None
    assert stage.told == ["a"]
    stage.log.paged_in()
    assert stage.told == ["a", "a"]
    assert stage.read("a", 3) is not None


def test_reader_that_is_forgotten_leaves_nothing_and_is_not_told() -> None:
    stage = Stage()
    stage.log.cold = {3}
    assert stage.read("a", 3) is None
    stage.reads.forget("a")
    assert not stage.reads._attempts
    assert stage.read("a", 3) is None  # another life of the same name
    first, second = stage.log.paging_in
    first()
    assert stage.told == []
    second()
    assert stage.told == ["a"]
    assert stage.read("a", 4) is not None
    assert not stage.reads._attempts
