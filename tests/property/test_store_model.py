"""Random appends, reads, stops, crashes and lost ConsumeQueues against a list per queue."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from motelog.core.clock import ManualClock
from motelog.core.message import tags_code
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import abandon, make_store, message

KEYS = [("A", 0), ("A", 1), ("B-long_name%x", 0), ("%RETRY%" + "g" * 200, 3)]
keys = st.sampled_from(KEYS)


class StoreAgainstModel(RuleBasedStateMachine):
    @initialize(units=st.sampled_from([1, 3, 16]), open_max=st.sampled_from([2, 100]))
    def begin(self, units: int, open_max: int) -> None:
        # In memory where that is possible: what is tried here is not the disk.
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        self.config: dict[str, Any] = {
            "commitlog_file_bytes": 4096,
            "consume_queue_file_units": units,
            "consume_queue_files_open_max": open_max,
        }
        self.clock = ManualClock()
        self.model: dict[tuple[str, int], list[tuple[bytes, int]]] = {key: [] for key in KEYS}
        self.times: list[int] = []
        self.store = self.open()

    def open(self) -> MessageStore:
        store = make_store(self.folder, clock=self.clock, **self.config)
        report = store.open()
        assert report.damage == []
        assert report.cut_bytes == 0
        return store

    @rule(
        batch=st.lists(st.tuples(keys, st.integers(0, 900), st.integers(0, 4)), max_size=12),
        step_ms=st.integers(-100_000, 100_000),
    )
    def append(self, batch: list[tuple[tuple[str, int], int, int]], step_ms: int) -> None:
        self.clock.step_wall(step_ms)
        begin = self.store.end_offset
        messages = []
        for i, (key, size, code) in enumerate(batch):
            body = b"%d" % (begin + i) + b"b" * size
            tail = self.store.queue_tail(*key)
            properties = f"TAGS\x01{code}\x02".encode()
            hashed = tags_code(str(code))
            messages.append(message(tail, body, properties=properties, tags_code=hashed))
            self.model[key].append((body, code))
        growth = self.store.readable.follow()
        placed: list[tuple[int, int]] = []
        end = self.store.append(messages, placed)
        self.store.readable.unfollow(growth)
        grown = [(tail.topic, tail.queue_id) for tail in growth.take()]
        assert end == self.store.end_offset
        assert (
            sorted(set(grown))
            == sorted(grown)
            == sorted({(key[0].encode(), key[1]) for key, _, _ in batch})
        )
        for (physical_offset, queue_offset), (key, _, _) in zip(placed, batch, strict=True):
            (fields,) = decode(self.store.reader.record_at(physical_offset))
            assert fields[:4] == (key[0].encode(), key[1], queue_offset, physical_offset)
            self.times.append(fields[8])

    @rule(key=keys, offset=st.integers(0, 40), count=st.integers(1, 9), limit=st.integers(0, 3000))
    def read(self, key: tuple[str, int], offset: int, count: int, limit: int) -> None:
        result = self.store.reader.read(*key, offset, count_max=count, bytes_max=limit)
        expected = self.model[key]
        assert self.store.reader.max_offset(*key) == len(expected)
        if offset >= len(expected):
            assert result.status is not ReadStatus.FOUND
            return
        found = [fields[13] for fields in decode(result.records)]
        assert 1 <= len(found) == result.count <= count
        assert len(result.records) <= limit or len(found) == 1
        assert found == [body for body, _ in expected[offset : offset + len(found)]]
        assert result.next_offset == offset + len(found)

    @rule(key=keys, offset=st.integers(0, 40), codes=st.frozensets(st.integers(0, 4)))
    def read_tags(self, key: tuple[str, int], offset: int, codes: frozenset[int]) -> None:
        expected = self.model[key]
        if offset >= len(expected):
            return
        hashes = frozenset(tags_code(str(code)) for code in codes)
        result = self.store.reader.read(*key, offset, tag_codes=hashes, bytes_max=1 << 20)
        wanted = [body for body, code in expected[offset : result.next_offset] if code in codes]
        assert [fields[13] for fields in decode(result.records)] == wanted
        assert result.status is (ReadStatus.FOUND if wanted else ReadStatus.NO_MATCH)
        assert len(wanted) == 32 or result.next_offset == len(expected)

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def crash_and_open(self) -> None:
        abandon(self.store)
        self.store = self.open()

    @rule(crash=st.booleans(), key=keys)
    def lose_a_queue(self, crash: bool, key: tuple[str, int]) -> None:
        if crash:
            abandon(self.store)
        else:
            self.store.close()
        shutil.rmtree(self.folder / "consumequeue" / key[0], ignore_errors=True)
        self.store = self.open()

    @rule(key=keys)
    def search_by_time(self, key: tuple[str, int]) -> None:
        count = len(self.model[key])
        times = [self.store.reader.store_timestamp(*key, offset) for offset in range(count)]
        for wanted in {*times, 0, 1 << 60}:
            expected = sum(1 for time in times if time < wanted)
            assert self.store.reader.offset_by_time(*key, wanted) == expected

    @invariant()
    def time_never_goes_back_along_the_log(self) -> None:
        assert self.times == sorted(self.times)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
