"""Which half messages are over: all below one offset, and others one by one.

Owns: Ledger. Must not touch: the store, files, clocks.

    half queue   ------ all over ------|-- over, open, over, over, open --
                                     begin
    op queue     -- only about those --|-- the rest --
                    below begin     op_begin

A half message is over if it was ended, or appended again later in the queue. ``progress`` is what a
restart needs: the ops from ``op_begin`` on name all that are over from ``begin`` on, except copies.
Invariants: ``begin`` never goes back; nothing below it is in ``_over``; an op stays until all half
messages that it names are below ``begin``.
"""

from __future__ import annotations

from collections import deque


class Ledger:
    """The ends of a broker's half messages; all offsets are queue offsets."""

    def __init__(self) -> None:
        self.begin = 0
        # Half messages below were there at the broker's start: their ends may be unknown.
        self.opened_at = 0
        # Half messages whose end is being appended.
        self.ending: set[int] = set()
        self._over: set[int] = set()
        # (op offset, the last half message that it names), in the order of the op queue.
        self._ops: deque[tuple[int, int]] = deque()
        self._op_end = 0

    def start(self, begin: int, op_begin: int, opened_at: int) -> None:
        """Begin at saved progress, before the ops after it are noted."""
        self.begin, self._op_end, self.opened_at = begin, op_begin, opened_at

    @property
    def progress(self) -> tuple[int, int]:
        """(begin, op_begin), to be saved once all records so far are on the disk."""
        return self.begin, self._ops[0][0] if self._ops else self._op_end

    def is_over(self, queue_offset: int) -> bool:
        return queue_offset < self.begin or queue_offset in self._over

    def note_op(self, op_offset: int, ended: list[int]) -> None:
        """Note an op record, and that the half messages it names are over."""
        self._op_end = max(self._op_end, op_offset + 1)
        ended = [offset for offset in ended if offset >= self.begin]
        if ended:
            self._ops.append((op_offset, max(ended)))
            self._over.update(ended)
            self._advance()

    def move_to(self, begin: int) -> None:
        """Note that all half messages below ``begin`` are over."""
        if begin > self.begin:
            if len(self._over) < begin - self.begin:
                self._over = {offset for offset in self._over if offset >= begin}
            else:
                self._over.difference_update(range(self.begin, begin))
            self.begin = begin
            self._advance()

    def next_open(self, queue_offset: int) -> int:
        """Return the first offset from ``queue_offset`` on that is not known to be over."""
        queue_offset = max(queue_offset, self.begin)
        while queue_offset in self._over:
            queue_offset += 1
        return queue_offset

    def _advance(self) -> None:
        while self.begin in self._over:
            self._over.remove(self.begin)
            self.begin += 1
        while self._ops and self._ops[0][1] < self.begin:
            self._ops.popleft()

    def _check(self) -> None:
        """Assert the invariants."""
        assert all(offset > self.begin for offset in self._over)
        assert all(last >= self.begin for _, last in list(self._ops)[:1])
        assert all(op < self._op_end for op, _ in self._ops)
