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
    """group -> queue -> the client that holds it, and until when."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def has_any(self, group: str, now_ms: int) -> bool:
        """Return whether a client of the group holds a queue, i.e. the group consumes in order."""
        return any(until_ms > now_ms for _, until_ms in self._groups.get(group, {}).values())

    def lock(
        self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Lock free queues and renew locks for LOCK_MS; return what ``client_id`` holds now."""
        locks = self._groups.get(group, {})
        held = []
        for queue in queues:
            holder, until_ms = locks.get(queue, (client_id, 0))
            if holder == client_id or until_ms <= now_ms:
                locks[queue] = (client_id, now_ms + LOCK_MS)
                held.append(queue)
        self._keep(group, locks)
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Give up locks; those of other clients stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
        self._keep(group, locks)

    def expire(self, now_ms: int) -> None:
        """Forget the locks that were not renewed."""
        for group, locks in list(self._groups.items()):
            self._keep(group, {queue: lock for queue, lock in locks.items() if lock[1] > now_ms})

    def _keep(self, group: str, locks: dict[MessageQueue, tuple[str, int]]) -> None:
        if locks:
            self._groups[group] = locks
        else:
            self._groups.pop(group, None)
