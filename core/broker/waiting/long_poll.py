"""Held pulls: requests that found nothing and wait for a message or their deadline.

Owns: the registry by queue, by connection and by deadline, and its limits. Must not touch: the
store, sockets, clocks; time enters as ``now_ms`` of a monotonic clock. It decides nothing about
messages: who takes a pull out, by ``take_queue`` or ``take_due``, answers it or holds it again.
Spec: RocketMQ PullRequestHoldService.

Deadlines fall into buckets of 100 ms, so holding and taking out cost the same for any number:

    by queue     (topic, queue id) -> {pull, ...}
    by deadline  bucket number     -> {pull, ...}      heap of the bucket numbers in use
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.filter.sql_filter import SqlFilter
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.server import Connection

BUCKET_MS: Final = 100

Queue = tuple[str, int]
KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits; ``queue_offset`` moves on past messages that its filter refused."""

    request: RemotingCommand
    connection: Connection
    group: SubscriptionGroup
    topic: str
    queue_id: int
    first_offset: int
    queue_offset: int
    count_max: int
    bytes_max: int
    tag_codes: frozenset[int] | None
    sql_filter: SqlFilter | None
    deadline_ms: int


class HeldPulls:
    """Every held pull of one broker."""

    def __init__(self, *, pulls_max: int, pulls_per_connection_max: int) -> None:
        self._pulls_max = pulls_max
        self._pulls_per_connection_max = pulls_per_connection_max
        self._by_queue: dict[Queue, dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._by_bucket: dict[int, dict[HeldPull, None]] = {}
        self._buckets: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_full_for(self, connection: Connection) -> bool:
        """Return whether one more pull of this connection would be too many."""
        held = self._by_connection.get(connection)
        is_full_for_one = held is not None and len(held) >= self._pulls_per_connection_max
        return is_full_for_one or self._count >= self._pulls_max

    def hold(self, pull: HeldPull) -> None:
        """Keep a pull until somebody takes it; the caller has asked ``is_full_for``."""
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        number = _bucket(pull)
        bucket = self._by_bucket.get(number)
        if bucket is None:
            bucket = self._by_bucket[number] = {}
            heapq.heappush(self._buckets, number)
        bucket[pull] = None
        self._count += 1

    def is_held(self, topic: str, queue_id: int) -> bool:
        return (topic, queue_id) in self._by_queue

    def take_queue(self, topic: str, queue_id: int) -> list[HeldPull]:
        """Take out the pulls that wait for a queue, in the order they came."""
        pulls = list(self._by_queue.get((topic, queue_id), ()))
        for pull in pulls:
            self._drop(pull)
        return pulls

    def take_due(self, now_ms: int) -> list[HeldPull]:
        """Take out the pulls whose deadline has come."""
        due: list[HeldPull] = []
        while self._buckets and self._buckets[0] * BUCKET_MS <= now_ms:
            number = heapq.heappop(self._buckets)
            due += self._by_bucket[number]
            # The bucket's key goes with its last pull, so that hold() can open it again.
            for pull in list(self._by_bucket[number]):
                self._drop(pull)
            self._by_bucket.pop(number, None)
        return due

    def next_due_ms(self) -> int | None:
        """Return when ``take_due`` has something to do at the earliest, or None."""
        return self._buckets[0] * BUCKET_MS if self._buckets else None

    def close_connection(self, connection: Connection) -> None:
        """Forget the pulls of a connection that closed."""
        for pull in list(self._by_connection.get(connection, ())):
            self._drop(pull)

    def _drop(self, pull: HeldPull) -> None:
        _discard(self._by_queue, (pull.topic, pull.queue_id), pull)
        _discard(self._by_connection, pull.connection, pull)
        # An empty bucket stays until its time, so that the heap needs no search.
        del self._by_bucket[_bucket(pull)][pull]
        self._count -= 1

    def _check(self) -> None:
        """Assert that the three indexes hold the same pulls."""
        pulls = {pull for queue in self._by_queue.values() for pull in queue}
        assert len(pulls) == self._count
        assert pulls == {pull for held in self._by_connection.values() for pull in held}
        assert pulls == {pull for bucket in self._by_bucket.values() for pull in bucket}
        assert all(self._by_queue.values())
        assert all(self._by_connection.values())
        assert sorted(self._buckets) == sorted(self._by_bucket)


def _bucket(pull: HeldPull) -> int:
    """Return the bucket whose time is the first at or after the deadline."""
    return -(-pull.deadline_ms // BUCKET_MS)


def _discard(index: dict[KeyT, dict[HeldPull, None]], key: KeyT, pull: HeldPull) -> None:
    pulls = index[key]
    del pulls[pull]
    if not pulls:
        del index[key]
