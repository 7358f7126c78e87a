"""The registry of held requests, with owners that are plain names and a time the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.waiting.long_poll import HeldRequests
from tests.support.counted import executed


@dataclass(eq=False)
class Waiter:
    """One request; ``outcomes`` is what its callback was told."""

    queue_id: int
    owner: str
    deadline_ms: int
    outcomes: list[bool]

    def hold(self, held: HeldRequests) -> None:
        held.hold(("T", self.queue_id), self.deadline_ms, self.outcomes.append, owner=self.owner)


def waiter(queue_id: int = 0, *, owner: str = "c", deadline_ms: int = 1000) -> Waiter:
    return Waiter(queue_id, owner, deadline_ms, [])


def make_held(**limits: Any) -> HeldRequests:
    return HeldRequests(**{"requests_max": 100, "requests_per_owner_max": 100, **limits})


def test_a_key_calls_back_those_that_wait_for_it_in_order() -> None:
    held = make_held()
    order: list[int] = []

    def note(number: int, _: bool) -> None:
        order.append(number)

    for number in range(3):
        held.hold(("T", 0), 1000, partial(note, number), owner="c")
    other = waiter(1)
    other.hold(held)
    assert held.is_held(("T", 0))
    assert held.wake(("T", 0)) == 3
    assert order == [0, 1, 2]
    assert not held.is_held(("T", 0))
    assert held.wake(("T", 0)) == 0
    assert (len(held), other.outcomes) == (1, [])
    held._check()


def test_deadlines_come_due_within_a_bucket_and_never_early() -> None:
    held = make_held()
    first, second = waiter(deadline_ms=950), waiter(deadline_ms=2000)
    first.hold(held)
    second.hold(held)
    assert held.next_due_ms() == 1000
    assert held.end_due(949) == 0
    assert held.end_due(1000) == 1
    assert (first.outcomes, second.outcomes) == ([True], [])
    assert held.next_due_ms() == 2000
    assert held.end_due(5000) == 1
    assert second.outcomes == [True]
    assert held.next_due_ms() is None
    held._check()


def test_who_is_woken_may_hold_again_until_the_same_deadline() -> None:
    held = make_held()
    outcomes: list[bool] = []

    def go_on(is_over: bool) -> None:
        outcomes.append(is_over)
        held._check()
        if len(outcomes) < 3:
            held.hold("key", 1000, go_on, owner="c")

    held.hold("key", 1000, go_on, owner="c")
    assert held.wake("key") == 1
    assert held.is_held("key")
    assert held.end_due(1000) == 1
    # Held again behind its deadline: that is for the next time.
    assert (outcomes, len(held)) == ([False, True], 1)
    assert held.end_due(1000) == 1
    assert (outcomes, len(held)) == ([False, True, True], 0)


def test_a_closed_owner_takes_its_requests_along() -> None:
    held = make_held()
    mine, other = waiter(owner="a"), waiter(owner="b")
    mine.hold(held)
    other.hold(held)
    held.close_owner("a")
    held.close_owner("a")
    held._check()
    assert held.wake(("T", 0)) == 1
    assert (mine.outcomes, other.outcomes) == ([], [False])
    held._check()


def test_limits_are_for_one_owner_and_for_all() -> None:
    held = make_held(requests_max=3, requests_per_owner_max=2)
    waiter(owner="a").hold(held)
    waiter(owner="a").hold(held)
    assert held.is_full_for("a")
    assert not held.is_full_for("b")
    waiter(owner="b").hold(held)
    assert held.is_full_for("b")
    held.end_due(1000)
    assert not held.is_full_for("a")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "wake", "due", "close"]),
        st.integers(0, 2),
        st.sampled_from("ab"),
        st.integers(0, 1000),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_any_order_of_steps_keeps_the_indexes_together(
    steps: list[tuple[str, int, str, int]],
) -> None:
    held = make_held()
    now_ms = 0
    waiting: set[Waiter] = set()
    for kind, queue_id, owner, ms in steps:
        expected: set[Waiter] = set()
        match kind:
            case "hold":
                one = waiter(queue_id, owner=owner, deadline_ms=now_ms + ms)
                one.hold(held)
                waiting.add(one)
            case "wake":
                expected = {one for one in waiting if one.queue_id == queue_id}
                assert held.wake(("T", queue_id)) == len(expected)
            case "due":
                now_ms += ms
                count = held.end_due(now_ms)
                expected = {one for one in waiting if one.outcomes}
                assert count == len(expected)
                assert all(one.deadline_ms <= now_ms for one in expected)
                assert all(one.deadline_ms > now_ms - 100 for one in waiting - expected)
            case _:
                held.close_owner(owner)
                waiting = {one for one in waiting if one.owner != owner}
        assert all(one.outcomes == [kind == "due"] for one in expected)
        waiting -= expected
        assert not any(one.outcomes for one in waiting)
        held._check()
        assert len(held) == len(waiting)


@pytest.mark.parametrize("shared", ["key", "owner", "deadline"])
def test_a_request_costs_the_same_beside_twice_as_many(shared: str) -> None:
    def steps(count: int) -> int:
        held = HeldRequests(requests_max=10_000, requests_per_owner_max=10_000)
        for number in range(count):
            key = "same" if shared == "key" else number
            owner = "same" if shared == "owner" else number
            deadline_ms = 1_000 if shared == "deadline" else 1_000 * (number + 1)
            held.hold(key, deadline_ms, lambda _: None, owner=owner)

        def one_more() -> None:
            held.hold("own", 500, lambda _: None, owner="own")
            assert held.is_held("own")
            assert held.wake("own") == 1
            held.hold("own", 700, lambda _: None, owner="own")
            assert held.next_due_ms() == 500
            assert held.end_due(700) == 1
            held.close_owner("own")

        return executed(one_more)

    assert steps(600) == steps(300)
