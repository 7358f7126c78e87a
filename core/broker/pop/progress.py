"""Where each group's next pop begins, and when that may be noted for good.

Owns: PopProgress: offsets that are ahead of the table of consume offsets. Must not touch: that
table's file, the log; how far the log is on the disk is an argument.

A pop moves its group on at once. The table, which is saved, follows when the pop's checkpoint is on
the disk: else a machine that fails could leave an offset behind messages that nobody knows to be in
work. Together with an offset, ``MARKS_GROUP`` notes up to which checkpoint the table knows of pops:
those behind it tell at a start how far each group had got.

An offset that somebody else has set meanwhile (a reset, a consumer that pulls) counts.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Final, TypeAlias

from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.errors import BrokerError

#: Its offsets in a revive queue say which checkpoints the saved offsets know of.
MARKS_GROUP: Final = "CID_RMQ_SYS_POP_MARKS"
#: A revive queue and the offset of a record in it.
Mark: TypeAlias = tuple[int, int]


class _Place:
    """A group in a queue that is ahead of the table."""

    __slots__ = ("committed", "next_offset")

    def __init__(self, committed: int | None, next_offset: int) -> None:
        self.committed = committed
        self.next_offset = next_offset


class PopProgress:
    """The offsets of pops; ``offsets`` is the broker's table."""

    def __init__(self, offsets: ConsumerOffsets, revive_topic: str) -> None:
        self._offsets = offsets
        self._revive_topic = revive_topic
        self._ahead: dict[QueueKey, _Place] = {}
        self._waiting: deque[tuple[int, QueueKey, _Place, int, Mark | None]] = deque()

    def next_offset(self, queue: QueueKey) -> int | None:
        """Return where the group's next pop begins; None if it never popped or pulled."""
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        place = self._ahead.get(queue)
        if place is not None:
            if place.committed == committed:
                return place.next_offset
            del self._ahead[queue]
        return committed

    def advance(self, queue: QueueKey, next_offset: int) -> None:
        """Move a group on; ``note`` says when that may be committed."""
        topic, group, queue_id = queue
        self.next_offset(queue)
        place = self._ahead.get(queue)
        if place is None:
            committed = self._offsets.query(group, topic, queue_id)
            self._ahead[queue] = _Place(committed, next_offset)
        else:
            place.next_offset = next_offset

    def back(self, queue: QueueKey, begin_offset: int) -> None:
        """Have a group go on at ``begin_offset``: the pop that began there was not stored."""
        place = self._ahead.get(queue)
        if place is not None and place.next_offset > begin_offset:
            place.next_offset = begin_offset

    def note(
        self, queue: QueueKey, next_offset: int, end_offset: int, mark: Mark | None = None
    ) -> None:
        """Commit ``next_offset`` as soon as the log is on the disk up to ``end_offset``."""
        place = self._ahead.get(queue)
        if place is not None:
            self._waiting.append((end_offset, queue, place, next_offset, mark))

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def commit(self, durable_offset: int) -> None:
        """Commit what may be committed now that the log is on the disk up to there."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable_offset:
            _, queue, place, next_offset, mark = waiting.popleft()
            topic, group, queue_id = queue
            if mark is not None:
                # A table that is full cannot keep it: after a kill some messages come again.
                with contextlib.suppress(BrokerError):
                    self._offsets.commit(MARKS_GROUP, self._revive_topic, *mark)
            committed = self._offsets.query(group, topic, queue_id)
            if self._ahead.get(queue) is not place or committed != place.committed:
                continue
            self._offsets.commit(group, topic, queue_id, next_offset)
            place.committed = next_offset
            if place.next_offset == next_offset:
                del self._ahead[queue]
