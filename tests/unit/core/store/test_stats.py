"""What a store counts."""

from __future__ import annotations

from pathlib import Path

from core.store.stats import StoreStats
from tests.support.stores import message, opened


def test_a_store_counts_what_it_appends_and_reads(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        tail = store.queue_tail("T", 0)
        end = store.append([message(tail), message(tail)])
        found = store.read("T", 0, 0)
        store.read("T", 0, 0, tag_codes=frozenset({7}))
        sample = store.stats.sample()
    assert (sample["store_put_messages"], sample["store_put_bytes"]) == (2, end)
    assert (sample["store_appends"], sample["store_gets"]) == (1, 2)
    assert (sample["store_got_messages"], sample["store_get_misses"]) == (2, 1)
    assert sample["store_got_bytes"] == len(found.records)


def test_latencies_are_counted_up_to_each_bound() -> None:
    stats = StoreStats()
    for took_ms in (0.5, 1, 1.1, 99, 5000):
        stats.note_append(1, 10, int(took_ms * 1_000_000))
    sample = stats.sample()
    within = [sample[f"store_appends_within_{ms}ms"] for ms in (1, 10, 50, 100, 1000)]
    assert within == [2, 3, 3, 4, 4]
    assert (sample["store_appends"], sample["store_append_us"]) == (5, 5_101_600)
