"""Checkpoints that are not settled: counts, what is due, what need not be read again."""

from __future__ import annotations

from motelog.core.broker.pop.checkpoints import STALE_RECORDS, Checkpoint, Checkpoints


def checkpoint(begin: int, *, pop_time_ms: int = 0, invisible_ms: int = 100) -> Checkpoint:
    return Checkpoint(
        ("T", "G", 0),
        begin,
        (begin, begin + 1),
        pop_time_ms=pop_time_ms,
        invisible_ms=invisible_ms,
        revive_queue=0,
    )


def test_what_is_acknowledged_in_full_is_settled() -> None:
    checkpoints = Checkpoints(revive_queues=1)
    one = checkpoint(0)
    checkpoints.add(one, 0)
    assert (checkpoints.open_count, checkpoints.open_in(one.queue_key)) == (2, 2)
    assert checkpoints.ack(one, [1, 7]) == 1
    assert checkpoints.ack(one, [1]) == 0
    checkpoints._check()
    assert checkpoints.ack(one, [0]) == 1
    checkpoints._check()
    assert (len(checkpoints), checkpoints.open_count) == (0, 0)
    assert checkpoints.get(one.key) is None
    assert checkpoints.next_due_ms() is None


def test_what_is_due_comes_in_its_order() -> None:
    checkpoints = Checkpoints(revive_queues=1)
    later, sooner = checkpoint(0, invisible_ms=200), checkpoint(2)
    checkpoints.add(later, 0)
    checkpoints.add(sooner, 1)
    assert checkpoints.take_due(99, 10) == []
    assert checkpoints.take_due(200, 1) == [sooner]
    checkpoints.put_off(sooner, 300)
    assert checkpoints.take_due(299, 10) == [later]
    assert checkpoints.next_due_ms() == 300


def test_the_oldest_that_is_open_holds_its_place() -> None:
    checkpoints = Checkpoints(revive_queues=2)
    assert checkpoints.done_with() == [-1, -1]
    old, new = checkpoint(0), checkpoint(2)
    checkpoints.add(old, 3)
    checkpoints.add(new, 4)
    checkpoints.saw(0, 5)
    assert checkpoints.done_with() == [2, -1]
    checkpoints.settle(old)
    assert checkpoints.done_with() == [3, -1]
    checkpoints.settle(new)
    assert checkpoints.done_with() == [5, -1]
    assert checkpoints.has_changed()
    assert not checkpoints.has_changed()


def test_a_long_one_is_written_again() -> None:
    checkpoints = Checkpoints(revive_queues=1)
    long = checkpoint(0)
    checkpoints.add(long, 0)
    checkpoints.saw(0, STALE_RECORDS - 1)
    assert checkpoints.stale(10) == []
    checkpoints.saw(0, STALE_RECORDS)
    assert checkpoints.stale(10) == [long]
    checkpoints.move(long, STALE_RECORDS + 1)
    assert checkpoints.stale(10) == []
    assert checkpoints.done_with() == [STALE_RECORDS]
    # Read after a restart, the second record of it counts.
    checkpoints.add(checkpoint(0), STALE_RECORDS + 2)
    checkpoints._check()
    assert len(checkpoints) == 1


def test_no_two_pops_have_one_name() -> None:
    checkpoints = Checkpoints(revive_queues=1)
    checkpoints.add(checkpoint(0, pop_time_ms=5), 0)
    assert checkpoints.free_time("T", "G", [(0, 0), (1, 0)], 5) == 4
    assert checkpoints.free_time("T", "G", [(0, 1)], 5) == 5
