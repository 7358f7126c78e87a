"""Messages and bytes by topic and group, of the last minute, hour and day: request code 315.

Owns: BrokerStats: the counters behind RocketMQ's names, when they are sampled, how many there may
be. Must not touch: what is counted; callers report it, once for a batch or an answer.
Spec: RocketMQ BrokerStatsManager, StatsItemSet, StatsItem.

    TOPIC_PUT_NUMS   TOPIC_PUT_SIZE     topic         messages appended, bytes of their records
    GROUP_GET_NUMS   GROUP_GET_SIZE     topic@group   the same for the answers to pulls
    SNDBCK_PUT_NUMS                     topic@group   messages that consumers have sent back
    BROKER_PUT_NUMS  BROKER_GET_NUMS    cluster       messages appended; pulled

    minute: a sample each 10 s, the last 7; hour: each 10 min, 7; day: each hour, 25
    sum = newest - oldest; tps = sum / the time between them; avgpt = sum / calls between them

All three windows end with the minute's newest sample. RocketMQ's day ends with its own newest one:
it would not change for an hour, and ``mqadmin statsAll`` shows its sum as that of 24 hours.
Each queue counts its appended messages (QueueTail.take_put); the counts are fetched from there each
second. RocketMQ's ``avgpt`` of puts is per send, here it is per message. Its GROUP_GET_LATENCY, in
whole milliseconds, would be 0 for nearly every read, and is left out.
Invariants: an item whose counters have not changed for more than its day is forgotten. There are at
most ``items_max`` of each kind; further ones are not counted by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from motelog.core.clock import Clock
from motelog.core.records.append import QueueTail

ITEMS_MAX: Final = 10_000
# Items are sampled in turn, so that there is no second in which all of them are.
TURNS: Final = 10
MINUTE_STEP_MS: Final = 10_000
HOUR_STEP_MS: Final = 600_000
DAY_STEP_MS: Final = 3_600_000
IDLE_MS_MAX: Final = 25 * DAY_STEP_MS

# One sample: its time, then the counters.
FIELDS: Final = 4
CALLS, MESSAGES, BYTES = 1, 2, 3

Key = tuple[str, str]  # (topic, group); the group is empty if there is none


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of one counter in one window."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class StatsData:
    """One counter's three windows."""

    minute: Snapshot
    hour: Snapshot
    day: Snapshot


