"""Where a session begins in a queue in which it has no cursor: at the first message since it began.

Owns: Beginnings, the searches that are under way. Must not touch: cursors, what is delivered.
A queue that a session's record does not name was created later, or was closed and is open again.
In the second case it has messages that are older than the session and not for it. A search by time
finds the first one that is for it. One search of a queue is under way at a time: thousands of
sessions may come back at once, and nearly always the first answer holds for them too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter

from motelog.gateway.deliver.watched import WatchedQueue
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.log.reckoning import CLOCKS_MS_MAX


class Beginnings:
    """The searches for one gateway's sessions."""

    def __init__(self, log: LogPort) -> None:
        self._log_port = log
        #: Queue -> the times that wait until the search under way is over.
        self._waiting: dict[WatchedQueue, list[tuple[int, Callable[[int], None]]]] = {}

    def find(self, queue: WatchedQueue, begun_ms: int, then: Callable[[int], None]) -> int | None:
        """Return where a session that began at ``begun_ms`` begins in ``queue``; 0: not known.

        None if it has to be searched; then ``then`` is called with it later.
        """
        since_ms = begun_ms - CLOCKS_MS_MAX  # the broker's clock may differ
        if not begun_ms or since_ms <= queue.whole_ms:
            return 0
        waiting = self._waiting.get(queue)
        if waiting is not None:
            waiting.append((begun_ms, then))
            return None
        self._waiting[queue] = []
        found_later = partial(self._found, queue, begun_ms, then)
        found = self._log_port.offset_at(queue.handle, since_ms, found_later)
        if found is not None:
            del self._waiting[queue]
            self._note(queue, since_ms, found)
        return found

    def _note(self, queue: WatchedQueue, since_ms: int, queue_offset: int) -> None:
        if not queue_offset:
            queue.whole_ms = max(queue.whole_ms, since_ms)

    def _found(
        self, queue: WatchedQueue, begun_ms: int, then: Callable[[int], None], queue_offset: int
    ) -> None:
        self._note(queue, begun_ms - CLOCKS_MS_MAX, queue_offset)
        waiting = self._waiting.pop(queue)
        then(queue_offset)
        for begun_ms, then in sorted(waiting, key=itemgetter(0), reverse=True):
            found = self.find(queue, begun_ms, then)
            if found is not None:
                then(found)
