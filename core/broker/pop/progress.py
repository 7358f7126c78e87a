"""Where each group's next pop begins, and when that may be committed.

Owns: PopProgress: offsets that are ahead of the table of consume offsets. Must not touch: that
table's file, the log; how far the log is on the disk is an argument.

A pop moves its group on at once. The table, which is saved, follows when the pop's checkpoint is on
the disk: otherwise a machine that fails could leave an offset after messages that are in work
without a record of it. Together with an offset, ``MARKS_GROUP`` notes the last checkpoint that the
table includes: at a start, the checkpoints after it show how far each group was.

An offset that is set in another way meanwhile (a reset, a consumer that pulls) takes precedence.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Final, TypeAlias

from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.errors import BrokerError

#: Its offsets in the revive queues say which checkpoints the saved offsets include.
MARKS_GROUP: Final = "CID_RMQ_SYS_POP_MARKS"
#: A revive queue and the offset of a record in it.
Mark: TypeAlias = tuple[int, int]


class _Place:
    """The progress of a group in a queue, ahead of the table."""

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
        """Return the offset of the group's next pop; None if it never popped or pulled."""
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        place = self._ahead.get(queue)
        if place is not None:
            if place.committed == committed:
                return place.next_offset
            del self._ahead[queue]
        return committed

    def advance(self, queue: QueueKey, next_offset: int) -> None:
        """Move a group on; ``note`` sets when that may be committed."""
        topic, group, queue_id = queue
        self.next_offset(queue)
        place = self._ahead.get(queue)
        if place is None:
            committed = self._offsets.query(group, topic, queue_id)
            self._ahead[queue] = _Place(committed, next_offset)
        else:
            place.next_offset = next_offset

    def back(self, queue: QueueKey, begin_offset: int) -> None:
        """Move a group back to ``begin_offset``: the pop that began there was not stored."""
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
        """Commit the offsets that only needed the log on the disk up to ``durable_offset``."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable_offset:
            _, queue, place, next_offset, mark = waiting.popleft()
            topic, group, queue_id = queue
            if mark is not None:
                # A full table cannot keep it: after a kill some messages are delivered again.
                with contextlib.suppress(BrokerError):
                    self._offsets.commit(MARKS_GROUP, self._revive_topic, *mark)
            committed = self._offsets.query(group, topic, queue_id)
            if self._ahead.get(queue) is not place or committed != place.committed:
                continue
            self._offsets.commit(group, topic, queue_id, next_offset)
            place.committed = next_offset
            if place.next_offset == next_offset:
                del self._ahead[queue]
