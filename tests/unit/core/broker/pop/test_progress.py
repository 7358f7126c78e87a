"""Where groups go on: at once for pops, in the table when the disk has what they gave out."""

from __future__ import annotations

import pytest

from motelog.core.broker.pop.progress import MARKS_GROUP, PopProgress
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.clock import ManualClock

QUEUE = ("T", "G", 0)


@pytest.fixture
def offsets() -> ConsumerOffsets:
    offsets = ConsumerOffsets(entries_max=10, clock=ManualClock())
    offsets.commit("G", "T", 0, 5)
    return offsets


def test_the_table_follows_when_the_checkpoint_is_on_the_disk(offsets: ConsumerOffsets) -> None:
    progress = PopProgress(offsets, "R")
    for next_offset, end in ((8, 100), (9, 200)):
        progress.advance(QUEUE, next_offset)
        progress.note(QUEUE, next_offset, end, (3, next_offset))
    assert progress.next_offset(QUEUE) == 9
    progress.commit(99)
    assert offsets.query("G", "T", 0) == 5
    progress.commit(150)
    assert (offsets.query("G", "T", 0), offsets.query(MARKS_GROUP, "R", 3)) == (8, 8)
    assert progress.next_offset(QUEUE) == 9
    progress.commit(200)
    assert (offsets.query("G", "T", 0), progress.is_waiting) == (9, False)


def test_an_offset_that_somebody_else_sets_counts(offsets: ConsumerOffsets) -> None:
    progress = PopProgress(offsets, "R")
    progress.advance(QUEUE, 8)
    progress.note(QUEUE, 8, 100)
    offsets.commit("G", "T", 0, 2)
    assert progress.next_offset(QUEUE) == 2
    progress.advance(QUEUE, 4)
    progress.commit(100)
    # What was popped before the reset does not undo it.
    assert (offsets.query("G", "T", 0), progress.next_offset(QUEUE)) == (2, 4)


def test_a_pop_that_was_not_stored_is_taken_back(offsets: ConsumerOffsets) -> None:
    progress = PopProgress(offsets, "R")
    progress.advance(QUEUE, 8)
    progress.back(QUEUE, 5)
    assert progress.next_offset(QUEUE) == 5


def test_a_full_table_keeps_no_marks(offsets: ConsumerOffsets) -> None:
    for i in range(9):
        offsets.commit("other", "T", i, 1)
    progress = PopProgress(offsets, "R")
    progress.advance(QUEUE, 8)
    progress.note(QUEUE, 8, 100, (0, 0))
    progress.commit(100)
    assert offsets.query("G", "T", 0) == 8
    assert offsets.query(MARKS_GROUP, "R", 0) is None
