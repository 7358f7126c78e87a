"""Messages and bytes by topic and group, as RocketMQ's tools ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from motelog.core.broker.shown.stats import IDLE_MS_MAX, TURNS, BrokerStats, Snapshot, StatsData
from motelog.core.clock import ManualClock
from motelog.core.store.message_store import MessageStore
from tests.support.broker_stage import Client, broker_stage
from tests.support.stores import message, opened

NOTHING = Snapshot()


class Stage:
    """A store that is appended to, and its statistics; a second passes at each tick."""

    def __init__(self, store: MessageStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.stats = self.make()

    def make(self, items_max: int = 10) -> BrokerStats:
        return BrokerStats(
            cluster="C",
            clock=self.clock,
            messages_in=lambda: self.store.stats.put_messages,
            take_grown=self.store.readable.take_grown,
            items_max=items_max,
        )

    def put(self, topic: str, *counts: int) -> int:
        """Append so many messages to queues 0, 1, ...; return their bytes."""
        begin = self.store.end_offset
        batch = []
        for queue_id, count in enumerate(counts):
            batch += [message(self.store.queue_tail(topic, queue_id))] * count
        return self.store.append(batch) - begin

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.stats.tick()
            self.clock.advance(1_000)
        self.stats._check()

    def find(self, name: str, key: str) -> StatsData:
        data = self.stats.find(name, key)
        assert data is not None
        return data


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        yield Stage(store, clock)


def test_puts_are_counted_by_topic_over_all_its_queues(stage: Stage) -> None:
    size = stage.put("A", 2, 1)
    stage.put("B", 1)
    stage.tick()
    size += stage.put("A", 0, 3)
    stage.tick(2 * TURNS)
    # What came before the first sample counts as of the ten seconds before it.
    assert stage.find("TOPIC_PUT_NUMS", "A").minute.sum == 6
    sizes = stage.find("TOPIC_PUT_SIZE", "A").minute
    assert (sizes.sum, sizes.avgpt) == (size, size / 6)
    assert stage.find("TOPIC_PUT_NUMS", "B").minute.sum == 1
    assert stage.find("BROKER_PUT_NUMS", "C").minute.sum == 7
    assert stage.find("BROKER_PUT_NUMS", "C").minute.avgpt == 0


def test_windows_end_as_in_rocketmq(stage: Stage) -> None:
    stage.put("A", 60)
    stage.tick()
    first = stage.find("TOPIC_PUT_NUMS", "A")
    assert first.minute == Snapshot(60, 6.0, 1.0)
    assert first.hour == Snapshot(60, 60 / 600, 1.0)
    assert first.day == Snapshot(60, 60 / 3600, 1.0)
    # Seven samples, the first of them ten seconds before what it counted: a minute later it is out.
    stage.tick(50)
    assert stage.find("TOPIC_PUT_NUMS", "A").minute == Snapshot(60, 1.0, 1.0)
    stage.tick(10)
    after = stage.find("TOPIC_PUT_NUMS", "A")
    assert after.minute == NOTHING
    assert after.hour.sum == 60
    stage.tick(3_600)
    after = stage.find("TOPIC_PUT_NUMS", "A")
    assert (after.hour.sum, after.day.sum) == (0, 60)


def test_the_day_has_at_any_time_what_it_has_brought(stage: Stage) -> None:
    for minutes in range(1, 150):
        stage.put("A", 1)
        stage.clock.advance(50_000)
        stage.tick(TURNS)
        # Tools show the day's sum, however long ago its own newest sample was.
        assert stage.find("TOPIC_PUT_NUMS", "A").day.sum == minutes
    # Those of an hour, and of the ten minutes that end with its oldest sample.
    assert 60 <= stage.find("TOPIC_PUT_NUMS", "A").hour.sum <= 70


def test_each_pull_and_each_message_sent_back_is_counted_by_topic_and_group(stage: Stage) -> None:
    stage.stats.note_get("A", "G", 3, 600)
    stage.stats.note_get("A", "G", 1, 100)
    stage.stats.note_sent_back("A", "G")
    assert stage.find("GROUP_GET_NUMS", "A@G") == StatsData(NOTHING, NOTHING, NOTHING)
    stage.tick(TURNS)
    assert stage.find("GROUP_GET_NUMS", "A@G").minute == Snapshot(4, 0.4, 2.0)
    assert stage.find("GROUP_GET_SIZE", "A@G").minute == Snapshot(700, 70.0, 350.0)
    assert stage.find("SNDBCK_PUT_NUMS", "A@G").minute.sum == 1
    assert stage.find("BROKER_GET_NUMS", "C").minute.sum == 4
    assert stage.stats.get_rate("A", "G") == 0.4
    assert stage.stats.get_rate("A", "H") == stage.stats.put_rate("A") == 0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NONE", "A"),
        ("TOPIC_PUT_NUMS", "B"),
        ("TOPIC_PUT_NUMS", "A@G"),
        ("GROUP_GET_NUMS", "A"),
        ("BROKER_PUT_NUMS", "D"),
        ("GROUP_GET_LATENCY", "0@A@G"),
    ],
)
def test_what_is_not_counted_is_not_there(stage: Stage, name: str, key: str) -> None:
    stage.put("A", 1)
    stage.stats.note_get("A", "G", 1, 1)
    stage.tick()
    assert stage.stats.find(name, key) is None


def test_what_stands_still_for_longer_than_a_day_is_forgotten(stage: Stage) -> None:
    stage.put("A", 1)
    stage.tick(TURNS)
    stage.clock.advance(IDLE_MS_MAX // 2)
    stage.put("A", 1)
    stage.tick(TURNS)
    stage.clock.advance(IDLE_MS_MAX - 2 * TURNS * 1_000)
    stage.tick(TURNS)
    assert stage.stats.find("TOPIC_PUT_NUMS", "A") is not None
    stage.clock.advance(2 * TURNS * 1_000)
    stage.tick(TURNS)
    assert stage.stats.find("TOPIC_PUT_NUMS", "A") is None
    stage.put("A", 1)
    stage.tick(TURNS)
    assert stage.find("TOPIC_PUT_NUMS", "A").minute.sum == 1


def test_there_are_no_more_items_than_allowed(stage: Stage) -> None:
    stats = stage.make(items_max=2)
    for group in ("G", "H", "I"):
        stats.note_get("A", group, 1, 1)
    stats.tick()
    assert [stats.find("GROUP_GET_NUMS", f"A@{group}") is None for group in "GHI"] == [
        False, False, True,
    ]  # fmt: skip
    stats._check()


def test_a_pull_that_finds_something_is_counted_once(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        client = Client()
        stage.pull(client, "A", 0)
        stage.stats.tick()
        assert stage.stats.find("GROUP_GET_NUMS", "A@consumers") is None
        stage.store.append([message(stage.tail("A", 0))] * 3)
        stage.pulls.wake_grown()
        (answer,) = client.answers
        stage.stats.tick()
        found = stage.stats.find("GROUP_GET_NUMS", "A@consumers")
        sizes = stage.stats.find("GROUP_GET_SIZE", "A@consumers")
        assert found is not None
        assert sizes is not None
        assert (found.minute.sum, found.minute.avgpt) == (3, 3.0)
        assert sizes.minute.sum == len(answer.body)
