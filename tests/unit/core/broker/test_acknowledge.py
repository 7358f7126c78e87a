"""Who may be acknowledged: the policies on a store, and the one queue of answers that wait."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.acknowledge import AnswerQueue, Appended, Durable, policy_of
from motelog.core.clock import ManualClock
from motelog.core.errors import FlushTimeoutError, StoreError, StoreFencedError
from tests.support.fake_acknowledge import FakeAcknowledge
from tests.support.stores import make_store, message, opened


class Stage:
    """A queue of names, and what became of them."""

    def __init__(self, acknowledged_offset: int = 0) -> None:
        self.policy = FakeAcknowledge(acknowledged_offset)
        self.clock = ManualClock()
        self.answered: list[list[str]] = []
        self.refused: list[tuple[list[str], StoreError]] = []
        self.queue: AnswerQueue[str] = AnswerQueue(
            self.policy,
            clock=self.clock,
            answer=self.answered.append,
            refuse=lambda names, error: self.refused.append((names, error)),
        )

    def expire(self) -> int:
        return self.queue.expire()


def test_what_may_be_answered_need_not_wait() -> None:
    stage = Stage(acknowledged_offset=100)
    assert stage.queue.may_answer(100)
    assert not stage.queue.may_answer(101)


def test_nobody_overtakes_who_waits() -> None:
    stage = Stage()
    stage.queue.add(100, "a")
    stage.policy.acknowledged_offset = 200
    assert not stage.queue.may_answer(200)
    stage.queue.release()
    assert stage.queue.may_answer(200)


def test_one_release_answers_all_that_may_be_in_the_order_of_the_log() -> None:
    stage = Stage()
    for end_offset, name in ((100, "a"), (200, "b"), (300, "c")):
        stage.queue.add(end_offset, name)
    stage.policy.grow_to(99)
    assert stage.answered == []
    stage.policy.grow_to(200)
    assert stage.answered == [["a", "b"]]
    stage.policy.grow_to(300)
    assert stage.answered == [["a", "b"], ["c"]]
    assert stage.refused == []


def test_what_is_wanted_is_what_the_last_one_waits_for() -> None:
    stage = Stage()
    stage.queue.want()
    assert stage.policy.wanted_offset == 0
    stage.queue.add(100, "a")
    stage.queue.add(200, "b")
    assert stage.policy.wanted_offset == 0
    stage.queue.want()
    assert stage.policy.wanted_offset == 200


def test_after_a_failure_what_may_be_is_answered_and_the_rest_is_told_why() -> None:
    stage = Stage()
    stage.queue.add(100, "a")
    stage.queue.add(200, "b")
    stage.queue.add(300, "c")
    stage.policy.acknowledged_offset = 100
    error = StoreFencedError("the disk failed")
    stage.policy.fail(error)
    assert stage.answered == [["a"]]
    assert stage.refused == [(["b", "c"], error)]
    # Refused is refused.
    stage.policy.failure = None
    stage.policy.grow_to(300)
    assert stage.answered == [["a"]]


def test_whose_time_is_over_is_refused_and_never_answered() -> None:
    stage = Stage()
    stage.queue.add(100, "a")
    stage.clock.advance(3_000)
    stage.queue.add(200, "b")
    assert stage.expire() == 2_000
    stage.clock.advance(1_999)
    assert stage.expire() == 1
    assert stage.refused == []
    stage.clock.advance(1)
    assert stage.expire() == 3_000
    [(names, error)] = stage.refused
    assert names == ["a"]
    assert isinstance(error, FlushTimeoutError)
    assert "5000 ms" in str(error)
    stage.policy.grow_to(200)
    assert stage.answered == [["b"]]
    # With nobody waiting, nobody's time is over before a whole one has passed.
    assert stage.expire() == 5_000


def test_a_slow_disk_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    for end_offset in (100, 200, 300):
        stage.queue.add(end_offset, "late")
        stage.clock.advance(1)
    stage.clock.advance(4_997)
    while stage.expire() < 5_000:
        stage.clock.advance(1)
    assert len(stage.refused) == 3
    assert len(caplog.records) == 1
    stage.queue.add(400, "in time")
    stage.policy.grow_to(400)
    assert caplog.messages[1:] == ["answers are in time again appends_too_late=3"]


def test_who_is_told_may_have_more_wait_or_release_again() -> None:
    policy, clock = FakeAcknowledge(0), ManualClock()
    answered: list[str] = []

    def answer(names: list[str]) -> None:
        answered.extend(names)
        if names == ["a"]:
            queue.add(200, "b")
            queue.release()

    queue: AnswerQueue[str] = AnswerQueue(
        policy, clock=clock, answer=answer, refuse=lambda names, _: answered.extend(names)
    )
    queue.add(100, "a")
    policy.grow_to(200)
    assert answered == ["a", "b"]


def test_who_waited_is_forgotten_at_the_end() -> None:
    stage = Stage()
    stage.queue.add(100, "a")
    stage.queue.close()
    stage.queue.close()
    stage.policy.grow_to(100)
    stage.policy.fail(StoreFencedError("gone"))
    assert (stage.answered, stage.refused) == ([], [])
    assert stage.policy.listeners == []


async def test_run_refuses_at_the_deadline_and_forgets_at_its_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class TrioClock(ManualClock):
        def monotonic_ms(self) -> int:
            return round(trio.current_time() * 1000)

    policy, clock = FakeAcknowledge(0), TrioClock()
    policy.timeout_ms = 50
    refused: list[tuple[list[str], int]] = []
    queue: AnswerQueue[str] = AnswerQueue(
        policy,
        clock=clock,
        answer=lambda _: None,
        refuse=lambda names, _: refused.append((names, clock.monotonic_ms())),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(queue.run)
        began_ms = clock.monotonic_ms()
        await trio.sleep(0.02)
        queue.add(100, "a")
        await trio.sleep(0.01)
        queue.add(200, "b")
        await trio.sleep(0.2)
        assert refused == [(["a"], began_ms + 70), (["b"], began_ms + 80)]
        queue.add(300, "c")
        nursery.cancel_scope.cancel()
    assert policy.listeners == []
    policy.grow_to(300)
    assert len(refused) == 2


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 100)),
            st.tuples(st.just("grow"), st.integers(0, 150)),
            st.tuples(st.just("pass"), st.integers(0, 6_000)),
            st.tuples(st.just("fail"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_each_is_told_once_in_order_and_never_too_much(steps: list[tuple[str, int]]) -> None:
    policy, clock = FakeAcknowledge(0), ManualClock()
    ends: list[int] = []
    told: list[int] = []

    def answer(numbers: list[int]) -> None:
        assert all(ends[number] <= policy.acknowledged_offset for number in numbers)
        told.extend(numbers)

    queue: AnswerQueue[int] = AnswerQueue(
        policy, clock=clock, answer=answer, refuse=lambda numbers, _: told.extend(numbers)
    )
    for step, value in steps:
        if step == "append":
            ends.append((ends[-1] if ends else 0) + value)
            queue.add(ends[-1], len(ends) - 1)
        elif step == "grow":
            policy.grow_to(min(policy.acknowledged_offset + value, ends[-1] if ends else 0))
        elif step == "pass":
            clock.advance(value)
            queue.expire()
        else:
            policy.fail(StoreFencedError("gone"))
        queue._check()
        assert told == list(range(len(told)))
    policy.grow_to(1 << 62)
    assert told == list(range(len(ends)))


@pytest.mark.parametrize(("flush", "kind"), [("async", Appended), ("sync", Durable)])
async def test_a_store_promises_what_its_configuration_says(
    tmp_path: Path, flush: str, kind: type
) -> None:
    store = make_store(tmp_path, flush=flush, flush_timeout_ms=1_234)
    store.open()
    policy = policy_of(store)
    assert type(policy) is kind
    assert policy.timeout_ms == 1_234
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        end = store.append([message(store.queue_tail("T", 0))])
        assert policy.acknowledged_offset == (0 if flush == "sync" else end)
        grown = trio.Event()
        policy.listeners.append(grown.set)
        policy.want(end)
        if flush == "sync":
            with trio.fail_after(10):
                await grown.wait()
        assert policy.acknowledged_offset == end
        assert policy.failure is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_fenced_store_promises_nothing_more(tmp_path: Path, flush: str) -> None:
    with opened(tmp_path, flush=flush) as store:
        policy = policy_of(store)
        store._fence("the disk failed")
        assert isinstance(policy.failure, StoreFencedError)
        assert str(policy.failure) == "the disk failed"
