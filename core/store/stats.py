"""What a store has done since it was opened: plain counters, read when somebody asks.

Owns: StoreStats. Must not touch: the store; it is told.
Spec: RocketMQ StoreStatsService (its bounds of the put latency).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Inclusive upper ends in milliseconds; the last bucket has no end.
APPEND_MS_BOUNDS: Final = (1, 10, 50, 100, 200, 500, 1000)
_BOUNDS_NS: Final = tuple(ms * 1_000_000 for ms in APPEND_MS_BOUNDS)


class StoreStats:
    """Counters of appends and reads; counting costs additions only."""

    __slots__ = (
        "append_counts", "append_ns", "get_misses", "gets", "got_bytes", "got_messages",
        "put_bytes", "put_messages",
    )  # fmt: skip

    def __init__(self) -> None:
        self.put_messages = 0
        self.put_bytes = 0
        self.append_ns = 0
        self.append_counts = [0] * (len(_BOUNDS_NS) + 1)
        self.gets = 0
        self.get_misses = 0
        self.got_messages = 0
        self.got_bytes = 0

    def note_append(self, messages: int, stored_bytes: int, took_ns: int) -> None:
        self.put_messages += messages
        self.put_bytes += stored_bytes
        self.append_ns += took_ns
        self.append_counts[bisect_left(_BOUNDS_NS, took_ns)] += 1

    def note_read(self, messages: int, found_bytes: int) -> None:
        self.gets += 1
        self.got_messages += messages
        self.got_bytes += found_bytes
        if not messages:
            self.get_misses += 1

    def sample(self) -> dict[str, int]:
        """Return the counters; ``..._within_N`` counts the appends that took at most N ms."""
        counters = {
            "store_put_messages": self.put_messages,
            "store_put_bytes": self.put_bytes,
            "store_appends": sum(self.append_counts),
            "store_append_us": self.append_ns // 1000,
            "store_gets": self.gets,
            "store_get_misses": self.get_misses,
            "store_got_messages": self.got_messages,
            "store_got_bytes": self.got_bytes,
        }
        within = 0
        for bound, count in zip(APPEND_MS_BOUNDS, self.append_counts, strict=False):
            within += count
            counters[f"store_appends_within_{bound}ms"] = within
        return counters
