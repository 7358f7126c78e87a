"""The wall clock is set a day forward or back, while a store is open and between stop and start.

Nothing expires before the time that it is kept for has really passed, nothing is misnamed or out of
order, and a place in time is found as before.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.clock import ManualClock
from motelog.core.store.message_store import MessageStore
from tests.support.followers import feed, log_bytes
from tests.support.ledger import QUEUES, Ledger
from tests.support.stores import abandon, make_store

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEPT_MS = 72 * HOUR_MS
STEPS_MS = (-DAY_MS, DAY_MS, -DAY_MS - 1, 400 * DAY_MS)
ACTIONS = 80
CONFIG: dict[str, Any] = {
    "cleanup_hours": tuple(range(24)),
    "cleanup_pause_ms": 1,
    "cleanup_oldest_percent": 100,
    "commitlog_file_bytes": 4_096,
    "retention_hours": KEPT_MS // HOUR_MS,
}


class Life:
    """One folder under a clock that is set, and how much time has really passed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._ledger = Ledger(self._chance)
        self._clock = ManualClock()
        self._passed_ms = 0
        # When each message was really appended.
        self._appended_at: dict[int, int] = {}
        self.removed = 0
        # A step that no checkpoint has seen before a kill may keep files for longer.
        self._unnoted_step = False
        self._may_be_late = False

    async def run(self) -> None:
        store = self._open()
        for _ in range(ACTIONS):
            match self._chance.randrange(8):
                case 0:
                    self._clock.step_wall(self._chance.choice(STEPS_MS))
                    if self._chance.random() < 0.9:
                        await store.checkpoint()
                    else:
                        self._unnoted_step = True
                case 1:
                    store = self._restart(store)
                case 2 | 3:
                    await self._clean(store)
                case 4 | 5:
                    self._pass(self._chance.randrange(10 * HOUR_MS))
                case _:
                    self._append(store)
        self._check(store)
        await self._grow_old(store)
        store.close()

    def _open(self) -> MessageStore:
        store = make_store(self._folder, clock=self._clock, **CONFIG)
        report = store.open()
        assert report.damage == []
        return store

    def _restart(self, store: MessageStore) -> MessageStore:
        if self._chance.random() < 0.5:
            store.close()
        else:
            abandon(store)
            self._may_be_late |= self._unnoted_step
        self._unnoted_step = False
        self._pass(self._chance.choice((0, 1_000, 100 * HOUR_MS)))
        self._clock.step_wall(self._chance.choice((0, *STEPS_MS)))
        store = self._open()
        self._check(store)
        return store

    def _pass(self, ms: int) -> None:
        self._clock.advance(ms)
        self._passed_ms += ms

    def _append(self, store: MessageStore) -> None:
        first = len(self._ledger.known)
        self._ledger.append(store, 10)
        for number in range(first, len(self._ledger.known)):
            self._appended_at[number] = self._passed_ms

    async def _clean(self, store: MessageStore) -> None:
        await store.checkpoint()
        self._unnoted_step = False
        self.removed += await store.cleaner.clean()
        for number in list(self._ledger.appended):
            place = self._ledger.known[number].physical_offset
            assert place is not None
            if place < store.begin_offset:
                age_ms = self._passed_ms - self._appended_at[number]
                assert age_ms > KEPT_MS, f"message {number} went after {age_ms / HOUR_MS:.1f} h"
        self._ledger.forget_below(store.begin_offset)

    def _check(self, store: MessageStore) -> None:
        found = self._ledger.check(store, self._ledger.appended)
        assert found == self._ledger.appended
        self._ledger.check_keys(store, found)
        last_ms = 0
        known = self._ledger.known
        for number in sorted(found):
            topic, queue_id = known[number].topic.decode(), known[number].queue_id
            queue_offset = known[number].queue_offset
            assert queue_offset is not None
            stored_ms = store.reader.store_timestamp(topic, queue_id, queue_offset)
            assert stored_ms >= last_ms, f"message {number} is dated before the one before it"
            last_ms = stored_ms
            first = store.reader.offset_by_time(topic, queue_id, stored_ms)
            assert (
                first <= queue_offset < store.reader.offset_by_time(topic, queue_id, stored_ms + 1)
            )
        for topic, queue_id in QUEUES:
            assert store.reader.offset_by_time(
                topic, queue_id, last_ms + 1
            ) == store.reader.max_offset(topic, queue_id)
        names = sorted(int(p.name) for p in (self._folder / "commitlog").glob("*[0-9]"))
        assert names == list(range(names[0], names[-1] + 1, 4_096))

    async def _grow_old(self, store: MessageStore) -> None:
        """Wait until everything before now has gone; it goes when its time has passed."""
        end = store.end_offset
        for _ in range(10):
            self._append(store)
            # A clock that is years behind is followed at half speed.
            for _ in range(100):
                self._pass(2 * HOUR_MS)
                store.now_ms()
            await self._clean(store)
        assert self._may_be_late or store.begin_offset > end - 4_096


