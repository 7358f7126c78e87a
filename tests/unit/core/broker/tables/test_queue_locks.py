"""Locks of orderly consumers, with a time that the test moves."""

from __future__ import annotations

from motelog.core.broker.tables.queue_locks import LOCK_MS, QueueLocks
from motelog.core.message import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_queue_has_one_holder_per_group() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "a", [Q0], 0) == [Q0]
    assert locks.lock("G", "b", [Q0, Q1], 1) == [Q1]
    assert locks.lock("H", "b", [Q0], 1) == [Q0]


def test_a_lock_ends_unless_it_is_renewed() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [Q0], 0)
    assert locks.lock("G", "a", [Q0], LOCK_MS - 1) == [Q0]
    assert locks.lock("G", "b", [Q0], LOCK_MS) == []
    assert locks.lock("G", "b", [Q0], 2 * LOCK_MS) == [Q0]


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [Q0], 0)
    locks.unlock("G", "b", [Q0])
    assert locks.lock("G", "b", [Q0], 1) == []
    locks.unlock("G", "a", [Q0, Q1])
    assert locks.lock("G", "b", [Q0], 1) == [Q0]


def test_old_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [Q0, Q1], 0)
    locks.lock("G", "a", [Q1], 5)
    assert locks.has_any("G", LOCK_MS + 4)
    assert not locks.has_any("G", LOCK_MS + 5)
    assert not locks.has_any("H", 0)
    locks.expire(LOCK_MS)
    assert len(locks) == 1
    locks.unlock("G", "a", [Q1])
    assert not locks.has_any("G", LOCK_MS)
