"""Messages in the order of their times: what is due, what lies beyond memory, what was moved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from motelog.core.broker.delay.timer_queue import OFFSET_MAX, TimerQueue, is_recall
from motelog.core.records.decode import decode_messages
from motelog.core.store.due_time import TIMER_SLOT_MS, timer_queue
from motelog.core.store.message_store import MessageStore
from tests.support.stores import message, opened

TOPIC = "waiting"
# Times are in the slots behind this one.
BEGIN_MS = 5 * TIMER_SLOT_MS
END_MS = BEGIN_MS + 4 * TIMER_SLOT_MS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as store:
        yield store


def put(store: MessageStore, *dues_ms: int) -> None:
    for due_ms in dues_ms:
        tail = store.queue_tail(TOPIC, timer_queue(due_ms))
        store.append([message(tail, b"%d" % due_ms, tags_code=due_ms)])


async def taken(timer: TimerQueue, now_ms: int) -> list[int]:
    """Take all that is due and return the times that the messages say."""
    found: list[int] = []
    while True:
        await timer.fill()
        due = timer.due(now_ms)
        if due:
            records = b"".join(await timer.records(due))
            found += [int(m.body) for m in decode_messages(records)]
            timer.pass_over(due)
        elif not timer.go_on(now_ms):
            return found


@pytest.mark.parametrize("near_max", [1, 7, 1000])
async def test_messages_are_due_in_the_order_of_their_times(
    store: MessageStore, near_max: int
) -> None:
    dues_ms = [BEGIN_MS + random.Random(1).randrange(3 * TIMER_SLOT_MS) for _ in range(60)]
    dues_ms += [BEGIN_MS + number for number in range(60)]
    random.Random(2).shuffle(dues_ms)
    put(store, *dues_ms)
    timer = TimerQueue(store, TOPIC, near_max=near_max)
    timer.start((BEGIN_MS - 1, OFFSET_MAX))
    now_ms = BEGIN_MS + TIMER_SLOT_MS
    first = await taken(timer, now_ms)
    assert first == sorted(due_ms for due_ms in dues_ms if due_ms <= now_ms)
    assert len(timer.near) <= near_max
    assert timer.next_ms > now_ms
    assert first + await taken(timer, END_MS) == sorted(dues_ms)


async def test_nothing_up_to_the_mark_is_due_again(store: MessageStore) -> None:
    put(store, *(BEGIN_MS + number for number in range(10)))
    timer = TimerQueue(store, TOPIC, near_max=100)
    timer.start((BEGIN_MS + 4, 4))
    assert await taken(timer, BEGIN_MS + 100) == [BEGIN_MS + number for number in range(5, 10)]
    assert timer.mark == (BEGIN_MS + 9, 9)


async def test_what_is_moved_is_due_once(store: MessageStore) -> None:
    dues_ms = [BEGIN_MS + 100 * number for number in range(50)]
    put(store, *dues_ms)
    end = store.end_offset
    put(store, BEGIN_MS + 9_999)
    timer = TimerQueue(store, TOPIC, near_max=100)
    timer.start((BEGIN_MS - 1, OFFSET_MAX))
    assert await taken(timer, dues_ms[19]) == dues_ms[:20]
    moved: list[int] = []

    def append(found: list[tuple[int, bytes]]) -> None:
        for due_ms, record in found:
            (one,) = decode_messages(record)
            assert int(one.body) == due_ms
            moved.append(due_ms)
            put(store, due_ms)

    await timer.move(end, append)
    await timer.move(end, append)
    assert moved == dues_ms[20:]
    assert await taken(timer, END_MS) == [*dues_ms[20:], BEGIN_MS + 9_999]


async def units(timer: TimerQueue, now_ms: int) -> list[tuple[int, bool]]:
    """Take all that is due and return (due time, is a recall) of each."""
    found: list[tuple[int, bool]] = []
    while True:
        await timer.fill()
        due = timer.due(now_ms)
        if due:
            found += [(unit[0], is_recall(unit)) for unit in due]
            timer.pass_over(due)
        elif not timer.go_on(now_ms):
            return found


def put_recall(store: MessageStore, due_ms: int) -> None:
    tail = store.queue_tail(TOPIC, timer_queue(due_ms))
    store.append([message(tail, b"%d" % -due_ms, tags_code=-due_ms)])


@pytest.mark.parametrize("near_max", [1, 2, 1000])
async def test_recalls_come_once_before_the_messages_of_their_time(
    store: MessageStore, near_max: int
) -> None:
    first, second = BEGIN_MS + 5, BEGIN_MS + TIMER_SLOT_MS
    put(store, first, first, second)
    for due_ms in (second, first, first):
        put_recall(store, due_ms)
    timer = TimerQueue(store, TOPIC, near_max=near_max)
    timer.start((BEGIN_MS - 1, OFFSET_MAX))
    expected = [(first, True)] * 2 + [(first, False)] * 2 + [(second, True), (second, False)]
    assert await units(timer, END_MS) == expected


async def test_recalls_of_the_mark_s_time_come_again_after_a_restart(store: MessageStore) -> None:
    due_ms = BEGIN_MS + 5
    put(store, due_ms, due_ms)
    put_recall(store, due_ms)
    before = TimerQueue(store, TOPIC, near_max=10)
    before.start((BEGIN_MS, OFFSET_MAX))
    await before.fill()
    recall, one, _ = before.due(END_MS)
    for seen in ([recall], [recall, one]):
        before.pass_over(seen)
        after = TimerQueue(store, TOPIC, near_max=10)
        after.start(before.mark)
        mark = before.mark
        left = [(due_ms, True)] + [(due_ms, False)] * (3 - len(seen))
        await after.fill()
        assert [(unit[0], is_recall(unit)) for unit in after.due(END_MS)] == left
        after.pass_over(after.due(END_MS)[:1])
        assert after.mark == mark


async def test_a_recall_is_moved_with_its_message(store: MessageStore) -> None:
    due_ms = BEGIN_MS + 5
    put(store, due_ms)
    put_recall(store, due_ms)
    put_recall(store, BEGIN_MS - 10)
    timer = TimerQueue(store, TOPIC, near_max=10)
    timer.start((BEGIN_MS - 1, OFFSET_MAX))
    moved: list[int] = []

    def append(found: list[tuple[int, bytes]]) -> None:
        for code, record in found:
            (one,) = decode_messages(record)
            assert int(one.body) == code
            moved.append(code)
            if code < 0:
                put_recall(store, -code)
            else:
                put(store, code)

    await timer.move(store.end_offset, append)
    assert moved == [due_ms, -due_ms]
    assert await units(timer, END_MS) == [(due_ms, True), (due_ms, False)]
