"""The work of a store since it was opened: counters, distributions and rates.

Owns: StoreStats. Must not touch: the store, clocks; callers report to it.
Spec: RocketMQ StoreStatsService: rates over 10, 60 and 600 s from one sample a second, the put
latency's classes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

from motelog.core.metrics import Histogram

# Ends of RocketMQ's classes of put latency and finer ones below, in microseconds: a batch is in the
# page cache within tens of them.
LATENCY_US_BOUNDS: Final = (
    10, 20, 50, 100, 200, 500,
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000, 10_000_000,
)  # fmt: skip
SIZE_BOUNDS: Final = tuple(1 << exponent for exponent in range(7, 25))
RATE_WINDOWS_S: Final = (10, 60, 600)

_Sample = tuple[int, int, int, int, int, int]


class StoreStats:
    """Counters of appends, reads and syncs; counting costs additions and a bisection."""

    def __init__(self) -> None:
        self.put_messages = 0
        self.put_bytes = 0
        self.gets_found = 0
        self.gets_missed = 0
        self.got_messages = 0
        self.got_bytes = 0
        self.append_us = Histogram(LATENCY_US_BOUNDS)
        self.read_us = Histogram(LATENCY_US_BOUNDS)
        self.sync_us = Histogram(LATENCY_US_BOUNDS)
        self.record_bytes = Histogram(SIZE_BOUNDS)
        self.append_us_max = 0
        self.read_us_max = 0
        self._samples: deque[_Sample] = deque(maxlen=RATE_WINDOWS_S[-1] + 1)

    def note_append(self, messages: int, stored_bytes: int, took_ns: int) -> None:
        took_us = took_ns // 1000
        self.put_messages += messages
        self.put_bytes += stored_bytes
        times = self.append_us
        times.counts[bisect_left(LATENCY_US_BOUNDS, took_us)] += 1
        times.total += took_us
        if took_us > self.append_us_max:
            self.append_us_max = took_us
        if messages:
            sizes = self.record_bytes
            sizes.counts[bisect_left(SIZE_BOUNDS, stored_bytes // messages)] += messages
            sizes.total += stored_bytes

    def note_read(self, messages: int, found_bytes: int, took_ns: int) -> None:
        took_us = took_ns // 1000
        self.got_messages += messages
        self.got_bytes += found_bytes
        times = self.read_us
        times.counts[bisect_left(LATENCY_US_BOUNDS, took_us)] += 1
        times.total += took_us
        if took_us > self.read_us_max:
            self.read_us_max = took_us
        if messages:
            self.gets_found += 1
        else:
            self.gets_missed += 1

    def note_miss(self) -> None:
        """Count a read at an offset where there is nothing."""
        self.gets_missed += 1

    def note_sync(self, took_ns: int) -> None:
        """Count a sync; in the thread that did it, one at a time."""
        self.sync_us.observe(took_ns // 1000)

    def take_sample(self, monotonic_ms: int) -> None:
        """Note the counters for the rates; called once a second."""
        self._samples.append(
            (
                monotonic_ms,
                self.put_messages,
                self.gets_found,
                self.gets_missed,
                self.got_messages,
                self.put_bytes,
            )
        )

    def put_rates(self) -> list[float]:
        """Return messages put per second over each of RATE_WINDOWS_S, or since the start."""
        return self._rates(1)

    def found_rates(self) -> list[float]:
        """Return reads that found something, as ``put_rates``."""
        return self._rates(2)

    def missed_rates(self) -> list[float]:
        """Return reads that found nothing, as ``put_rates``."""
        return self._rates(3)

    def got_rates(self) -> list[float]:
        """Return messages read, as ``put_rates``."""
        return self._rates(4)

    def put_bytes_rates(self) -> list[float]:
        """Return bytes of records put, as ``put_rates``."""
        return self._rates(5)

    def _rates(self, column: int) -> list[float]:
        samples = self._samples
        if len(samples) < 2:
            return [0.0] * len(RATE_WINDOWS_S)
        newest = samples[-1]
        rates = []
        for window_s in RATE_WINDOWS_S:
            oldest = samples[max(-window_s - 1, -len(samples))]
            passed_ms = max(newest[0] - oldest[0], 1)
            rates.append(round((newest[column] - oldest[column]) * 1000 / passed_ms, 2))
        return rates

    def sample(self) -> dict[str, float]:
        """Return the counters."""
        return {
            "store_put_messages": self.put_messages,
            "store_put_bytes": self.put_bytes,
            "store_gets_found": self.gets_found,
            "store_gets_missed": self.gets_missed,
            "store_got_messages": self.got_messages,
            "store_got_bytes": self.got_bytes,
        }

    def histograms(self) -> dict[str, list[float]]:
        """Return the distributions."""
        return {
            "store_append_us": self.append_us.sample(),
            "store_read_us": self.read_us.sample(),
            "store_sync_us": self.sync_us.sample(),
            "store_record_bytes": self.record_bytes.sample(),
        }
