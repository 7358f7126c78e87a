"""What a store counts."""

from __future__ import annotations

import time
from pathlib import Path

from motelog.core.store.message_store import MessageStore
from motelog.core.store.stats import StoreStats
from tests.support.stores import message, opened


def test_a_store_counts_what_it_appends_and_reads(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        tail = store.queue_tail("T", 0)
        end = store.append([message(tail), message(tail)])
        found = store.reader.read("T", 0, 0)
        store.reader.read("T", 0, 0, tag_codes=frozenset({7}))
        store.reader.read("T", 0, 2)
        sample = store.stats.sample()
    assert (sample["store_put_messages"], sample["store_put_bytes"]) == (2, end)
    assert (sample["store_gets_found"], sample["store_gets_missed"]) == (1, 2)
    assert sample["store_got_messages"] == 2
    assert sample["store_got_bytes"] == len(found.records)
    stats = store.stats
    # A read at the queue's end looks for nothing, so its time is not counted.
    counted = [sum(counts[:-1]) for counts in stats.histograms().values()]
    assert counted == [1, 2, sum(stats.sync_us.counts), 2]
    assert stats.record_bytes.total == end
    assert sum(stats.sync_us.counts) > 0


def test_a_store_counts_what_it_has_mapped(tmp_path: Path) -> None:
    def mapped_by_kernel() -> tuple[int, int]:
        sizes = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            if f" {tmp_path}/" in line:
                begin, end = line.split(maxsplit=1)[0].split("-")
                sizes.append(int(end, 16) - int(begin, 16))
        return len(sizes), sum(sizes)

    def mapped(store: MessageStore) -> float:
        for _ in range(1000):  # a file may be being made by another thread
            sample = store.sample()
            count, size = sample["store_mapped_files_now"], sample["store_mapped_bytes_now"]
            known, known_size = mapped_by_kernel()
            # The kernel maps whole pages of an index file.
            if count == known and 0 <= known_size - size < 4096 * known:
                return count
            time.sleep(0.01)
        raise AssertionError(f"{count} files, {size} bytes; in fact {known}, {known_size}")

    with opened(tmp_path, index_slots=500, index_entries=1000) as store:
        empty = mapped(store)
        tail = store.queue_tail("T", 0)
        store.append([message(tail, properties=b"KEYS\x01k\x02")])
        assert store.reader.query("T", "k", begin_ms=0, end_ms=1 << 60).records
        one_of_each = mapped(store)
        assert one_of_each > empty
        store.append([message(tail, b"x" * 1000) for _ in range(200)])
        assert mapped(store) > one_of_each


def test_latencies_are_counted_by_class() -> None:
    stats = StoreStats()
    for took_us in (5, 10, 11, 990, 1_000, 9_000, 99_000_000):
        stats.note_append(1, 10, took_us * 1_000)
    counts = dict(zip(stats.append_us.bounds, stats.append_us.counts, strict=False))
    assert (counts[10], counts[20], counts[1_000], counts[10_000]) == (2, 1, 2, 1)
    assert stats.append_us.counts[-1] == 1
    assert stats.append_us_max == 99_000_000


def test_rates_are_over_their_window_or_as_long_as_there_was() -> None:
    stats = StoreStats()
    assert stats.put_rates() == [0.0, 0.0, 0.0]
    for second in range(31):
        stats.take_sample(1_000 * second)
        stats.put_messages += 100 if second < 20 else 7
        stats.put_bytes += 1_000
        stats.gets_found += 2
        stats.gets_missed += 3
        stats.got_messages += 5
    # The last 10 s had 7 a second, all 30 s 20 times 100 and 10 times 7.
    assert stats.put_rates() == [7.0, 69.0, 69.0]
    assert stats.put_bytes_rates() == [1_000.0, 1_000.0, 1_000.0]
    assert (stats.found_rates()[0], stats.missed_rates()[0], stats.got_rates()[0]) == (2, 3, 5)
    for second in range(31, 700):
        stats.take_sample(1_000 * second)
    assert stats.put_rates() == [0.0, 0.0, 0.0]