@pytest.mark.parametrize("seed", range(3))
def test_setting_the_clock_expires_misnames_and_reorders_nothing(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    trio.run(life.run)
    assert life.removed > 0


def test_time_in_which_the_store_was_open_adds_up(tmp_path: Path) -> None:
    """A store that is started each day, and gets no messages, is cleaned all the same."""
    clock = ManualClock()
    ledger = Ledger(random.Random(1))
    removed = []

    async def day() -> None:
        store = make_store(tmp_path, clock=clock, **CONFIG)
        store.open()
        if not ledger.known:
            for _ in range(5):
                ledger.append(store, 10)
        clock.advance(23 * HOUR_MS)
        await store.checkpoint()
        removed.append(await store.cleaner.clean())
        abandon(store)
        clock.advance(HOUR_MS)

    for _ in range(4):
        trio.run(day)
    assert removed[:3] == [0, 0, 0]
    assert removed[3] > 0


def test_a_folder_without_a_note_of_its_age_is_as_old_as_its_messages(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger = Ledger(random.Random(1))
    store = make_store(tmp_path, clock=clock, **CONFIG)
    store.open()
    for _ in range(5):
        ledger.append(store, 10)
    store.close()
    for name in ("clock.json", "clock.json.bak"):
        (tmp_path / name).unlink()
    clock.advance(400 * DAY_MS)
    store = make_store(tmp_path, clock=clock, **CONFIG)
    store.open()
    assert trio.run(store.cleaner.clean) == 0
    clock.advance(KEPT_MS + 1)
    assert trio.run(store.cleaner.clean) > 0
    store.close()


def test_a_copy_is_as_old_as_what_it_copies_whatever_its_clock_shows(tmp_path: Path) -> None:
    """A slave whose clock is far ahead keeps what it copies for as long as its master does."""
    clocks = ManualClock(), ManualClock()
    clocks[1].step_wall(5 * DAY_MS)
    leader = make_store(tmp_path / "leader", clock=clocks[0], **CONFIG)
    follower = make_store(tmp_path / "copy", clock=clocks[1], is_follower=True, **CONFIG)
    leader.open()
    follower.open()

    def go_on(ms: int) -> tuple[int, int]:
        for clock in clocks:
            clock.advance(ms)
        ledger.append(leader, 20)
        feed(follower, *log_bytes(leader, follower.received_offset), 1_000)
        for store in (leader, follower):
            trio.run(store.checkpoint)
        return trio.run(leader.cleaner.clean), trio.run(follower.cleaner.clean)

    ledger = Ledger(random.Random(1))
    assert [go_on(HOUR_MS) for _ in range(40)] == [(0, 0)] * 40
    # Set once more while it copies, and across a crash.
    clocks[1].step_wall(4 * DAY_MS)
    assert [go_on(HOUR_MS) for _ in range(20)] == [(0, 0)] * 20
    abandon(follower)
    follower = make_store(tmp_path / "copy", clock=clocks[1], is_follower=True, **CONFIG)
    follower.open()
    assert trio.run(follower.cleaner.clean) == 0
    assert [go_on(HOUR_MS) for _ in range(10)] == [(0, 0)] * 10
    for _ in range(40):
        assert len(set(go_on(HOUR_MS))) == 1
    assert follower.begin_offset == leader.begin_offset > 0
    leader.close()
    follower.close()
