"""Queues to which publishers have moved: a receiver reads them after what is older elsewhere.

Owns: Moves: which queues those are, up to where the older messages go, which queues rest. Must not
touch: cursors (``catch_up``), live positions (``delivery``), the move itself (``gateway.log``).
Invariants: a receiver reads a queue to which publishers have moved once it has read, in the queues
from which they came, everything up to the time of the move. If it has read on in the new queue
since the move, it has. The live path rests in the new queue from the beginning of a move until it
has read everything older. Shared subscriptions do not wait: their members have no order among them.
Spec: MQTT 5.0 section 4.6.

    from      m1 m2 m3 | m7          m7 is of a publisher that has stayed
    new          m4 m5 m6            of one that has moved: after m3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues
from motelog.gateway.log.log_port import LogPort, QueueHandle
from motelog.gateway.sessions.session import Session

#: Larger than any offset: it is not known yet how far older messages go.
_UNKNOWN: Final = 1 << 62


class Move:
    """A move to one queue: its offset then, and those of the queues from which publishers came."""

    __slots__ = ("begin", "ends", "is_over")

    def __init__(self) -> None:
        self.begin = _UNKNOWN
        self.ends: dict[QueueHandle, int] = {}
        self.is_over = False

    def note(self, handle: QueueHandle, queue_offset: int) -> None:
        """Note the offset that a queue had when the move was over."""
        if handle in self.ends:
            self.ends[handle] = queue_offset
        else:
            self.begin = queue_offset

    def is_early(self, cursors: Mapping[WatchedQueue, int]) -> bool:
        """Whether a receiver that lags at these cursors has older messages to get."""
        ends = self.ends
        return any(at < ends.get(queue.handle, 0) for queue, at in cursors.items())


#: Of a queue to which nobody has moved.
_NONE: Final = Move()


class Moves:
    """The moves to the queues of one gateway."""

    def __init__(
        self, log: LogPort, queues: WatchedQueues, *, known: Callable[[WatchedQueue], None]
    ) -> None:
        """``known`` is called with a queue about whose move more is known."""
        self._log_port = log
        self._queues = queues
        self._known = known
        self._moves: dict[QueueHandle, Move] = {}
        #: The queues in which the live path rests.
        self.resting: dict[WatchedQueue, Move] = {}
        log.on_topic_created(self._on_topic_changed)

    def is_early(
        self, cursors: Mapping[WatchedQueue, int], queue: WatchedQueue, queue_offset: int
    ) -> bool:
        """Whether a receiver must not read ``queue`` from an offset on yet.

        ``cursors`` are where it lags; it is at the live position of the other queues.
        """
        move = self._moves.get(queue.handle)
        if move is None:
            move = self._find(queue)
        return bool(move.ends) and queue_offset <= move.begin and move.is_early(cursors)

    def may_go_on(self, queue: WatchedQueue) -> bool:
        """Whether the live path may read a queue in which it rests; it then rests no longer."""
        move = self.resting[queue]
        by_handle = self._queues.by_handle
        for handle, end in move.ends.items():
            older = by_handle.get(handle)
            if older is not None and not (older.is_known and older.next_offset >= end):
                return False
        if not move.is_over:
            return False
        del self.resting[queue]
        return True

    def behind(self, queue: WatchedQueue) -> list[Session]:
        """Return the receivers that must not get a queue from the live path: they are early."""
        move = self._moves[queue.handle]
        older = filter(None, map(self._queues.by_handle.get, move.ends))
        lagging = {session for one in older for session in one.lagging}
        return [session for session in lagging if move.is_early(session.lagging or {})]

    def after(self, queue: WatchedQueue) -> list[WatchedQueue]:
        """Return the resting queues that wait for ``queue``."""
        return [one for one, move in self.resting.items() if queue.handle in move.ends]

    def _find(self, queue: WatchedQueue) -> Move:
        """Find out whether publishers have moved to a queue; ask for the offsets of the move."""
        moved = self._log_port.moved_from(queue.handle)
        move = self._moves[queue.handle] = _NONE if moved is None else Move()
        if moved is not None:
            move.ends = dict.fromkeys(moved.queues, _UNKNOWN)
            move.is_over = moved.time_ms > 0
            for handle in (queue.handle, *moved.queues) if move.is_over else ():
                then = partial(self._found, queue, move, handle)
                found = self._log_port.offset_at(handle, moved.time_ms, then)
                if found is not None:
                    move.note(handle, found)
        return move

    def _found(
        self, queue: WatchedQueue, move: Move, handle: QueueHandle, queue_offset: int
    ) -> None:
        move.note(handle, queue_offset)
        self._known(queue)

    def _on_topic_changed(self, topic: str) -> None:
        for queue in list(self._queues.by_handle.values()):
            before = self._moves.get(queue.handle)
            if queue.topic != topic or (before is not None and before.is_over):
                continue
            move = self._find(queue)
            if move.ends and (before is not None or not move.is_over):
                self.resting[queue] = move
                self._known(queue)
