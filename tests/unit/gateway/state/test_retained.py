"""RetainedStore on a log in memory: the last message of a topic name, by name and by filter."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.clock import ManualClock, SteadyClock
from motelog.core.errors import StoreFullError
from motelog.core.message import MQTT_TOPIC, encode_host, encode_properties
from motelog.core.topic_names import MQTT_RETAINED_TOPIC
from motelog.gateway.mapping.message_properties import publish_properties
from motelog.gateway.mqtt.packet_types import Properties
from motelog.gateway.mqtt.topics import matches
from motelog.gateway.state import retained as retained_module
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.retained_rows import Retained
from motelog.gateway.state.view import IN_MEMORY, View, ViewError
from tests.support.fake_log import FakeLog

HOST = encode_host("127.0.0.1", 1883)
KEY = (MQTT_RETAINED_TOPIC, 0)


class Stage:
    """A log, and the retained messages of a gateway on it."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.log.create_topic("t", 1)
        self.clock = ManualClock(self.log.now_ms)
        self.steady = SteadyClock(self.clock)
        self.store = self.start()

    def start(self) -> RetainedStore:
        """Return the store of the next run, on an empty view."""
        self.view = View(IN_MEMORY)
        self.view.open()
        self.store = RetainedStore(self.log, self.view, self.steady)
        self.read()
        assert self.store.is_current
        return self.store

    def read(self) -> None:
        while self.store.refresh(3):
            pass

    def published(self, name: str, payload: bytes, expiry_s: int | None) -> tuple[Any, ...]:
        extra = publish_properties(Properties(message_expiry_interval_s=expiry_s))
        text = encode_properties({MQTT_TOPIC: name}) + extra
        queue = self.log.queue_of("t", "")
        return (queue, payload, text, 0, self.clock.now_ms(), HOST, 0, 0, 0, 0)

    def publish(self, name: str, payload: bytes = b"on", *, expiry_s: int | None = None) -> None:
        """Publish one retained message."""
        published = self.published(name, payload, expiry_s)
        written = self.store.write(name, published)
        written.ticket = self.log.append([published, written.record])

    def payload(self, name: str) -> bytes | None:
        """Return the retained payload, which must be the same before and after it is read back."""
        before = self.store.get(name)
        self.read()
        after = self.store.get(name)
        assert (before and before.payload) == (after and after.payload)
        return after.payload if after is not None else None

    def scan(self, topic_filter: str, limit: int = 2) -> list[str]:
        """Return the names of all messages that match, from slices of ``limit``."""
        before, names = self.store.now(), []
        after: str | None = ""
        while after is not None:
            part = self.store.scan(topic_filter, after, limit, before)
            assert len(part.messages) <= limit + 1
            names += [message.name for message in part.messages]
            after = part.after
        assert names == sorted(set(names))
        return names

    def later(self, ms: int) -> None:
        self.clock.advance(ms)
        self.log.now_ms = self.clock.now_ms()


def test_last_message_of_a_name_is_kept_now_and_after_a_restart() -> None:
    stage = Stage()
    stage.publish("a/b", b"1")
    stage.publish("a/b", b"2")
    assert stage.payload("a/b") == b"2"
    assert stage.payload("a") is None
    assert stage.store.count == 1
    assert stage.start().get("a/b") is not None
    message = stage.store.get("a/b")
    assert isinstance(message, Retained)
    assert message.size_bytes == stage.store.size_bytes == 3 + 1 + len(message.properties)


def test_empty_payload_removes_the_message() -> None:
    stage = Stage()
    stage.publish("a")
    stage.read()
    stage.publish("a", b"")
    assert stage.payload("a") is None
    assert stage.start().get("a") is None
    assert (stage.store.count, stage.store.size_bytes) == (0, 0)


@pytest.mark.parametrize("name", ["", "a/#", "+", "a\x7f"])
def test_record_with_a_name_that_no_device_may_use_is_left_out(name: str) -> None:
    stage = Stage()
    text = f"{MQTT_TOPIC}\x01{name}\x02".encode()
    queue = stage.log.queue_of(MQTT_RETAINED_TOPIC, "")
    stage.log.append([(queue, b"on", text, 0, stage.clock.now_ms(), HOST, 0, 0, 0, 0)])
    stage.publish("b")
    assert stage.payload("b") == b"on"
    assert stage.store.count == 1


def test_message_of_a_batch_that_was_refused_is_not_kept() -> None:
    stage = Stage()
    stage.publish("a", b"on")
    stage.log.error = StoreFullError("full")
    stage.publish("a", b"off")
    stage.log.error = None
    assert stage.payload("a") == b"on"
    stage.publish("a", b"off")
    assert stage.payload("a") == b"off"
    assert not stage.store._unread.written