class BrokerStats:
    """All calls come from the event loop; ``tick`` is called once a second."""

    def __init__(
        self,
        *,
        cluster: str,
        clock: Clock,
        messages_in: Callable[[], int],
        take_grown: Callable[[], Iterable[QueueTail]],
        items_max: int = ITEMS_MAX,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._messages_in = messages_in
        self._take_grown = take_grown
        #: Messages in answers to pulls.
        self.messages_out = 0
        self._puts = _Items(items_max)
        self._gets = _Items(items_max)
        self._backs = _Items(items_max)
        self._broker = _Items(2)
        # The table, and the place of the counter in its items.
        self._names: dict[str, tuple[_Items, int]] = {
            "TOPIC_PUT_NUMS": (self._puts, MESSAGES),
            "TOPIC_PUT_SIZE": (self._puts, BYTES),
            "GROUP_GET_NUMS": (self._gets, MESSAGES),
            "GROUP_GET_SIZE": (self._gets, BYTES),
            "SNDBCK_PUT_NUMS": (self._backs, MESSAGES),
            "BROKER_PUT_NUMS": (self._broker, MESSAGES),
            "BROKER_GET_NUMS": (self._broker, MESSAGES),
        }
        self._ticks = 0

    def note_get(self, topic: str, group: str, messages: int, stored_bytes: int) -> None:
        """Count the messages of one answer to a pull."""
        self.messages_out += messages
        self._gets.add((topic, group), 1, messages, stored_bytes)

    def note_sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back and that was appended."""
        self._backs.add((topic, group), 1, 1, 0)

    def tick(self) -> None:
        """Fetch the appends since the last call, and sample the items whose turn it is."""
        for tail in self._take_grown():
            messages, put_bytes = tail.take_put()
            self._puts.add((tail.topic.decode(), ""), messages, messages, put_bytes)
        self._broker.set((self._cluster, "BROKER_PUT_NUMS"), self._messages_in())
        self._broker.set((self._cluster, "BROKER_GET_NUMS"), self.messages_out)
        now_ms = self._clock.monotonic_ms()
        for items in (self._puts, self._gets, self._backs, self._broker):
            items.sample(self._ticks % TURNS, now_ms)
        self._ticks += 1

    def find(self, name: str, key: str) -> StatsData | None:
        """Return the counter of RocketMQ's name and key; None if there is none."""
        if name not in self._names:
            return None
        items, column = self._names[name]
        if items is self._broker:
            item = items.get((key, name))
        elif items is self._puts:
            item = items.get((key, ""))
        else:
            topic, _, group = key.partition("@")
            item = items.get((topic, group))
        if item is None:
            return None
        return item.data(column)

    def puts(self) -> Iterator[tuple[Key, Sequence[int]]]:
        """Yield the appends since the start by topic: calls, messages, bytes."""
        return self._puts.counters()

    def gets(self) -> Iterator[tuple[Key, Sequence[int]]]:
        """Yield the answers to pulls by (topic, group): calls, messages, bytes."""
        return self._gets.counters()

    def put_rate(self, topic: str) -> float:
        """Return messages appended to a topic per second, over the last minute."""
        return _rate(self._puts.get((topic, "")))

    def get_rate(self, topic: str, group: str) -> float:
        """Return messages of a topic pulled by a group per second, over the last minute."""
        return _rate(self._gets.get((topic, group)))

    def _check(self) -> None:
        """Assert the invariants."""
        for items in (self._puts, self._gets, self._backs, self._broker):
            items._check()


class _Window:
    """Samples of one item at a fixed step, the oldest first."""

    __slots__ = ("_samples", "_size_max", "_step_ms", "due_ms")

    def __init__(self, step_ms: int, count_max: int) -> None:
        self._step_ms = step_ms
        self._size_max = count_max * FIELDS
        self.due_ms = 0
        # FIELDS numbers for each sample; as objects, thousands of items would take megabytes.
        self._samples = array("q")

    def sample(self, now_ms: int, counters: list[int]) -> None:
        samples = self._samples
        if not samples:
            # The counts of the first sample are from the step that ends with it.
            samples.extend((now_ms - self._step_ms, 0, 0, 0))
        samples.extend((now_ms, *counters))
        if len(samples) > self._size_max:
            del samples[:FIELDS]
        self.due_ms = now_ms + self._step_ms

    def newest(self) -> array[int]:
        return self._samples[-FIELDS:]

    def snapshot(self, column: int, last: array[int]) -> Snapshot:
        """Return the figures from the oldest sample to ``last``, maybe from another window."""
        first = self._samples[:FIELDS]
        if not first:
            return Snapshot()
        total = last[column] - first[column]
        calls = last[CALLS] - first[CALLS]
        tps = total * 1000 / (last[0] - first[0])
        return Snapshot(total, tps, total / calls if calls else 0.0)


class _Item:
    """Counters of one key."""

    __slots__ = ("changed_ms", "counters", "sampled_sum", "windows")

    def __init__(self) -> None:
        self.counters = [0, 0, 0]
        self.sampled_sum = -1
        self.changed_ms = 0
        self.windows = (
            _Window(MINUTE_STEP_MS, 7),
            _Window(HOUR_STEP_MS, 7),
            _Window(DAY_STEP_MS, 25),
        )

    def data(self, column: int) -> StatsData:
        last = self.windows[0].newest()
        return StatsData(*[window.snapshot(column, last) for window in self.windows])

    def sample(self, now_ms: int) -> bool:
        """Take a sample; return False if nothing was counted within the longest window."""
        counters = self.counters
        total = counters[0] + counters[1]
        if total != self.sampled_sum:
            self.sampled_sum, self.changed_ms = total, now_ms
        for window in self.windows:
            if now_ms >= window.due_ms:
                window.sample(now_ms, counters)
        return now_ms - self.changed_ms <= IDLE_MS_MAX


class _Items:
    """The items of one kind by key, in one part per turn."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._items: dict[Key, _Item] = {}
        self._parts: list[dict[Key, _Item]] = [{} for _ in range(TURNS)]
        self._next_part = 0
        # New items get their first sample at once, the next ones in turn.
        self._new: list[_Item] = []

    def get(self, key: Key) -> _Item | None:
        return self._items.get(key)

    def add(self, key: Key, calls: int, messages: int, bytes_: int) -> None:
        item = self._items.get(key) or self._make(key)
        if item is not None:
            counters = item.counters
            counters[0] += calls
            counters[1] += messages
            counters[2] += bytes_

    def set(self, key: Key, messages: int) -> None:
        item = self._items.get(key) or self._make(key)
        if item is not None:
            item.counters[1] = messages

    def counters(self) -> Iterator[tuple[Key, Sequence[int]]]:
        return ((key, item.counters) for key, item in self._items.items())

    def _make(self, key: Key) -> _Item | None:
        if len(self._items) >= self._count_max:
            return None
        item = self._items[key] = self._parts[self._next_part][key] = _Item()
        self._next_part = (self._next_part + 1) % TURNS
        self._new.append(item)
        return item

    def sample(self, turn: int, now_ms: int) -> None:
        for item in self._new:
            item.sample(now_ms)
        self._new.clear()
        part = self._parts[turn]
        for key in [key for key, item in part.items() if not item.sample(now_ms)]:
            del part[key], self._items[key]

    def _check(self) -> None:
        assert len(self._items) <= self._count_max
        parts = [key for part in self._parts for key in part]
        assert sorted(parts) == sorted(self._items)


def _rate(item: _Item | None) -> float:
    return 0.0 if item is None else item.data(MESSAGES).minute.tps
