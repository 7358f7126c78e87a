"""Locks of orderly consumers: which client of a group may pull a queue.

Owns: the lock table and its expiry. Must not touch: sockets, clocks; time enters as ``now_ms`` of a
monotonic clock. Spec: RocketMQ RebalanceLockManager.
"""

from __future__ import annotations

from typing import Final

from motelog.core.message import MessageQueue

# Clients lock again every 20 s and stop trusting a lock after 30 s.
LOCK_MS: Final = 60_000


class QueueLocks:
    """(group, queue) -> the client that holds it, until when."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def lock(
        self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Lock free queues and renew locks for LOCK_MS; return what ``client_id`` holds now."""
        held = []
        for queue in queues:
            holder, until_ms = self._locks.get((group, queue), (client_id, 0))
            if holder == client_id or until_ms <= now_ms:
                self._locks[group, queue] = (client_id, now_ms + LOCK_MS)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Give up locks; those of other clients stay."""
        for queue in queues:
            if self._locks.get((group, queue), ("", 0))[0] == client_id:
                del self._locks[group, queue]

    def expire(self, now_ms: int) -> None:
        """Forget the locks that nobody renewed."""
        old = [key for key, (_, until_ms) in self._locks.items() if until_ms <= now_ms]
        for key in old:
            del self._locks[key]