NAMES = ("$SYS/x", "a", "a/b", "a/b/c", "a!", "ab", "ab/c", "b/b/c", "å/b", "[a*?]/b", "*/b")
FILTERS = (
    *("#", "a/#", "+", "+/+", "+/b/c", "a/+", "a/+/c", "a/b", "$SYS/#", "å/+", "c/#", "b/b/#"),
    *("[a*?]/+", "*/+", "[a*?]/#", "+/#", "a/+/#", "+/b/#", "$SYS/+"),
)


@pytest.mark.parametrize("topic_filter", FILTERS)
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("names_max", [1, 2, 1000])
def test_scan_finds_what_matches_in_the_order_of_names(
    topic_filter: str, is_read: bool, names_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_module, "NAMES_MAX", names_max)
    stage = Stage()
    for position, name in enumerate(NAMES):
        stage.publish(name)
        if is_read or position % 3 == 1:
            stage.read()
    expected = sorted(name for name in NAMES if matches(topic_filter, name))
    assert stage.scan(topic_filter) == expected
    assert stage.scan(topic_filter, limit=100) == expected


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("topic_filter", ["#", "a/#", "a/b"])
def test_scan_leaves_out_what_is_newer_than_the_subscription(
    topic_filter: str, is_read: bool
) -> None:
    stage = Stage()
    stage.publish("a/a", b"old")
    stage.publish("a/b", b"old")
    before = stage.store.now()
    stage.publish("a/b", b"new")
    stage.publish("a/c", b"new")
    if is_read:
        stage.read()
    found = stage.store.scan(topic_filter, "", 100, before).messages
    assert [m.name for m in found] == [n for n in ("a/a",) if matches(topic_filter, n)]


def test_slice_in_which_little_matches_looks_at_a_bounded_number_of_names() -> None:
    stage = Stage()
    for number in range(2_500):
        stage.publish(f"a/{number:05}/{'yes' if number == 2_400 else 'no'}")
    while stage.store.refresh(1000):
        pass
    before = stage.store.now()
    first = stage.store.scan("a/+/yes", "", 10, before)
    assert (first.messages, first.after) == ([], "a/00999/no")
    assert stage.scan("a/+/yes") == ["a/02400/yes"]


def test_slice_has_so_many_bytes_or_one_message() -> None:
    stage = Stage()
    for number in range(100):
        stage.publish(f"a/{number:02}", b"x" * (5000 if number == 50 else 100))
    stage.read()
    size_bytes = 100 + len(stage.published("a/00", b"", None)[2])
    for topic_filter in ("a/#", "a/+", "#"):
        found: list[list[str]] = []
        after: str | None = ""
        before = stage.store.now()
        while after is not None:
            rows, after = stage.store.rows(
                topic_filter, after, 60, before, bytes_max=10 * size_bytes
            )
            found.append([row[1].decode() for row in rows])
        names = [name for one in found for name in one]
        assert names == [f"a/{number:02}" for number in range(100)]
        assert list(map(len, found)) == [10] * 5 + [1] + [10] * 4 + [9]


def test_later_slice_costs_what_the_first_one_does() -> None:
    stage = Stage()
    names = [f"home/{number:04}/light" for number in range(1000)]
    for name in names:
        stage.publish(name)
    stage.read()
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    stage.view._connected().set_progress_handler(step, 10)
    before = stage.store.now()
    for topic_filter in ("home/#", "home/+/light", "#"):
        costs = []
        for after in ("", names[-100]):
            steps = 0
            found = stage.store.scan(topic_filter, after, 50, before)
            assert len(found.messages) == 50
            costs.append(steps)
        first, last = costs
        assert last <= 2 * first, topic_filter


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_that_is_set_forward_expires_nothing_early(is_restarted: bool) -> None:
    stage = Stage()
    stage.publish("a", expiry_s=10)
    stage.publish("b", expiry_s=20)
    stage.read()
    stage.clock.step_wall(3_600_000)
    stage.later(0)
    if is_restarted:
        stage.start()
    stage.publish("c", expiry_s=5)
    stage.read()
    for names, ms in (("abc", 5_000), ("ab", 5_000), ("b", 10_000)):
        assert stage.scan("#") == list(names)
        assert stage.store.count == len(names)
        stage.later(ms - 1)
        assert stage.scan("#") == list(names)
        stage.later(1)
        stage.read()
    assert stage.scan("#") == []
    assert stage.store.count == 0


def test_expired_message_is_not_found_and_then_removed() -> None:
    stage = Stage()
    stage.publish("a", expiry_s=10)
    stage.publish("b")
    stage.read()
    stage.later(9_999)
    assert stage.payload("a") == b"on"
    stage.later(1)
    assert stage.store.get("a") is None
    assert stage.scan("#") == ["b"]
    stage.read()
    assert stage.store.count == 1
    assert stage.start().count == 1


