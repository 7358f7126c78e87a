"""Held requests: they found nothing, and wait until their key is woken or their deadline passes.

Owns: HeldRequests: the requests by key, by owner and by deadline, and the limits. Must not touch:
what a request is, the store, sockets, clocks; time enters as ``now_ms`` of a monotonic clock.
The caller of ``hold`` gives a callback; it is called once, and may hold again.
Spec: RocketMQ PullRequestHoldService.

Deadlines fall into buckets of 100 ms, so holding and calling back cost the same for any number:

    by key       key           -> {held, ...}
    by owner     owner         -> {held, ...}
    by deadline  bucket number -> {held, ...}      heap of the bucket numbers in use
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final

BUCKET_MS: Final = 100

# The argument says whether the deadline has come; else the key was woken.
Callback = Callable[[bool], None]


class _Held:
    """One waiting request; ``bucket`` is the first that is not before its deadline."""

    __slots__ = ("bucket", "callback", "key", "owner")

    def __init__(
        self, key: Hashable, deadline_ms: int, callback: Callback, owner: Hashable
    ) -> None:
        self.key = key
        self.bucket = -(-deadline_ms // BUCKET_MS)
        self.callback = callback
        self.owner = owner


_Index = dict[Hashable, dict[_Held, None]]


class HeldRequests:
    """All held requests of one broker."""

    def __init__(self, *, requests_max: int, requests_per_owner_max: int) -> None:
        self._requests_max = requests_max
        self._requests_per_owner_max = requests_per_owner_max
        #: The held requests by key; falsy if there are none.
        self.by_key: _Index = {}
        self._by_owner: _Index = {}
        self._by_bucket: dict[int, dict[_Held, None]] = {}
        self._buckets: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_full_for(self, owner: Hashable) -> bool:
        """Return whether one more request of this owner would be too many."""
        held = self._by_owner.get(owner)
        is_full_for_one = held is not None and len(held) >= self._requests_per_owner_max
        return is_full_for_one or self._count >= self._requests_max

    def hold(self, key: Hashable, deadline_ms: int, callback: Callback, *, owner: Hashable) -> None:
        """Keep ``callback`` until the key is woken or the deadline comes.

        The caller has checked ``is_full_for``. ``close_owner`` forgets all requests of an owner.
        """
        held = _Held(key, deadline_ms, callback, owner)
        self.by_key.setdefault(key, {})[held] = None
        self._by_owner.setdefault(owner, {})[held] = None
        bucket = self._by_bucket.get(held.bucket)
        if bucket is None:
            bucket = self._by_bucket[held.bucket] = {}
            heapq.heappush(self._buckets, held.bucket)
        bucket[held] = None
        self._count += 1

    def is_held(self, key: Hashable) -> bool:
        return key in self.by_key

    def count_of(self, key: Hashable) -> int:
        """Return how many requests wait for a key."""
        return len(self.by_key.get(key, ()))

    def keys_of(self, owner: Hashable) -> set[Hashable]:
        """Return the keys that the requests of an owner wait for."""
        return {held.key for held in self._by_owner.get(owner, ())}

    def wake(self, key: Hashable, count_max: int | None = None) -> int:
        """Call back requests that wait for a key, in the order they came; return how many."""
        woken = list(islice(self.by_key.get(key, ()), count_max))
        for held in woken:
            self._drop(held)
        for held in woken:
            held.callback(False)
        return len(woken)

    def end_due(self, now_ms: int) -> int:
        """Call back all requests whose deadline has come; return how many."""
        due: list[_Held] = []
        while self._buckets and self._buckets[0] * BUCKET_MS <= now_ms:
            number = heapq.heappop(self._buckets)
            due += self._by_bucket[number]
            for held in list(self._by_bucket[number]):
                self._drop(held)
            # The bucket is removed before the callbacks, so that hold() can open it again.
            del self._by_bucket[number]
        for held in due:
            held.callback(True)
        return len(due)

    def next_due_ms(self) -> int | None:
        """Return the earliest time when ``end_due`` has something to do, or None."""
        return self._buckets[0] * BUCKET_MS if self._buckets else None

    def close_owner(self, owner: Hashable) -> None:
        """Forget the requests of a closed owner."""
        for held in list(self._by_owner.get(owner, ())):
            self._drop(held)

    def _drop(self, held: _Held) -> None:
        _discard(self.by_key, held.key, held)
        _discard(self._by_owner, held.owner, held)
        # An empty bucket stays until its time, so that the heap needs no search.
        del self._by_bucket[held.bucket][held]
        self._count -= 1

    def _check(self) -> None:
        """Assert that the three indexes hold the same requests."""
        held = {one for some in self.by_key.values() for one in some}
        assert len(held) == self._count
        assert held == {one for some in self._by_owner.values() for one in some}
        assert held == {one for some in self._by_bucket.values() for one in some}
        assert all(self.by_key.values())
        assert all(self._by_owner.values())
        assert sorted(self._buckets) == sorted(self._by_bucket)


def _discard(index: _Index, key: Hashable, held: _Held) -> None:
    some = index[key]
    del some[held]
    if not some:
        del index[key]
