"""Random appends, queries, stops, crashes and lost index files against a plain list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from motelog.core.clock import ManualClock
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from tests.support.stores import abandon, make_store, message

TOPICS = ["A", "B-long_name%x"]
# "Aa", "BB" and "AaAa", "BBBB" have one hash each.
WORDS = ["Aa", "BB", "AaAa", "BBBB", "k", "\u00fc", "w" * 40]
words = st.lists(st.sampled_from(WORDS), max_size=4)
batches = st.lists(
    st.tuples(st.sampled_from(TOPICS), words, st.sampled_from(["", *WORDS]), st.booleans()),
    max_size=6,
)


class IndexAgainstModel(RuleBasedStateMachine):
    @initialize(slots=st.sampled_from([1, 3, 64]), entries=st.sampled_from([2, 9, 256]))
    def begin(self, slots: int, entries: int) -> None:
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        self.config: dict[str, Any] = {
            "commitlog_file_bytes": 4096,
            "index_slots": slots,
            "index_entries": entries,
        }
        self.clock = ManualClock()
        self.model: list[tuple[str, set[str], str, int, int]] = []
        self.store = self.open()

    def open(self) -> MessageStore:
        store = make_store(self.folder, clock=self.clock, **self.config)
        store.open()
        return store

    @rule(batch=batches, step_ms=st.integers(-5_000, 100_000))
    def append(self, batch: list[tuple[str, list[str], str, bool]], step_ms: int) -> None:
        self.clock.step_wall(step_ms)
        messages = []
        for topic, keys, unique, is_rolled_back in batch:
            text = f"KEYS\x01{' '.join(keys)}\x02UNIQ_KEY\x01{unique}\x02".encode()
            flag = 0xC if is_rolled_back else 0
            tail = self.store.queue_tail(topic, 0)
            messages.append(message(tail, properties=text, sys_flag=flag))
        placed: list[tuple[int, int]] = []
        self.store.append(messages, placed)
        for (topic, keys, unique, is_rolled_back), (place, _) in zip(batch, placed, strict=True):
            if not is_rolled_back:
                stored_ms = decode(self.store.reader.record_at(place))[0][8]
                self.model.append((topic, set(keys), unique, place, stored_ms))

    @rule(
        topic=st.sampled_from(TOPICS),
        key=st.sampled_from([*WORDS, "none"]),
        ends=st.tuples(st.integers(0, 40), st.integers(0, 40)),
        count=st.integers(0, 9),
        only_unique=st.booleans(),
    )
    def query(
        self, topic: str, key: str, ends: tuple[int, int], count: int, only_unique: bool
    ) -> None:
        times = [0, *(entry[4] for entry in self.model), 1 << 62]
        begin_ms, end_ms = (times[end % len(times)] for end in ends)
        result = self.store.reader.query(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, count_max=count, only_unique=only_unique
        )
        expected = [
            place
            for t, keys, unique, place, stored_ms in reversed(self.model)
            if t == topic
            and (unique == key or (key in keys and not only_unique))
            and begin_ms <= stored_ms <= end_ms
        ]
        assert [decode(record)[0][3] for record in result.records] == expected[:count]
        self.store.index._check()

    @rule(is_clean=st.booleans(), lost=st.integers(0, 9))
    def reopen(self, is_clean: bool, lost: int) -> None:
        """Stop or crash; sometimes one index file, or the table of them, is gone afterwards."""
        if is_clean:
            self.store.close()
        else:
            abandon(self.store)
        paths = [*sorted((self.folder / "index").iterdir()), self.folder / "index.json"]
        if lost < len(paths):
            paths[lost].unlink()
        self.store = self.open()

    @rule(entries=st.sampled_from([2, 9, 256]))
    def use_another_shape(self, entries: int) -> None:
        self.store.close()
        self.config["index_entries"] = entries
        self.store = self.open()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


TestIndexAgainstModel = IndexAgainstModel.TestCase
TestIndexAgainstModel.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