def test_old_records_are_written_again_with_their_time() -> None:
    stage = Stage()
    stage.publish("a", b"kept", expiry_s=100)
    stage.publish("b", b"replaced")
    stage.read()
    before = stage.store.get("a")
    assert before is not None
    stage.later(1000)
    now_ms = stage.clock.now_ms()
    assert stage.store.rewrite_older(now_ms - 1000, 10) == 0
    assert stage.store.rewrite_older(now_ms, 10) == 2
    stage.publish("b", b"new")
    stage.read()
    assert stage.store.rewrite_older(now_ms, 10) == 0
    stage.log.begin_offsets[KEY] = 2
    stage.start()
    assert stage.payload("b") == b"new"
    after = stage.store.get("a")
    assert after is not None
    assert after._replace(queue_offset=before.queue_offset) == before


def test_message_that_is_written_again_is_no_newer() -> None:
    """Who has subscribed before it gets it, also when it comes back to that after days."""
    stage = Stage()
    for name in ("a", "b"):
        stage.publish(name)
    stage.read()
    before = stage.store.now()
    for offset in (0, 2):
        stage.later(1000)
        assert stage.store.rewrite_older(stage.clock.now_ms(), 10) == 2
        stage.read()
        stage.log.begin_offsets[KEY] = offset
    stage.publish("b", b"newer")
    for _ in range(2):
        found = stage.store.scan("#", "", 10, before)
        assert [message.name for message in found.messages] == ["a"]
        assert [row[1] for row in stage.store.rows("+", "", 10, before).rows] == [b"a"]
        assert len(stage.scan("#")) == 2
        stage.start()


def test_repeated_record_without_its_first_place_is_one_all_the_same() -> None:
    stage = Stage()
    stage.publish("a", b"1")
    stage.publish("b", b"1")
    stage.publish("b", b"2")
    stage.read()
    for name, place in (("a", 0), ("b", 1)):
        text = stage.published(name, b"", None)[2] + encode_properties({"mqttKept": f"{place}:7"})
        queue = stage.log.queue_of(MQTT_RETAINED_TOPIC, "")
        stage.log.append([(queue, b"1", text, 0, stage.clock.now_ms(), HOST, 0, 0, 0, 0)])
    stage.read()
    kept, other = stage.store.get("a"), stage.store.get("b")
    assert kept is not None
    assert other is not None
    assert (kept.payload, kept.store_ms, kept.queue_offset, kept.since) == (b"1", 7, 3, 0)
    assert (other.payload, other.queue_offset, other.since) == (b"2", 2, 2)


def test_messages_that_move_to_another_log_keep_their_times() -> None:
    old, new = Stage(), Stage()
    for name in ("$kept/a", "b", "c"):
        old.publish(name, name.encode(), expiry_s=100)
    old.read()
    before_ms = old.clock.now_ms()
    new.later(5000)
    new.publish("c", b"later")
    new.publish("gone")
    new.read()
    pages = [old.store.page("", 2)]
    assert pages[0].after is not None
    pages.append(old.store.page(pages[0].after, 2))
    assert pages[1].after is None
    for page in pages:
        new.store.adopt(page.rows)
    [(_, gone)] = [(row[1], row) for row in new.store.page("d", 10).rows]
    new.store.adopt([gone], are_removed=True)
    new.read()
    for at, name in enumerate(("$kept/a", "b", "c"), 2):
        moved, kept = new.store.get(name), old.store.get(name)
        assert moved is not None
        assert kept is not None
        assert moved == kept._replace(queue_offset=at, since=at)
        assert moved.store_ms == before_ms
    assert new.store.get("gone") is None
    # Written again there, they are the same still.
    new.later(1000)
    assert new.store.rewrite_older(new.clock.now_ms(), 10) == 3
    new.read()
    moved = new.store.get("b")
    assert moved is not None
    assert (moved.store_ms, moved.since) == (before_ms, 3)


def test_message_whose_record_is_gone_is_written_again() -> None:
    stage = Stage()
    stage.publish("a", b"1")
    stage.publish("b", b"2")
    stage.read()
    stage.log.begin_offsets[KEY] = 1
    assert stage.store.rewrite_older(0, 10) == 1
    stage.read()
    assert stage.store.rewrite_older(0, 10) == 0
    stage.start()
    assert stage.payload("a") == b"1"


def test_repeated_record_does_not_bring_back_what_was_replaced_or_removed() -> None:
    stage = Stage()
    stage.publish("a", b"1")
    stage.publish("b", b"1")
    stage.read()
    stale = stage.store
    stage.start()
    stage.publish("a", b"2")
    stage.publish("b", b"")
    stage.later(1000)
    assert stale.rewrite_older(stage.clock.now_ms(), 10) == 2
    assert stage.payload("a") == b"2"
    assert stage.payload("b") is None
    stage.start()
    assert stage.payload("a") == b"2"
    assert stage.payload("b") is None


def test_nothing_is_found_before_the_view_is_current() -> None:
    stage = Stage()
    stage.publish("a")
    view = View(IN_MEMORY)
    view.open()
    store = RetainedStore(stage.log, view, stage.clock)
    with pytest.raises(ViewError):
        store.get("a")
