"""What a push consumer knows of a queue: limits, offsets to commit, messages that come again."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from motelog.bridge.push.process_queue import LOCK_EXPIRES_S, Batch, Limits, ProcessQueue
from motelog.bridge.reader import Start
from motelog.bridge.selector import SELECT_ALL
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage

QUEUE = MessageQueue("T", "b", 0)


def message(offset: int, body: bytes = b"12345", topic: str = "T", **pairs: str) -> StoredMessage:
    host = ("127.0.0.1", 1)
    return StoredMessage(topic, 0, offset, offset, body, pairs, 0, 0, 0, host, 0, host, 0, 0, 100)


def messages(begin: int, end: int) -> list[StoredMessage]:
    return [message(offset) for offset in range(begin, end)]


def process_queue(start: int = 0, **limits: int) -> ProcessQueue:
    return ProcessQueue(QUEUE, start, SELECT_ALL, Limits(**limits))


def over(batch: Batch, *, failed: tuple[int, ...] = ()) -> None:
    """Let the user's function take the whole batch, but for some messages by their place."""
    batch.done = len(batch.messages)
    batch.failed = [batch.messages[index] for index in failed]


async def test_offset_stays_at_the_first_message_that_is_not_over() -> None:
    state = process_queue(5)
    assert state.offset == 5
    state.add(messages(5, 15), 20)
    first, second = state.take(3), state.take(3)
    over(second)
    state.put_back(second)
    assert state.offset == 5
    first.done = 2
    assert state.offset == 7
    over(first, failed=(1,))
    assert state.offset == 6
    first.failed = []
    state.put_back(first)
    assert state.offset == 11
    over(rest := state.take(99))
    state.put_back(rest)
    # Behind the ones that were filtered out, too.
    assert state.offset == 20
    assert state.is_idle


async def test_unknown_start_has_no_offset() -> None:
    state = ProcessQueue(QUEUE, Start.COMMITTED, SELECT_ALL, Limits())
    assert state.offset is None
    state.begin_at(7)
    assert state.offset == 7


async def test_full_queues_wait_for_room() -> None:
    for limits in ({"count_max": 3}, {"bytes_max": 15}, {"span_max": 2}):
        state = process_queue(**limits)
        state.add(messages(0, 3), 3)
        assert state.room.is_set()
        state.add(messages(3, 4), 4)
        assert not state.room.is_set()
        batch = state.take(1)
        assert not state.room.is_set()
        over(batch)
        state.put_back(batch)
        assert state.room.is_set()


async def test_failed_messages_that_nobody_took_are_handled_again() -> None:
    state = process_queue()
    state.add(messages(0, 6), 6)
    batch = state.take(4)
    over(batch, failed=(1, 3))
    state.keep_failed(batch)
    assert (state.offset, state.count) == (1, 4)
    state.put_back(batch)
    state._check()
    again = state.take(99)
    assert [m.queue_offset for m in again.messages] == [1, 3, 4, 5]
    assert [m.reconsume_times for m in again.messages] == [1, 1, 0, 0]


async def test_dropped_queue_reads_no_more_and_keeps_its_offset() -> None:
    state = process_queue()
    state.add(messages(0, 6), 6)
    batch = state.take(2)
    state.drop()
    assert state.scope.cancel_called
    batch.done = 1
    state.put_back(batch)
    assert (state.offset, state.is_idle) == (1, True)


async def test_broker_that_lost_its_end_is_read_from_there() -> None:
    state = process_queue()
    state.add(messages(0, 10), 10)
    state.take(2)
    state.committed = 6
    state.move_to(4)
    assert (state.next_offset, state.ready_count, state.count) == (4, 0, 2)
    assert state.committed is None
    state.add(messages(4, 6), 6)
    state._check()


async def test_retries_are_shown_under_their_first_topic() -> None:
    queue = MessageQueue("%RETRY%G", "b", 0)
    state = ProcessQueue(queue, 0, SELECT_ALL, Limits())
    state.add([message(0, topic="%RETRY%G", RETRY_TOPIC="T")], 1)
    assert state.take(1).messages[0].topic == "T"


async def test_locks_are_trusted_for_a_time(autojump_clock: trio.testing.MockClock) -> None:
    state = process_queue()
    assert not state.is_locked()
    state.locked_at = trio.current_time()
    assert state.is_locked()
    await trio.sleep(LOCK_EXPIRES_S + 1)
    assert not state.is_locked()
    assert not state.is_pull_expired()
    await trio.sleep(100)
    assert state.is_pull_expired()


@given(data=st.data())
async def test_any_order_of_work_loses_no_message(data: st.DataObject) -> None:
    """Whatever ends in whatever order: the offset rises, and all below it are over."""
    state = process_queue(count_max=8, span_max=12)
    handled: set[int] = set()
    batches: list[Batch] = []
    end, last = 0, 0
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["add", "take", "end", "fail", "stop"])):
            case "add" if state.room.is_set():
                count = data.draw(st.integers(0, 5))
                state.add(messages(end, end + count), end + count)
                end += count
            case "take" if state.ready_count:
                batches.append(state.take(data.draw(st.integers(1, 4))))
            case ("end" | "fail" | "stop") as how if batches:
                batch = batches.pop(data.draw(st.integers(0, len(batches) - 1)))
                offsets = [m.queue_offset for m in batch.messages]
                if how == "stop":
                    batch.done = data.draw(st.integers(0, len(offsets)))
                    handled.update(offsets[: batch.done])
                    state.put_back(batch)
                elif how == "end":
                    over(batch)
                    handled.update(offsets)
                    state.put_back(batch)
                else:
                    over(batch, failed=(0,))
                    handled.update(offsets[1:])
                    state.keep_failed(batch)
                    batches.append(batch)
        state._check()
        assert state.offset is not None
        assert state.offset >= last
        last = state.offset
        assert handled.issuperset(range(last))
