"""What readers of a master do not see yet: with ``replicate = "sync"`` all that no slave has.

Owns: HeldBack, the limit of the readable log. Must not touch: which sends wait for a slave
(acknowledge), connections (master), name servers (registration).

A reader that has got a message which goes with its master would get it twice, as its producer sends
it again, and look for the next one behind others that it has not seen. While no slave is near,
nothing is held back, as messages do not wait for one; but a slave may have gone because it is the
master now, so that name servers are asked first (``lift``). What was readable stays so.
"""

from __future__ import annotations

from collections import deque

from motelog.core.broker.replication.master import Master
from motelog.core.store.message_store import MessageStore
from motelog.core.store.readable import NO_LIMIT


class HeldBack:
    """Keeps one store's limit at what a slave has."""

    def __init__(self, store: MessageStore, master: Master) -> None:
        self._store = store
        self._master = master
        self._limit = NO_LIMIT
        # Where the appends above the limit end: a slave of Apache's has parts of records.
        self._ends: deque[int] = deque()
        store.pieces.on_appended.append(self._appended)
        master.listeners.append(self._move)

    def _appended(self) -> None:
        if self._limit != NO_LIMIT:
            self._ends.append(self._store.end_offset)

    def lift(self) -> None:
        """Hold nothing back if no slave is near; there is no other master."""
        if not self._master.is_followed:
            self._ends.clear()
            self._set(NO_LIMIT)

    def _move(self) -> None:
        """Set the limit after a slave has come, reported or gone."""
        limit = self._limit
        if limit == NO_LIMIT and self._master.is_followed:
            limit = self._store.end_offset
        while self._ends and self._ends[0] <= self._master.confirmed_offset:
            limit = self._ends.popleft()
        self._set(limit)

    def _set(self, limit: int) -> None:
        if limit != self._limit:
            self._limit = limit
            self._store.readable.set_limit(limit)
